"""Data files that a user means by a path, directory, pattern or list."""

import logging
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch_dataloader_utils._core.arguments import check_flag
from torch_dataloader_utils._core.paths import codec_of, split_chain
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils._store import (
    FileEntry,
    Listing,
    Store,
    StoreAccess,
    dead_link,
    is_local,
    open_store,
    redact,
)
from torch_dataloader_utils.discover.table_directories import check_plain
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptFileError,
    NoDataError,
    SchemaError,
    UnsupportedFeatureError,
    of_type,
)
from torch_dataloader_utils.formats.file_format import Format
from torch_dataloader_utils.formats.registry import REMOTE_THREADS, all_formats, format_begun, named_format

_log = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]

# More bytes than any format begins with.
_BEGIN_BYTES = 16
_SQLITE = b"SQLite format 3"

_TABLE_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)+")

# How data in memory becomes a file, by the package of its type.
_WRITERS = {
    "datasets": "dataset.to_parquet({})",
    "pandas": "frame.to_parquet({})",
    "polars": "frame.write_parquet({})",
    "pyarrow": "pyarrow.parquet.write_table(table, {})",
}
# What is a path in objects of other libraries, by package and name of the type.
_PATHS_OF = {
    ("deltalake", "DeltaTable"): "table.table_uri",
    ("pyiceberg", "StaticTable"): "table.metadata_location",
    ("pyiceberg", "Table"): "table.metadata_location, or its name and catalog_config=",
    ("pyarrow", "FileSystemDataset"): "dataset.files",
}
_FRAMES = ("DataFrame", "LazyFrame", "Table", "RecordBatch", "Dataset", "DatasetDict", "IterableDataset")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFiles:
    """Data files, sorted by path, each once.

    root: Directory that the user named (only directories below it are partitions); "" if the user named no directory.
    searched: Directory below which all files were found, for a pattern the part before its first wildcard; "" for a
        file, and for a list of paths.
    sidecar: `_metadata` file of that directory, if any. source: Paths that the user named, for messages.
    """

    entries: tuple[FileEntry, ...]
    root: str
    searched: str
    sidecar: FileEntry | None
    source: str


def find_files(
    path: PathLike | Sequence[PathLike],
    access: StoreAccess,
    *,
    empty_has_no_rows: bool = False,
    allow_bare_files: bool = False,
) -> tuple[Store, DataFiles]:
    """Return the store and the data files of a file, a directory (recursive), a pattern, or a list of them.

    Some files are left out, each with a debug log: hidden files (a name below the directory starts with "." or "_",
    unless it is a partition "_key=value"), and empty files that mark directories in object stores, or that come from a
    listing and have no ending of a data file. A file that is named twice counts once.

    empty_has_no_rows: Whether all empty files are left out, as for text formats. In other formats an empty data file
        was not written completely, and its scan raises an error.
    allow_bare_files: Whether directories of Delta, Hudi and Iceberg tables are read as any other directory.

    Raises:
        UnsupportedFeatureError: see `check_plain`.
        NoDataError: no file is found or left; or a link leads nowhere, unless it is hidden.
        ConfigError: the list mixes stores.
        ConfigTypeError: not a path.
    """
    named = _named(path)
    source = redact(named[0]) if len(named) == 1 else f"{redact(named[0])} and {len(named) - 1} more"
    places = sorted({_place(each) for each in named})
    if len(places) > 1:
        raise ConfigError(f"{source}: the list mixes stores ({', '.join(places)}). Scan each alone.")
    store = open_store(named[0], access)
    listings = _listings(store, named)
    if not check_flag("allow_bare_files", allow_bare_files):
        check_plain(store, listings)
    found: dict[str, FileEntry] = {}
    for listing in listings:
        for link in listing.dead_links:
            if not _is_hidden(link, listing):
                raise dead_link(link)
        for entry in listing.entries:
            if entry.path in found:
                _log.warning("%s is named more than once; it is read once", redact(entry.path))
            elif _is_data(entry, listing, empty_has_no_rows):
                found[entry.path] = entry
    if not found:
        if not any(each.directory for each in listings):
            raise NoDataError(f"{source}: empty (0 bytes), so there are no rows here. Check the path.")
        if not (left_out := sum(len(each.entries) + len(each.dead_links) for each in listings)):
            raise NoDataError(f"{source}: this directory is empty. Check the path.")
        raise NoDataError(
            f"{source}: no data file here; {left_out} hidden or empty files were left out. Check the path; the debug "
            f"log of {__name__} names them."
        )
    root, sidecar = _root(listings)
    entries = tuple(found[name] for name in sorted(found))
    searched = listings[0].directory if len(listings) == 1 else ""
    return store, DataFiles(entries=entries, root=root, searched=searched, sidecar=sidecar, source=source)


def _listings(store: Store, named: Sequence[str]) -> list[Listing]:
    if store.is_local or len(named) == 1:
        try:
            return [store.list_files(each) for each in named]
        except NoDataError as error:
            if len(named) > 1 or not is_table_name(named[0]):
                raise
            hint = "If it is a table of an Iceberg catalog, call open_loader with catalog_config=."
            raise NoDataError(f"{error} {hint}") from error
    return map_watched(store.list_files, named, threads=min(REMOTE_THREADS, len(named)), name="tdu-list")


def _root(listings: Sequence[Listing]) -> tuple[str, FileEntry | None]:
    if len(listings) > 1 or listings[0].is_pattern:
        return "", None
    directory = listings[0].directory
    sidecar = (entry for entry in listings[0].entries if entry.path == f"{directory}/_metadata")
    return directory, next(sidecar, None)


def find_format(store: Store, files: DataFiles) -> Format:
    """Return the format of the files: the format that their names end in, or else by which the first one begins.

    Files with other endings do not count here; they are scanned like all others.

    Raises:
        ConfigError: names of several formats, or a first file that does not show its format. StoreError: see `Store`.
    """
    firsts: dict[Format, str] = {}
    for entry in files.entries:
        if (named := named_format(entry.path)) is not None:
            firsts.setdefault(named, entry.path)
    if len(firsts) > 1:
        seen = ", ".join(f"{each} ({redact(path)})" for each, path in firsts.items())
        raise ConfigError(
            f"{files.source} has files of {len(firsts)} formats: {seen}. A loader reads one format: choose files by a "
            f'pattern, such as "{_pattern(files, next(iter(firsts.values())))}".'
        )
    if firsts:
        return next(iter(firsts))
    first = files.entries[0]
    (begin,) = store.ranges(first.path, [(0, min(first.stat.size, _BEGIN_BYTES))])
    if bytes(begin).startswith(_SQLITE):
        raise ConfigError(
            f"{redact(first.path)} is a database of SQLite. If it is the catalog of Iceberg tables, pass the name of a "
            f'table, "db.table", and catalog_config={{"type": "sql", "uri": "sqlite:///{redact(first.path)}"}}.'
        )
    if (found := format_begun(bytes(begin))) is None:
        raise ConfigError(
            f"{redact(first.path)} does not show its format, neither by the ending of its name nor by its first bytes. "
            f'If it is one of {", ".join(map(str, all_formats()))}, pass format=, such as format="csv"; other kinds of '
            "files have to be written as one of these."
        )
    return found


def is_table_name(path: str) -> bool:
    """Return whether the text looks like the name of a table in a catalog, rather than like a file: "db.events"."""
    return _TABLE_NAME.fullmatch(path) is not None and named_format(path) is None


def _check_no_data(value: object) -> None:
    """Raise ConfigTypeError for data in memory, or an open table, where a path is wanted."""
    package, name = type(value).__module__.partition(".")[0], type(value).__name__
    if (package, name) in _PATHS_OF:
        raise ConfigTypeError(f"path is a {package} {name}, and a loader reads files: pass {_PATHS_OF[package, name]}.")
    if isinstance(value, Mapping) or (package in _WRITERS and name in _FRAMES):
        kind = of_type(value) if package == "builtins" else f"a {package} {name}"
        how = _WRITERS.get(package, "pyarrow.parquet.write_table(pyarrow.table(...), {})").format('"data.parquet"')
        raise ConfigTypeError(
            f"path is {kind}, and a loader reads files. Write it to a file, as by {how}, and pass the path of the file."
        )


def _named(path: PathLike | Sequence[PathLike]) -> list[str]:
    _check_no_data(path)
    many = list(path) if isinstance(path, Iterable) and not isinstance(path, (str, bytes, os.PathLike)) else [path]
    if not many:
        raise NoDataError("the list of paths is empty; name at least one file, directory or pattern.")
    texts = [os.fspath(each) if isinstance(each, (str, os.PathLike)) else each for each in many]
    for text in texts:
        _check_no_data(text)
        if not isinstance(text, str):
            raise ConfigTypeError(f"a path is a str or os.PathLike, or a list of those; got {type(text).__name__}.")
        if not text:
            raise ConfigError("a path is empty; name a file, directory or pattern.")
    return [os.path.expanduser(text) if text.startswith("~") else text for text in texts]  # noqa: PTH111 - URLs too


def _place(path: str) -> str:
    if is_local(path):
        return "local files"
    target = split_chain(path)[-1]
    return "local files behind chained URLs" if is_local(target) else target.partition("://")[0]


def _is_data(entry: FileEntry, listing: Listing, empty_has_no_rows: bool) -> bool:
    if _is_hidden(entry.path, listing):
        return False
    return entry.stat.size > 0 or _is_unwritten(entry, listing, empty_has_no_rows)


def _is_hidden(path: str, listing: Listing) -> bool:
    if not listing.directory:
        return False  # the user named it, so it is meant
    below = path.removeprefix(listing.directory).strip("/").split("/")
    is_hidden = any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in below)
    if is_hidden:
        _log.debug("%s is hidden; left out", redact(path))
    return is_hidden


def _is_unwritten(entry: FileEntry, listing: Listing, empty_has_no_rows: bool) -> bool:
    """Return whether an empty file should have data.

    It should if the user named it, or if its ending says so and it marks no directory.
    """
    # Only text may have no bytes. Writers leave empty files with other names (Hive, for a bucket without rows).
    named = named_format(entry.path)
    is_meant = not listing.directory or (named is not None and not named.is_text)
    if is_meant and not empty_has_no_rows and not _marks_directory(entry, listing):
        return True
    _log.debug("%s is empty; left out", redact(entry.path))
    return False


def _marks_directory(entry: FileEntry, listing: Listing) -> bool:
    """Return whether other files lie below its path: "trips.parquet" beside "trips.parquet/part-0.parquet"."""
    inside = f"{entry.path}/"
    first = bisect_left(listing.entries, inside, key=lambda each: each.path)
    return first < len(listing.entries) and listing.entries[first].path.startswith(inside)


@contextmanager
def other_files_named(files: DataFiles, file_format: Format) -> Iterator[None]:
    """Add a hint to errors about bad files: some files do not look like data, and a pattern leaves them out."""
    try:
        yield
    except (CorruptFileError, SchemaError, UnsupportedFeatureError) as error:
        hint = _pattern_hint(files, file_format)
        if not hint:
            raise
        raise type(error)(f"{error} {hint}") from error


def _pattern_hint(files: DataFiles, file_format: Format) -> str:
    """Return advice with a pattern for the files with the format's ending; "" if all files or no files have it.

    d/README.md beside d/0.parquet      ... such as "d/*.parquet"; below d/year=2024, "d/**/*.parquet"
    """
    paths = [entry.path for entry in files.entries]
    fitting = [path for path in paths if named_format(path) == file_format]
    other = next((path for path in paths if named_format(path) != file_format), None)
    if other is None or not fitting:
        return ""
    return f'If {redact(other)} is not data, choose the files by a pattern, such as "{_pattern(files, fitting[0])}".'


def _pattern(files: DataFiles, path: str) -> str:
    """Return a pattern for the files with the ending of this one."""
    pattern = "*" + _ending(path)
    if files.root:
        below = path.removeprefix(files.root).strip("/")
        pattern = f"{files.source.rstrip('/')}/{'**/' if '/' in below else ''}{pattern}"
    return pattern


def _ending(path: str) -> str:
    """Return the ending of a name with the ending of its codec: ".jsonl.gz"."""
    stem, _, last = path.rpartition(".")
    return f".{stem.rpartition('.')[2]}.{last}" if codec_of(path) else f".{last}"
