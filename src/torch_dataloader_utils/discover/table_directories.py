"""Refusal of directories of Delta, Hudi and Iceberg tables: their files also hold rows that the tables do not have.

A table is known by the directory beside its data files that holds its log or metadata.
"""

import logging
import re
from collections.abc import Iterable, Iterator

from torch_dataloader_utils._store import (
    FileEntry,
    Listing,
    Store,
    StoreAccess,
    is_pattern,
    is_refusal,
    open_store,
    redact,
)
from torch_dataloader_utils.errors import LoaderError, UnsupportedFeatureError

_log = logging.getLogger(__name__)

_DELTA, _HUDI, _ICEBERG = "_delta_log", ".hoodie", "metadata"

# Path of a file of a table's log or metadata. Hudi also marks each directory of a partition.
_MARKER = re.compile(r"/(_delta_log|\.hoodie)(_partition_metadata)?(/|$)|/(metadata)/[^/]*\.metadata\.json(\.gz)?$")

# Number of directories above the named directory that may be the root of its table.
_MOST_LEVELS = 4

# Number of directories of a remote store that are listed for the files of a pattern.
_MOST_LISTINGS = 16

_ADVICE = {
    _DELTA: "a Delta table. Read it with open_loader, DeltaDataset or scan_delta, or --format delta in the shell",
    _HUDI: "a Hudi table. Export a snapshot of it as Parquet files, or as an Iceberg table",
    _ICEBERG: "an Iceberg table. Read it with open_loader, IcebergDataset or scan_iceberg, or --format iceberg in the "
    "shell",
}


def table_format(path: str, access: StoreAccess) -> str | None:
    """Return "delta" or "iceberg" if the path is the directory of such a table or an Iceberg metadata file, else None.

    One listing of a remote directory, one stat for each kind of a local directory. A web server is not asked.
    """
    if path.endswith((".metadata.json", ".metadata.json.gz")):
        return "iceberg"
    store, directory = open_store(path, access), path.rstrip("/")
    if not store.is_local and (is_pattern(path) or not _may_be_root(directory)):
        return None
    return {_DELTA: "delta", _ICEBERG: "iceberg"}.get(_kind_at(store, directory, "") or "")


def check_plain(store: Store, listings: Iterable[Listing]) -> None:
    """Raise UnsupportedFeatureError if a listed directory is, holds or lies in the directory of a table.

    Files that the user named themselves are not checked. The listing of a directory has everything below it. Above a
    directory, and above the files that a pattern matches, four levels are checked. In a remote store each directory
    takes one listing. There, only directories above "data" and above partitions such as "year=2024" are checked, and at
    most sixteen for a pattern: other directories cost no request.

        t/_delta_log/0.json beside t/year=2024/x.parquet      t, t/*/*.parquet, t?/**, t/year=2024, a parent of t: raise
        t/metadata/v1.metadata.json                           t and t/data raise, t/other does not
    """
    for listing in listings:
        if listing.directory:
            found = _below(listing) or (_above_matches if listing.is_pattern else _above)(store, listing)
            if found is not None:
                raise _refused(*found)


def _below(listing: Listing) -> tuple[str, str] | None:
    """Return the root and the kind of a table with a listed marker; None without a marker."""
    start = len(listing.directory)
    for entry in listing.entries:
        found = _MARKER.search(entry.path, start)
        if found is not None:
            return entry.path[: found.start()], found[1] or found[4]
    return None


def _above(store: Store, listing: Listing) -> tuple[str, str] | None:
    """Return the root and the kind of a table with a marker above the directory."""
    directory, _, child = listing.directory.rpartition("/")
    for _ in range(_MOST_LEVELS):
        if not _may_be_root(directory) or not (store.is_local or _is_part(child)):
            break
        if kind := _kind_at(store, directory, child):
            return directory, kind
        directory, _, child = directory.rpartition("/")
    return None


def _above_matches(store: Store, listing: Listing) -> tuple[str, str] | None:
    """Return the root and the kind of a table with a marker beside or above the files of a pattern.

    The listing of a pattern lacks the markers.
    """
    parents = {entry.path.rpartition("/")[0] for entry in listing.entries}
    places = sorted({place for parent in parents for place in _places(parent, store.is_local)})
    if not store.is_local and len(places) > _MOST_LISTINGS:
        text = "%s: %d of the %d directories of its files are searched for a table's metadata"
        _log.info(text, redact(listing.directory), _MOST_LISTINGS, len(places))
        places = places[:_MOST_LISTINGS]
    for directory, child in places:
        if kind := _kind_at(store, directory, child):
            return directory, kind
    return None


def _places(parent: str, is_local: bool) -> Iterator[tuple[str, str]]:
    """Yield directories that may be the root of the table of files in `parent`, each with its child on the way."""
    directory, child = parent, ""
    for _ in range(_MOST_LEVELS + 1):
        if not _may_be_root(directory):
            return
        above, _, name = directory.rpartition("/")
        if is_local or "=" not in name:
            yield directory, child
        if not (is_local or _is_part(name)):
            return
        directory, child = above, name


def _may_be_root(directory: str) -> bool:
    """Return whether a directory may be a table's root: not the root of a file system, nor on the web.

    A listing on the web is a page, and may be of another site.
    """
    is_web = directory.startswith(("http://", "https://"))
    return bool(directory.strip("/")) and not directory.endswith(":/") and not is_web


def _is_part(name: str) -> bool:
    """Return whether a directory's name says that it is a part of a table."""
    return name == "data" or "=" in name


def _kind_at(store: Store, directory: str, child: str) -> str | None:
    """Return the kind of table that has its root here, or None; child: Directory of the files, "" if unknown."""
    try:
        for kind in store.directories(directory, (_DELTA, _HUDI, _ICEBERG)):
            if kind != _ICEBERG:
                return kind
            if child in ("", "data") and any(map(_is_metadata, store.list_files(f"{directory}/{kind}").entries)):
                return kind
    except LoaderError as error:
        if not is_refusal(error):
            raise
        # A reader of the data may have no right to list the directories above it.
        _log.info("%s: not searched for a table's metadata: %s", redact(directory), error)
    return None


def _is_metadata(entry: FileEntry) -> bool:
    return _MARKER.search(entry.path) is not None


def _refused(root: str, kind: str) -> UnsupportedFeatureError:
    # The root of an Iceberg table also holds metadata in JSON and Avro, which are no data files.
    path = f"{redact(root)}/data" if kind == _ICEBERG else "it"
    return UnsupportedFeatureError(
        f"{redact(root)} is the directory of {_ADVICE[kind]}. Its files ({kind} is beside them) also hold rows that "
        f"were removed or replaced. To read them all the same, pass {path} with allow_bare_files=True."
    )
