"""Reads a range of an Azure blob with the condition If-Match, which adlfs cannot send.

Source: Blob service REST API, Get Blob, and "Specifying conditional headers".
"""

from importlib import import_module
from typing import Any

from torch_dataloader_utils._store.gcs import LEAST_BYTES_PER_SECOND
from torch_dataloader_utils._store.range_reply import RangeReply, reply_within
from torch_dataloader_utils._store.retry import RetryPolicy


async def fetch_range(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get the whole of `reply`, required to have the etag that is its identity.

    Raises:
        OtherObjectError: another blob. ShortReplyError: fewer or more bytes. FileNotFoundError, or what the SDK raises.
    """
    container, name, version = filesystem.split_path(key)
    start, length = reply.span
    # Its own retries, of up to minutes, would neither be logged nor end with our cap.
    options: dict[str, Any] = {"version_id": version, "retry_total": 0}
    if reply.identity:
        unmodified = import_module("azure.core").MatchConditions.IfNotModified
        options |= {"etag": f'"{reply.identity}"', "match_condition": unmodified}
    async with (
        reply_within(2 * policy.progress_seconds + length / LEAST_BYTES_PER_SECOND),
        filesystem.service_client.get_blob_client(container=container, blob=name) as client,
    ):
        try:
            stream = await client.download_blob(offset=start, length=length, **options)
            data = await stream.readall()
        except Exception as error:
            if getattr(error, "status_code", 0) == 404:
                raise FileNotFoundError(key) from error
            raise
    reply.check_identity(str(stream.properties.etag or "").strip('"') or reply.identity)
    reply.put(data)
