"""obstore's clients, through its fsspec store; never in a process that forks afterwards.

obstore runs a tokio runtime of its own. A forked child inherits its locks without its threads: any use in the child
hangs, and the parent may hang too. So in a forked child this raises ConfigError instead.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from torch_dataloader_utils._store.access import RemoteOptions
from torch_dataloader_utils._store.conditional_reads import PieceStream, RangeReply, reply_within
from torch_dataloader_utils._store.retry import RetryPolicy
from torch_dataloader_utils.errors import ConfigError, MissingDependencyError

# s3fs's names, so that one set of storage options serves both.
_S3_NAMES = {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token"}

# Of the pieces of a body that obstore hands over.
_PIECE_BYTES = 64 << 10

_state = {"was_used": False, "was_inherited": False}


def open_obstore(scheme: str, options: Mapping[str, Any], remote: RemoteOptions) -> Any:
    """obstore's fsspec store for a scheme.

    options: s3fs's key, secret, token, anon, endpoint_url and client_kwargs are understood; all others go to obstore.

    Raises:
        MissingDependencyError: obstore is not installed.
        ConfigError: this process was forked from one that had used obstore.
    """
    if _state["was_inherited"]:
        raise ConfigError(
            "obstore was used before this process was forked from another, and would hang in it. Start the workers "
            'with multiprocessing_context="forkserver" (or "spawn"), use num_workers=0, or backend="fsspec".'
        )
    try:
        fsspec_store: Any = import_module("obstore.fsspec").FsspecStore
    except ImportError as error:
        raise MissingDependencyError('backend="obstore" needs obstore. Run: pip install obstore') from error
    _state["was_used"] = True
    options = _translated(options)
    # Its own time for a request is 30 s, the body included; ours look at what comes in.
    times = {"timeout": timedelta(days=1), "read_timeout": timedelta(seconds=4 * remote.retry.progress_seconds)}
    return fsspec_store(
        "s3" if scheme == "s3a" else scheme,
        **options | {"client_options": times | options.get("client_options", {})},
        retry_config={"max_retries": 0},
        skip_instance_cache=True,
    )


async def fetch_from_obstore(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get what is missing of `reply`, required to have the etag that is its identity; obstore checks the range.

    Raises:
        WrongReplyError: fewer or more bytes. OtherObjectError: another object. StalledError: it stopped coming.
        Or what obstore raises.
    """
    bucket, name = filesystem._split_path(key)
    first, last = reply.missing
    options: dict[str, Any] = {"range": (first, last + 1)}
    if reply.identity is not None:
        options["if_match"] = f'"{reply.identity}"'
    async with reply_within(4 * policy.progress_seconds):
        answer = await filesystem._construct_store(bucket).get_async(name, options=options)
    reply.check_identity(str(answer.meta.get("e_tag") or "").strip('"') or reply.identity)
    pieces = answer.stream(min_chunk_size=min(_PIECE_BYTES, policy.progress_bytes))
    await reply.receive(PieceStream(aiter(pieces)), policy)


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {**options, **(options.get("client_kwargs") or {})}
    found.pop("client_kwargs", None)
    found.pop("config_kwargs", None)
    for theirs, ours in _S3_NAMES.items():
        if theirs in found:
            found[ours] = found.pop(theirs)
    if "endpoint_url" in found:
        found["endpoint"] = found.pop("endpoint_url")
        if found["endpoint"].startswith("http://"):
            found["client_options"] = {**found.get("client_options", {}), "allow_http": True}
    if "region_name" in found:
        found["region"] = found.pop("region_name")
    if found.pop("anon", False):
        found["skip_signature"] = True
    return found


def _mark_child() -> None:
    _state["was_inherited"] = _state["was_used"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_child)
