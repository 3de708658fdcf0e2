"""Refuses directories of Delta, Hudi and Iceberg tables: their files also hold rows that the tables do not have.

A table is known by the directory beside its data files that holds its log or metadata.
"""

import logging
import re
from collections.abc import Iterable

from torch_dataloader_utils._store import FileEntry, Listing, Store, redact
from torch_dataloader_utils.errors import LoaderError, UnsupportedFeatureError

_log = logging.getLogger(__name__)

_DELTA, _HUDI, _ICEBERG = "_delta_log", ".hoodie", "metadata"

# A file of a table's log or metadata. Hudi also marks each directory of a partition.
_MARKER = re.compile(r"/(_delta_log|\.hoodie)(_partition_metadata)?(/|$)|/(metadata)/[^/]*\.metadata\.json(\.gz)?$")

# Directories above the named one that may be the root of its table.
_MOST_LEVELS = 4

_ADVICE = {
    _DELTA: "a Delta table. Pass the files of one version, as deltalake.DeltaTable(path).file_uris() lists them, if it "
    "has no deletion vectors; else export it",
    _HUDI: "a Hudi table. Export a snapshot of it as Parquet files, or as an Iceberg table",
    _ICEBERG: "an Iceberg table. Read it with IcebergDataset or scan_iceberg, or --format iceberg in the shell",
}


def check_plain(store: Store, listings: Iterable[Listing]) -> None:
    """Raises UnsupportedFeatureError if a listed directory is, holds or lies in a directory of such a table.

    Files that were named themselves are not looked at. What lies below a directory is in its listing already. Above it,
    four levels are looked at; in a remote store only those above "data" and above partitions such as "year=2024", and
    above the wildcards of a pattern, with one listing each: other directories cost no request.

        t/_delta_log/0.json beside t/year=2024/x.parquet      t, t/*/*.parquet, t/year=2024, and what holds t, raise
        t/metadata/v1.metadata.json                           t and t/data raise, t/other does not
    """
    for listing in listings:
        if listing.directory:
            found = _below(listing) or _above(store, listing)
            if found is not None:
                raise _refused(*found)


def _below(listing: Listing) -> tuple[str, str] | None:
    """The root and the kind of a table whose marker is listed."""
    start = len(listing.directory)
    for entry in listing.entries:
        found = _MARKER.search(entry.path, start)
        if found is not None:
            return entry.path[: found.start()], found[1] or found[4]
    return None


def _above(store: Store, listing: Listing) -> tuple[str, str] | None:
    """The same for markers above the directory, or beside it if it is that of a pattern, whose listing lacks them."""
    directory, child = listing.directory, ""
    if directory.startswith(("http://", "https://")):  # a listing is a page there, and may be of another site
        return None
    for level in range(_MOST_LEVELS + 1):
        if level or listing.is_pattern:
            kind = _kind_at(store, directory, child)
            if kind is not None:
                return directory, kind
        directory, _, child = directory.rpartition("/")
        is_part = child == "data" or "=" in child
        if not directory.strip("/") or directory.endswith(":/") or not (store.is_local or is_part):
            break
    return None


def _kind_at(store: Store, directory: str, child: str) -> str | None:
    """Which table has its root here; child: through which directory the files lie, "" if not known."""
    try:
        for kind in store.directories(directory, (_DELTA, _HUDI, _ICEBERG)):
            if kind != _ICEBERG:
                return kind
            if child in ("", "data") and any(map(_is_metadata, store.list_files(f"{directory}/{kind}").entries)):
                return kind
    except LoaderError as error:
        # Who may read the data may not be allowed to list what lies above it.
        _log.debug("%s: not searched for a table's metadata: %s", redact(directory), error)
    return None


def _is_metadata(entry: FileEntry) -> bool:
    return _MARKER.search(entry.path) is not None


def _refused(root: str, kind: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{redact(root)} is the directory of {_ADVICE[kind]}. Its files ({kind} is beside them) also hold rows that "
        "were removed or replaced; allow_bare_files=True reads them all the same."
    )
