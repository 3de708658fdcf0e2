"""Reads a range of an S3 object: one GET with its condition.

Source: S3 API, GetObject (Range, If-Match).
"""

from typing import Any

from torch_dataloader_utils._store.range_reply import RangeReply, reply_within
from torch_dataloader_utils._store.retry import RetryPolicy


async def fetch_range(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get what is missing of `reply`, required to have the etag that is its identity.

    Raises:
        WrongReplyError: another range. OtherObjectError: another object. StalledError: it stopped coming.
        Or what s3fs raises.
    """
    bucket, name, version = filesystem.split_path(key)
    first, last = reply.missing
    condition = {"IfMatch": f'"{reply.identity}"'} if reply.identity else {}
    if version:
        condition["VersionId"] = version
    await filesystem.set_session()  # half a second, once; no fault of the server
    async with reply_within(4 * policy.progress_seconds):
        answer = await filesystem._call_s3(
            "get_object", Bucket=bucket, Key=name, Range=f"bytes={first}-{last}", **condition
        )
    body = answer["Body"]
    try:
        reply.check_range(answer.get("ContentRange"), answer.get("ContentLength"))
        # The condition holds even where a server gives no etag with the bytes.
        reply.check_identity(str(answer.get("ETag") or "").strip('"') or reply.identity)
        await reply.receive(body, policy)
    finally:
        body.close()
