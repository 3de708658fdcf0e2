"""Reads a range of an object of Google Cloud Storage by its generation, so that it cannot be another version.

Source: Cloud Storage JSON API, Objects: get (parameter `generation`).
"""

from typing import Any

from torch_dataloader_utils._store.range_reply import RangeReply, reply_within
from torch_dataloader_utils._store.retry import RetryPolicy

# A reply of a client that cannot be watched while it comes in may take this much longer for its size.
LEAST_BYTES_PER_SECOND = 1 << 20


async def fetch_range(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get the whole of `reply`, of the generation that is its identity.

    Raises:
        FileNotFoundError: that generation is gone. ShortReplyError: fewer or more bytes. Or what gcsfs raises.
    """
    start, length = reply.span
    pinned = {"generation": reply.identity} if reply.identity and reply.identity.isdigit() else {}
    async with reply_within(2 * policy.progress_seconds + length / LEAST_BYTES_PER_SECOND):
        data = await filesystem._cat_file(key, start=start, end=start + length, **pinned)
    reply.put(data)
    reply.check_identity(pinned.get("generation"))
