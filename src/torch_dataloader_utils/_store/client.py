"""Open fsspec's storage clients, configured so that only our retries and limits apply; one client a process."""

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from threading import Lock
from typing import Any

import fsspec

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._store.access import RemoteOptions, StoreAccess
from torch_dataloader_utils._store.censor import censor, censored_text
from torch_dataloader_utils._store.default_client import (
    S3_SCHEMES,
    NotHonouredError,
    has_s3fs,
    log_fallback,
    obstore_options,
    uses_obstore,
)
from torch_dataloader_utils._store.hub import CLIENT as HUB_CLIENT
from torch_dataloader_utils._store.obstore import open_obstore
from torch_dataloader_utils._store.process_local import ProcessLocal
from torch_dataloader_utils._store.store_errors import store_error, unknown_scheme
from torch_dataloader_utils.errors import ConfigError

_HTTP_SCHEMES = ("http", "https")
# For a whole request, as in aiohttp; for a server that accepts no connection, enough for four tries of TCP.
_MOST_HTTP_SECONDS = 300
_HTTP_CONNECT_SECONDS = 15

# Clients by the package of their class, so that no client has to be imported.
_S3_CLIENT = "s3fs"
_BUCKET_CLIENTS = (_S3_CLIENT, "gcsfs", "adlfs", "obstore")

# All commands share one connection, so two threads would get each other's replies.
_ONE_CONNECTION_CLIENT = "fsspec.implementations.ftp"
_CLIENT_LOCK = "torch_dataloader_utils_lock"


def open_client(path: str, scheme: str, access: StoreAccess, *, renews: bool = False) -> Any:
    """Return a new fsspec file system for the URL `path`. A shared instance would be reconfigured for the user too.

    renews: Whether it replaces a client whose credentials have expired.

    Raises:
        ConfigError: the scheme is unknown. MissingDependencyError: its client is not installed.
        StoreError: the credentials function failed.
    """
    options = access.client_options(renews=renews)
    handled = sys.exception()
    try:
        return _open(path, scheme, options, access.remote)
    except Exception as error:
        censor(error, options, handled=handled)
        raise


def _open(path: str, scheme: str, options: Mapping[str, Any], remote: RemoteOptions) -> Any:
    if uses_obstore(scheme, remote.backend):
        if remote.backend == "obstore" or not has_s3fs():
            return open_obstore(scheme, options, remote)
        try:
            return open_obstore(scheme, obstore_options(options), remote)
        except (NotHonouredError, ConfigError) as error:
            log_fallback(redact(path), censored_text(str(error), options))
    if scheme in S3_SCHEMES:
        options = _s3_options(options, remote)
    if scheme in _HTTP_SCHEMES:
        options = _http_options(options, remote)
    try:
        filesystem = fsspec.core.url_to_fs(path, **options, skip_instance_cache=True)[0]
    except ImportError as error:
        raise store_error(error, path, "open") from error
    except ValueError as error:
        if "Protocol not known" in str(error):
            raise unknown_scheme(path, scheme) from error
        raise
    if is_s3(filesystem):
        filesystem.retries = 1
    behind_caches = getattr(filesystem, "fs", filesystem)
    if _ONE_CONNECTION_CLIENT in (type(filesystem).__module__, type(behind_caches).__module__):
        setattr(filesystem, _CLIENT_LOCK, Lock())
    return filesystem


def exclusive_use(filesystem: Any) -> AbstractContextManager[Any]:
    """Return a context to hold while a thread uses the client; others wait only if it serves one thread at a time."""
    lock: AbstractContextManager[Any] = getattr(filesystem, _CLIENT_LOCK, nullcontext())
    return lock


def is_s3(filesystem: Any) -> bool:
    """Return whether this is s3fs, which supports uploads in parts."""
    return _package(filesystem) == _S3_CLIENT


def is_obstore(filesystem: Any) -> bool:
    """Return whether this is obstore's client."""
    return _package(filesystem) == "obstore"


def is_hub(filesystem: Any) -> bool:
    """Return whether this is the client of the Hugging Face Hub, where revisions move and commits do not."""
    return _package(filesystem) == HUB_CLIENT


def has_buckets(filesystem: Any) -> bool:
    """Return whether this is a client of an object store, which has no directories of its own."""
    return _package(filesystem) in _BUCKET_CLIENTS


def _package(filesystem: Any) -> str:
    return type(filesystem).__module__.partition(".")[0]


def _s3_options(options: Mapping[str, Any], remote: RemoteOptions) -> dict[str, Any]:
    # s3fs and botocore both retry by themselves, botocore with up to a minute of waiting; one layer of three is enough.
    config = {"max_pool_connections": remote.connections, "retries": {"total_max_attempts": 1}}
    return {**options, "config_kwargs": config | dict(options.get("config_kwargs") or {})}


def _http_options(options: Mapping[str, Any], remote: RemoteOptions) -> dict[str, Any]:
    if "get_client" in options:
        return dict(options)  # the function makes the session, with its own timeouts
    # By default, a request without an answer takes five minutes, and is not retried.
    timeout = import_module("aiohttp").ClientTimeout(
        _MOST_HTTP_SECONDS, sock_connect=_HTTP_CONNECT_SECONDS, sock_read=4 * remote.retry.progress_seconds
    )
    return {**options, "client_kwargs": {"timeout": timeout} | dict(options.get("client_kwargs") or {})}


# A process pool unpickles its store for every file that it scans, and must not connect again each time.
_MOST = 16

Key = tuple[str, ...]


class ClientTable:
    """Clients by store. The least recently used client is dropped; it closes once no thread uses it.

    without_obstore: Stores that obstore could not read in this process, though it is the default. reached: Stores that
    have answered.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: OrderedDict[Key, ProcessLocal[Any]] = OrderedDict()
        self.without_obstore: set[Key] = set()
        self.reached: set[Key] = set()

    def of(self, key: Key) -> ProcessLocal[Any]:
        """Return the slot of the client for stores with this key."""
        with self._lock:
            found = self._clients.pop(key, None)
            self._clients[key] = client = ProcessLocal() if found is None else found
            if len(self._clients) > _MOST:
                self._clients.popitem(last=False)
        return client

    def unlock(self) -> None:
        """Replace the lock in a forked child, where the thread that held the lock may not exist."""
        self._lock = threading.Lock()


clients = ClientTable()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=clients.unlock)
