"""Reads a range of a file on a web server, with the session of fsspec's http client.

If the server gave a strong etag, it is sent as If-Match. Many servers ignore conditions, so the headers of the reply
are compared too; if they tell nothing, the caller looks the file up after the bytes. Source: RFC 9110, sections 8.8.3
(ETag), 13.1.1 (If-Match) and 14.
"""

from typing import Any

from torch_dataloader_utils._store.identity import names_no_version, stat_of
from torch_dataloader_utils._store.range_reply import RangeReply, reply_within
from torch_dataloader_utils._store.retry import RetryPolicy


async def fetch_range(filesystem: Any, url: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get what is missing of `reply`.

    Raises:
        WrongReplyError: another range, or a server without ranges. OtherObjectError: another file. StalledError: it
        stopped coming. FileNotFoundError, or what aiohttp raises.
    """
    first, last = reply.missing
    options = dict(filesystem.kwargs)
    # Compressed on the way, the range would be one of other bytes.
    headers = {**options.pop("headers", {}), "Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
    if reply.identity and _is_strong_etag(reply.identity):
        headers["If-Match"] = f'"{reply.identity}"'
    session = await filesystem.set_session()
    async with reply_within(4 * policy.progress_seconds):
        answer = await session.get(filesystem.encode_url(url), headers=headers, **options)
    async with answer:
        if answer.status == 404:
            raise FileNotFoundError(url)
        answer.raise_for_status()
        reply.check_range(answer.headers.get("Content-Range"), answer.content_length)
        reply.check_identity(_identity(answer.headers, reply))
        await reply.receive(answer.content, policy)


def _identity(headers: Any, reply: RangeReply) -> str | None:
    """The identity that a look-up would give, from the headers of a reply; None if they say less than it did."""
    total = headers.get("Content-Range", "").rpartition("/")[2]
    size = int(total) if total.isdigit() else reply.span[1]
    seen = stat_of({"size": size, **{name: headers.get(name) for name in ("ETag", "Last-Modified")}})
    has_etag, wants_etag = bool(headers.get("ETag")), bool(reply.identity) and not _is_size_and_time(reply.identity)
    if names_no_version(seen.identity) or (reply.identity and has_etag != wants_etag):
        return None
    return seen.identity


def _is_strong_etag(identity: str) -> bool:
    return not _is_size_and_time(identity) and not identity.startswith("W/")


def _is_size_and_time(identity: str | None) -> bool:
    # `stat_of` writes it as "1024-Wed, 21 Oct 2026 07:28:00 GMT", or "1024-" of a server that does not say.
    size, dash, time = (identity or "").partition("-")
    return bool(dash) and size.isdigit() and (not time or "GMT" in time)
