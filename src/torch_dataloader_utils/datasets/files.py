"""`FileSource`: place of the files of a data set."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch_dataloader_utils._core.arguments import check_flag
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.option_fields import Checked, option
from torch_dataloader_utils._core.paths import split_chain
from torch_dataloader_utils._core.splits import DataFileInfo
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils._store import Credentials, LocalStore, RemoteOptions, StoreAccess, is_local, redact
from torch_dataloader_utils._store.wildcards import before_wildcard, is_pattern
from torch_dataloader_utils.datasets.options import CREDENTIALS_TEXT, REMOTE_TEXT, ScanOptions
from torch_dataloader_utils.discover.hive import Hive, check_partitioning
from torch_dataloader_utils.discover.paths import PathLike
from torch_dataloader_utils.discover.scan import scan_paths
from torch_dataloader_utils.formats.file_scan import Missing, ScanRequest, check_missing
from torch_dataloader_utils.formats.registry import AUTO, format_wanted

Files = Sequence[DataFileInfo | PathLike] | PathLike


@dataclass(frozen=True, kw_only=True)
class FileSource(Checked):
    """Place of data files, and how they are read; see `Source`."""

    has_versions: ClassVar[bool] = False

    path: Files = option(
        MISSING,
        "File, directory (searched recursively), pattern, or a list of these; local or any fsspec URL. DataFileInfo of "
        "a split strategy is accepted too.",
        tier="everyday",
    )
    format: str = option(
        "parquet",
        '"parquet", "orc", "csv", "json" (or "jsonl", the same: one object per line) or "arrow"; for CSV without '
        'commas "tsv", "csv-semicolon" or "csv-pipe"; "auto": by the names of the files, or their first '
        "bytes. For CSV and JSON lines, `scan_files` sets the types (schema=) and the size of row groups (text=); pass "
        "its result as inventory.",
        tier="everyday",
    )
    storage_options: Mapping[str, Any] | None = option(
        None, "Options of the storage client; never logged, saved or put into a state.", tier="everyday", is_secret=True
    )
    partitioning: Literal["hive", "auto"] | Hive | None = option(
        None,
        '"hive" reads columns from directory names such as year=2024: integers if all values of a column are, else '
        'text. Hive(types={"code": "string"}) sets types. "auto": "hive" if there are such directories. '
        "Where files have a column of this name too, batches have the values of the directories.",
        check_partitioning,
    )
    remote: RemoteOptions | None = option(None, REMOTE_TEXT)
    inventory: Inventory | None = option(
        None,
        "Result of `scan_files` or `load_inventory`; then nothing is listed or scanned. The loader warns if its "
        "files are not in `path`.",
        check_inventory,
    )
    missing: Missing = option(
        "error",
        '"null" accepts files with different columns: a column that a file lacks is null there (see nulls), and one '
        "with several types (int32 and int64) gets the widest. The metadata of all files is read, and CSV needs "
        'scan_files(schema=). "error": all files need the same types of all columns, or of the columns that are read if'
        " columns= names some; JSON lines may differ.",
        check_missing,
    )
    credentials: Credentials | None = option(None, CREDENTIALS_TEXT, tier="rare", is_secret=True)
    allow_bare_files: bool = option(
        False,
        "Read the directory of a Delta, Hudi or Iceberg table as plain files, including deleted rows, instead of an "
        "UnsupportedFeatureError. Files that you name yourself are always read.",
        check_flag,
        tier="rare",
    )

    @property
    def is_remote(self) -> bool:
        """See Source."""
        return not all(map(is_local, _names(self.path)))

    def access(self) -> StoreAccess:
        """See Source."""
        return StoreAccess.of(self.storage_options, self.credentials, self.remote)

    def check_given(self, inventory: Inventory) -> None:
        """Warn if files of the inventory lie outside of `path`."""
        _check_place(inventory, self.path)

    def scan(self, options: ScanOptions, share: Share, on_progress: OnProgress | None) -> tuple[Inventory, StoreAccess]:
        """See Source. Files have no version: the processes compare their inventories."""
        access, path = self.access(), self.path
        paths = path if isinstance(path, str) or not isinstance(path, Sequence) else [_path(file) for file in path]
        request = ScanRequest(
            format=format_wanted(self.format),
            columns=None if options.columns is None else tuple(options.columns),
            row_filter=options.filters,
            count_rows=bool(options.count_rows),
            on_error=options.on_error,
            missing=self.missing,
            identity=options.identity,
        )
        found = share.together(
            lambda: scan_paths(
                paths,
                access,
                request,
                finds_format=self.format == AUTO,
                partitioning=self.partitioning,
                allow_bare_files=self.allow_bare_files,
                on_progress=on_progress,
            )
        )
        share.check_alike(found)
        return found, access

    def newest(self, read: Inventory) -> "FileSource":  # noqa: ARG002  # see Source
        """Return the source of the same files, directories or patterns, to be listed again."""
        return replace(self, inventory=None)


def _check_place(inventory: Inventory, files: Files) -> None:
    """Warn if files of the inventory lie outside of the paths that the caller names.

    No warning if the caller names nothing, a table, or the path from which the inventory was made: files of an `hf://`
    path, for example, have the commit in their names.
    """
    named = _names(files)
    paths = inventory.files.paths
    if not named or inventory.snapshot or not len(paths) or inventory.source in map(redact, named):
        return
    for end in (paths[0], paths[len(paths) - 1]):  # they are sorted
        if not any(lies_in(end, path) for path in named):
            warn_user(
                f"{redact(named[0])} is not what is read: inventory= is, and has files elsewhere, such as "
                f"{redact(end)}. Name the path that it was made of ({inventory.source}), or leave inventory= out to "
                "read this one."
            )
            return


def lies_in(file: str, path: str) -> bool:
    """Return whether a file of an inventory is at the path or below it. A pattern counts up to its first wildcard.

    Links and mounts that lead to the same local directory are that directory. Schemes and chains of URLs do not count:
    they have several spellings (s3, s3a).

    /data/trips/a.parquet       /data/trips, /data/trips/*.parquet, file:///data        True
                                /data/tri, s3://data/other                              False
    """
    place = _place(path)
    if f"{_place(file)}/".startswith(f"{place}/"):
        return True
    return is_local(file) and is_local(path) and _leads_to(place, file)


def _place(path: str) -> str:
    """Return the absolute local path, or a slash and the URL from its bucket or host on, up to the first wildcard.

    The place has no slash at its end, so the root is empty.
    """
    if is_local(path):
        place = os.path.abspath(os.path.expanduser(LocalStore().local_path(path)))  # noqa: PTH100, PTH111 - as listings
        is_expanded = is_pattern(place) and not os.path.lexists(place)
        return (before_wildcard(place) if is_expanded else place).rstrip("/")
    own = next(part for part in split_chain(redact(path)) if "://" in part)
    key = (before_wildcard(own) if is_pattern(own) else own).partition("://")[2]
    return f"/{key.lstrip('/')}".rstrip("/")


def _leads_to(place: str, file: str) -> bool:
    with suppress(OSError):
        return any(each.samefile(place or "/") for each in (Path(file), *Path(file).parents))
    return False


def _names(files: Files) -> list[str]:
    """Return the paths that the caller names, as texts. Values of other types are left out."""
    given = files if isinstance(files, Sequence) and not isinstance(files, str) else [files]
    return [os.fspath(path) for path in map(_path, given) if isinstance(path, (str, os.PathLike)) and path]


def _path(file: DataFileInfo | PathLike) -> PathLike:
    return file.path if isinstance(file, DataFileInfo) else file
