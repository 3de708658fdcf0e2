"""Bytes of files, wherever they are: identity, tail, ranges.

In: paths (local or any fsspec URL) and storage options. Out: bytes, sizes and identities. Sync, thread-safe and
picklable; clients are opened lazily in each process and never inherited or pickled. Neighbouring ranges are
coalesced here, before any backend sees them. Foreign exceptions leave as errors of ours. Not for writing, and
no cache of bytes.
"""

from torch_dataloader_utils._store.coalesce import ReadPlan, coalesce
from torch_dataloader_utils._store.faults import has_credentials, redact
from torch_dataloader_utils._store.interface import (
    Buffer,
    CoalesceLimits,
    FileEntry,
    FileStat,
    Listing,
    Span,
    Store,
    Tail,
)
from torch_dataloader_utils._store.local import LocalStore
from torch_dataloader_utils._store.open import open_store
from torch_dataloader_utils._store.remote import FsspecStore
from torch_dataloader_utils._store.secret import Secret
from torch_dataloader_utils._store.sparse_file import SparseFile

__all__ = [
    "Buffer",
    "CoalesceLimits",
    "FileEntry",
    "FileStat",
    "FsspecStore",
    "Listing",
    "LocalStore",
    "ReadPlan",
    "Secret",
    "Span",
    "SparseFile",
    "Store",
    "Tail",
    "coalesce",
    "has_credentials",
    "open_store",
    "redact",
]
