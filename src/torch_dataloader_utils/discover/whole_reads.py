"""Results of reading all of a file, kept on this host: rows and keys of text, and the digest of the content.

They are kept for one version of a file. Of a local file, the version has the time of its last change (ctime) too, so
that a file that was overwritten and given its old time back has another version.
"""

from torch_dataloader_utils._store import FileStat, Store
from torch_dataloader_utils._store.identity import names_no_version
from torch_dataloader_utils._store.kept_files import scan_cache

# To read a smaller local file again takes no longer than a tick of the file system's clock.
_SMALLEST_LOCAL_BYTES = 8 << 20


def load_result(store: Store, path: str, stat: FileStat, what: str) -> bytes | None:
    """The result that this host keeps for this version of the file, if there is one; what: which result."""
    if not store.is_local:
        return store.kept_tail(path, _version(stat, what)) if _is_kept(store, stat) else None
    kept = scan_cache() if _is_kept(store, stat) else None
    return None if kept is None else kept.get(path, _version(stat, what))


def keep_result(store: Store, path: str, stat: FileStat, what: str, result: bytes) -> None:
    """Keep a result for this version of the file, for other processes of this host and the next job."""
    if not _is_kept(store, stat):
        return
    if not store.is_local:
        store.keep_tail(path, _version(stat, what), result)
    elif (kept := scan_cache()) is not None:
        kept.put(path, _version(stat, what), result)


def _version(stat: FileStat, what: str) -> str:
    return f"{stat.pin} {what}"


def _is_kept(store: Store, stat: FileStat) -> bool:
    return not names_no_version(stat.identity) and (not store.is_local or stat.size >= _SMALLEST_LOCAL_BYTES)
