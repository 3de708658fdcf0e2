"""Refuses directories of Delta, Hudi and Iceberg tables: their files also hold rows that the tables do not have.

A table is known by the directory beside its data files that holds its log or metadata.
"""

import logging
import re
from collections.abc import Iterable, Iterator

from torch_dataloader_utils._store import FileEntry, Listing, Store, is_refusal, redact
from torch_dataloader_utils.errors import LoaderError, UnsupportedFeatureError

_log = logging.getLogger(__name__)

_DELTA, _HUDI, _ICEBERG = "_delta_log", ".hoodie", "metadata"

# A file of a table's log or metadata. Hudi also marks each directory of a partition.
_MARKER = re.compile(r"/(_delta_log|\.hoodie)(_partition_metadata)?(/|$)|/(metadata)/[^/]*\.metadata\.json(\.gz)?$")

# Directories above the named one that may be the root of its table.
_MOST_LEVELS = 4

# Directories of a remote store that are listed for the files of a pattern.
_MOST_LISTINGS = 16

_ADVICE = {
    _DELTA: "a Delta table. Read it with DeltaDataset or scan_delta, or --format delta in the shell",
    _HUDI: "a Hudi table. Export a snapshot of it as Parquet files, or as an Iceberg table",
    _ICEBERG: "an Iceberg table. Read it with IcebergDataset or scan_iceberg, or --format iceberg in the shell",
}


def check_plain(store: Store, listings: Iterable[Listing]) -> None:
    """Raises UnsupportedFeatureError if a listed directory is, holds or lies in a directory of such a table.

    Files that were named themselves are not looked at. What lies below a directory is in its listing already. Above it
    four levels are looked at, and above the files that a pattern matches. In a remote store that takes one listing for
    each directory, so only those above "data" and above partitions such as "year=2024" are looked at there, and for a
    pattern no more than sixteen: other directories cost no request.

        t/_delta_log/0.json beside t/year=2024/x.parquet      t, t/*/*.parquet, t?/**, t/year=2024, what holds t: raise
        t/metadata/v1.metadata.json                           t and t/data raise, t/other does not
    """
    for listing in listings:
        if listing.directory:
            found = _below(listing) or (_above_matches if listing.is_pattern else _above)(store, listing)
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
    """The same for markers above the directory."""
    directory, _, child = listing.directory.rpartition("/")
    for _ in range(_MOST_LEVELS):
        if not _may_be_root(directory) or not (store.is_local or _is_part(child)):
            break
        if kind := _kind_at(store, directory, child):
            return directory, kind
        directory, _, child = directory.rpartition("/")
    return None


def _above_matches(store: Store, listing: Listing) -> tuple[str, str] | None:
    """The same for markers beside and above the files of a pattern, whose listing lacks them."""
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
    """Directories that may be the root of the table of files in `parent`, each with the child that leads to them."""
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
    """Not the root of a file system, nor on the web: a listing is a page there, and may be of another site."""
    is_web = directory.startswith(("http://", "https://"))
    return bool(directory.strip("/")) and not directory.endswith(":/") and not is_web


def _is_part(name: str) -> bool:
    """Whether a directory's name says that it is a part of a table."""
    return name == "data" or "=" in name


def _kind_at(store: Store, directory: str, child: str) -> str | None:
    """The kind of table that has its root here, or None; child: the directory of the files, "" if not known."""
    try:
        for kind in store.directories(directory, (_DELTA, _HUDI, _ICEBERG)):
            if kind != _ICEBERG:
                return kind
            if child in ("", "data") and any(map(_is_metadata, store.list_files(f"{directory}/{kind}").entries)):
                return kind
    except LoaderError as error:
        if not is_refusal(error):
            raise
        # Who may read the data may not be allowed to list what lies above it.
        _log.info("%s: not searched for a table's metadata: %s", redact(directory), error)
    return None


def _is_metadata(entry: FileEntry) -> bool:
    return _MARKER.search(entry.path) is not None


def _refused(root: str, kind: str) -> UnsupportedFeatureError:
    # The root of an Iceberg table holds metadata in JSON and Avro too, which are no data files.
    path = f"{redact(root)}/data" if kind == _ICEBERG else "it"
    return UnsupportedFeatureError(
        f"{redact(root)} is the directory of {_ADVICE[kind]}. Its files ({kind} is beside them) also hold rows that "
        f"were removed or replaced. To read them all the same, pass {path} with allow_bare_files=True "
        "(--allow-bare-files in the shell)."
    )
