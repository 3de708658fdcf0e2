"""Open obstore's clients, through its fsspec store; never in a process that forks afterwards.

obstore runs its own tokio runtime. A forked child inherits the locks of the runtime without its threads: any use in the
child hangs, and the parent may hang too. A forked child therefore raises ConfigError instead.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

from torch_dataloader_utils._store.access import RemoteOptions
from torch_dataloader_utils._store.censor import censored_text
from torch_dataloader_utils._store.conditional_reads import PieceStream, RangeReply
from torch_dataloader_utils._store.retry import RetryPolicy
from torch_dataloader_utils.errors import ConfigError, MissingDependencyError

# s3fs's names, so that one set of storage options serves both.
_S3_NAMES = {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token"}

# Options of obstore's HTTP client: obstore panics if the options of a store include one.
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)

# Size of the pieces of a body that obstore hands over; a piece takes half a millisecond, and has to come in
# `progress_seconds`.
_PIECE_BYTES = 256 << 10

# s3fs's limit for a page of a listing that does not come.
_MOST_SILENT_SECONDS = 15.0

_SLOTS = "torch_dataloader_utils_slots"

_state = {"was_used": False, "was_inherited": False}


def open_obstore(scheme: str, options: Mapping[str, Any], remote: RemoteOptions) -> Any:
    """Return obstore's fsspec store for a scheme.

    options: s3fs's key, secret, token, anon, endpoint_url and client_kwargs are translated; all others go to obstore.
        credential_provider is a function that returns credentials.

    Raises:
        MissingDependencyError: obstore is not installed.
        ConfigError: an option that obstore does not know, or a value that it does not accept; or this process was
            forked from a process that had used obstore.
    """
    if was_inherited():
        raise ConfigError(
            "obstore was used before this process was forked from another, and would hang in it. Start the workers "
            'with multiprocessing_context="forkserver" (or "spawn"), use num_workers=0, or backend="fsspec".'
        )
    try:
        fsspec_store: Any = import_module("obstore.fsspec").FsspecStore
    except ImportError as error:
        raise MissingDependencyError('backend="obstore" needs obstore. Run: pip install obstore') from error
    _state["was_used"] = True
    # obstore's own limit for a request is 30 s, the body included; our limits watch the progress.
    progress_seconds = remote.retry.progress_seconds
    silent_seconds = max(progress_seconds, min(_MOST_SILENT_SECONDS, 4 * progress_seconds))
    times = {"timeout": timedelta(days=1), "read_timeout": timedelta(seconds=silent_seconds)}
    with _known_options(scheme, options):
        options = _translated(options)
        _check_none_misplaced(options)
        filesystem = fsspec_store(
            "s3" if scheme == "s3a" else scheme,
            **options | {"client_options": times | options.get("client_options", {})},
            retry_config={"max_retries": 0},
            skip_instance_cache=True,
        )
        # obstore checks options when a bucket is used first: any name will do.
        filesystem._construct_store("bucket")
        setattr(filesystem, _SLOTS, asyncio.Semaphore(remote.connections))
    return filesystem


def _check_none_misplaced(options: Mapping[str, Any]) -> None:
    misplaced = sorted(_CLIENT_OPTIONS.intersection(options))
    if misplaced:
        raise ConfigError(
            f'{", ".join(misplaced)} of storage_options: these are options of the HTTP client of backend="obstore". '
            f"Pass storage_options={{'client_options': {{'{misplaced[0]}': ...}}, ...}}."
        )


@contextmanager
def _known_options(scheme: str, names: Iterable[Any]) -> Iterator[None]:
    """Turn errors about options into ConfigError; other errors come again when the store is used."""
    errors: Any = import_module("obstore.exceptions")
    try:
        with no_panic():
            yield
    except ConfigError:
        raise
    except (errors.BaseError, TypeError, ValueError, PanicError) as error:
        is_own = isinstance(error, errors.BaseError) and not isinstance(error, errors.UnknownConfigurationKeyError)
        if is_own and "not accept any configuration" not in str(error):
            return
        raise ConfigError(
            f'{scheme}://: backend="obstore" does not take one of the storage_options {", ".join(map(str, names))} '
            f"({censored_text(str(error)).rstrip('.')}). Pass key, secret, token, endpoint_url and anon as for s3fs, "
            "options of obstore's store for this scheme, and options of its HTTP client as client_options={...}."
        ) from error


class PanicError(Exception):
    """A client written in Rust has panicked; the message is the panic's."""


@contextmanager
def no_panic() -> Iterator[None]:
    """Turn a panic of Rust, which is no Exception, into a PanicError, so that handlers of errors catch it."""
    try:
        yield
    except BaseException as error:
        # Each extension module has its own class, which cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(str(error)) from error


async def fetch_from_obstore(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get the missing bytes of `reply`, on condition that the etag is the identity; obstore checks the range.

    Raises:
        WrongReplyError: fewer or more bytes. OtherObjectError: another object. StalledError: the reply stopped.
        Any other error of obstore.
    """
    # `_split_path` parses the key as a URL, which takes as long as all else here.
    bucket, name = filesystem._split_path(key) if "://" in key else key.partition("/")[::2]
    first, last = reply.missing
    options: dict[str, Any] = {"range": (first, last + 1)}
    if reply.identity is not None:
        options["if_match"] = f'"{reply.identity}"'
    async with getattr(filesystem, _SLOTS):  # obstore has no limit of its own
        async with reply.begun(policy):
            answer = await filesystem._construct_store(bucket).get_async(name, options=options)
        reply.check_identity(str(answer.meta.get("e_tag") or "").strip('"') or reply.identity)
        pieces = answer.stream(min_chunk_size=min(_PIECE_BYTES, policy.progress_bytes))
        await reply.receive(PieceStream(aiter(pieces)), policy)


async def find_object(filesystem: Any, key: str) -> dict[str, Any] | None:
    """Return the entry of an object as `filesystem.info` does; None if there is no object.

    `info` would also list the directory of this name.
    """
    bucket, name = filesystem._split_path(key)
    try:
        found = await filesystem._construct_store(bucket).head_async(name)
    except FileNotFoundError:
        return None
    return {**found, "name": f"{bucket}/{found['path']}", "type": "file"}


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {**options, **(options.get("client_kwargs") or {})}
    found.pop("client_kwargs", None)
    found.pop("config_kwargs", None)
    for theirs, ours in _S3_NAMES.items():
        if theirs in found:
            found[ours] = found.pop(theirs)
    if "endpoint_url" in found:
        found["endpoint"] = found.pop("endpoint_url")
        if str(found["endpoint"]).startswith("http://"):
            found["client_options"] = {**found.get("client_options", {}), "allow_http": True}
    if "region_name" in found:
        found["region"] = found.pop("region_name")
    if found.pop("anon", False):
        found["skip_signature"] = True
    return found


def was_inherited() -> bool:
    """Return whether this process was forked from a process that had used obstore, so that obstore would hang."""
    return _state["was_inherited"]


def _mark_child() -> None:
    _state["was_inherited"] = _state["was_used"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_child)
