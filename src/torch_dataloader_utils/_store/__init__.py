"""Read bytes of local and remote files: identity, tail, ranges.

In: paths (local or any fsspec URL) and storage options. Out: bytes, sizes and identities.

Promises: sync, thread-safe, picklable; clients are opened lazily in each process, never inherited or pickled.
Neighbouring ranges are coalesced before any backend sees them. Failed requests are retried where a retry can help, and
expired credentials are renewed. Errors of clients become errors of ours. Objects are written whole
(`FsspecStore.write`). A `HostCache` keeps bytes on this host's disk.

`interface` says what a store is; `local` and `remote` (any fsspec client) are the two stores, and `open_store` chooses.
A new remote store needs no more than an fsspec client. Reads that are pinned to an identity need a function in
`conditional_reads` and a line in `pending_reads`; the errors of the client may need a line in `diagnosis` and
`store_errors`, its URLs a line in `remote_url`. Another client library (as `obstore`) is opened in `client`.
"""

from torch_dataloader_utils._core.paths import check_no_password, has_credentials, redact
from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._runtime.waiting import request_threads
from torch_dataloader_utils._store.access import Credentials, RemoteOptions, Secret, StoreAccess
from torch_dataloader_utils._store.censor import censor, censored_text
from torch_dataloader_utils._store.diagnosis import is_refusal
from torch_dataloader_utils._store.foresight import Foresight
from torch_dataloader_utils._store.interface import (
    TAIL_BYTES,
    BegunTail,
    CoalesceLimits,
    FileEntry,
    FileStat,
    Listing,
    Store,
    Tail,
)
from torch_dataloader_utils._store.local import MOST_READ_BYTES, LocalStore, file_stat, open_to_read
from torch_dataloader_utils._store.remote import FsspecStore
from torch_dataloader_utils._store.retry import RetryPolicy
from torch_dataloader_utils._store.sparse_file import SparseFile
from torch_dataloader_utils._store.store_errors import dead_link
from torch_dataloader_utils._store.wildcards import is_pattern
from torch_dataloader_utils.cache.host_cache import HostCache

__all__ = [
    "MOST_READ_BYTES",
    "TAIL_BYTES",
    "BegunTail",
    "Buffer",
    "CoalesceLimits",
    "Credentials",
    "FileEntry",
    "FileStat",
    "Foresight",
    "FsspecStore",
    "HostCache",
    "Listing",
    "LocalStore",
    "RemoteOptions",
    "RetryPolicy",
    "Secret",
    "Span",
    "SparseFile",
    "Store",
    "StoreAccess",
    "Tail",
    "censor",
    "censored_text",
    "dead_link",
    "file_stat",
    "has_credentials",
    "is_local",
    "is_pattern",
    "is_refusal",
    "open_store",
    "open_to_read",
    "redact",
    "request_threads",
]


def open_store(path: str, access: StoreAccess | None = None) -> Store:
    """Return the store of `path`: a local path, file://, or any fsspec URL. Opens nothing yet.

    access: How remote files are reached; None for no options. Local files ignore it.

    Raises:
        ConfigError: the URL carries a password; it would end up in plans and logs.
    """
    if is_local(path):
        return LocalStore()
    check_no_password(path)
    return FsspecStore(access=access or StoreAccess())


def is_local(path: str) -> bool:
    """Return whether `LocalStore` reads the path: a plain path, or a file:// URL that is not chained."""
    return "://" not in path or path.partition("://")[0] in ("file", "local")
