"""Tokens of texts that this host keeps, so that an epoch, another length or a restart does not tokenize again.

The name of an entry is a digest of the rows that were tokenized, of the tokenizer and of the packages that it runs on:
whatever decides the tokens decides the name. Filters, deletes and changed files need no rule of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version

import pyarrow as pa

from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._observe.counters import count
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.cache.entries import GroupKey, TokensKey
from torch_dataloader_utils.cache.host_cache import HostCache, opened
from torch_dataloader_utils.cache.kept_values import token_cache

_LAYOUT = "tokens 1"
_PACKAGES = ("tokenizers", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTokens:
    """Tokens kept in one cache. Picklable; every failure of the cache costs tokenizing, never rows.

    cache: Cache of the data set, or else of the user. scope, token: Reader, and its schedule in the cache; see
    `StoreAccess`. is_marked: Whether the store marks reads of remote files in this cache.
    """

    cache: HostCache
    scope: str
    token: str
    is_marked: bool

    @classmethod
    def of(cls, access: StoreAccess) -> "KeptTokens | None":
        """Return the tokens kept for a data set; None where this user keeps nothing."""
        own = access.remote.cache
        cache = own or token_cache()
        if cache is None:
            return None
        return cls(cache=cache, scope=access.scope, token=access.token, is_marked=own is not None)

    def key(self, rows: pa.RecordBatch, tokenizer: str, outputs: Sequence[str], task: RowGroupTask) -> TokensKey:
        """Return the key of the tokens of these rows of one row group.

        rows: The columns that the tokenizer takes. tokenizer: Text that changes whenever the tokens change.
        """
        digest = blake2b("\0".join([_LAYOUT, tokenizer, *_versions(), *outputs]).encode(), digest_size=20)
        digest.update(_stream(rows))  # with dictionaries, which a batch by itself leaves out
        group = GroupKey(self.scope, task.path, task.identity, task.ordinal)
        return TokensKey(group, digest.hexdigest())

    def get(self, key: TokensKey, num_rows: int) -> list[pa.Array] | None:
        """Return the lists that were kept, one for each row; None if they are not there."""
        cache = opened(self.cache)
        found = cache.get(key)
        if not self.is_marked or "://" not in key.group.path:
            cache.mark(self.token, key.group)
        count("cache_events", "misses" if found is None else "hits")
        if found is None:
            return None
        try:
            with pa.ipc.open_stream(pa.py_buffer(found)) as stream:
                kept = stream.read_next_batch()
        except pa.ArrowException:  # of an Arrow without this compression
            return None
        return list(kept.columns) if kept.num_rows == num_rows else None

    def put(self, key: TokensKey, lists: Sequence[pa.Array]) -> None:
        """Keep lists, one for each row."""
        kept = pa.RecordBatch.from_arrays(list(lists), names=[str(number) for number in range(len(lists))])
        opened(self.cache).put(key, _stream(kept, "zstd" if pa.Codec.is_available("zstd") else None))


def _stream(rows: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    """Return the rows as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_batch(rows)
    return sink.getvalue()


def _versions() -> list[str]:
    """Return the versions of the packages that tokenizers run on, "" for one that is not installed."""
    return [_version(package) for package in _PACKAGES]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
