"""`FileSource`: where the files of a data set are, and the inventory of them, the same on all ranks."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from typing import Any, Literal, TypedDict

from torch_dataloader_utils._core.arguments import check_flag
from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.splits import DataFileInfo
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils._store import Credentials, RemoteOptions, StoreAccess, is_local, redact
from torch_dataloader_utils.datasets.keywords import (
    AllTableKeywords,
    LoaderKeywords,
    PlainKeywords,
    TableKeywords,
    TransformKeywords,
)
from torch_dataloader_utils.datasets.option_fields import Checked, option
from torch_dataloader_utils.datasets.options import (
    CREDENTIALS_TEXT,
    REMOTE_TEXT,
    TableOptions,
)
from torch_dataloader_utils.datasets.rank_agreement import (
    compare_options,
    given_alike,
    is_scanned_once,
    reads_files,
    scanning_share,
    shows_bars,
)
from torch_dataloader_utils.datasets.row_counts import under_filter
from torch_dataloader_utils.discover.content import identified
from torch_dataloader_utils.discover.paths import PathLike
from torch_dataloader_utils.discover.scan import scan_paths
from torch_dataloader_utils.formats.bad_files import lies_in
from torch_dataloader_utils.formats.file_scan import Missing, ScanRequest, check_missing
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.ranks.agree import from_rank_zero

Files = Sequence[DataFileInfo | PathLike] | PathLike


class FileKeywords(TypedDict, total=False):
    """The options of `FileSource` that are never passed by position."""

    credentials: Credentials | None
    remote: RemoteOptions | None
    inventory: Inventory | None
    allow_bare_files: bool
    missing: Missing


class FileLoaderKeywords(FileKeywords, TableKeywords, TransformKeywords, LoaderKeywords, total=False):
    """Keyword-only options of `StructuredDataset.create_dataloader`."""


class FilePlainKeywords(FileKeywords, PlainKeywords, LoaderKeywords, total=False):
    """The same, and options that may come by position, except those on which the type of batches depends."""

    storage_options: Mapping[str, Any] | None
    partitioning: Literal["hive"] | None


class FileDatasetKeywords(FileKeywords, AllTableKeywords, total=False):
    """Keyword-only options of `StructuredDataset`."""


@dataclass(frozen=True, kw_only=True)
class FileSource(Checked):
    """Where data files are and how they are reached: the options that `TableOptions` does not have."""

    path: Files = option(
        MISSING, "file, directory (searched recursively), pattern, or a list of those; local or any fsspec URL."
    )
    format: str = option(
        "parquet",
        '"parquet", "orc", "csv", "json" (or "jsonl", the same: one object per line) or "arrow". For CSV and JSON '
        "lines, `scan_files` sets the types (schema=) and the size of row groups (text=); pass its result as "
        "inventory.",
    )
    storage_options: Mapping[str, Any] | None = option(
        None, "for the storage client; never logged, saved or put into a state.", is_secret=True
    )
    partitioning: Literal["hive"] | None = option(
        None, '"hive" reads typed columns from directory names such as year=2024.'
    )
    credentials: Credentials | None = option(None, CREDENTIALS_TEXT, is_secret=True)
    remote: RemoteOptions | None = option(None, REMOTE_TEXT)
    inventory: Inventory | None = option(
        None,
        "the result of `scan_files` or `load_inventory`; then nothing is listed or scanned. The loader warns if its "
        "files are not in `path`.",
        check_inventory,
    )
    allow_bare_files: bool = option(
        False,
        "read the directory of a Delta, Hudi or Iceberg table as plain files, including deleted rows, instead of an "
        "UnsupportedFeatureError. Files that you name yourself are always read.",
        check_flag,
    )
    missing: Missing = option(
        "error",
        '"null" accepts files with different columns: a column that a file lacks is null there (see nulls), and one '
        "with several types (int32 and int64) gets the widest. The metadata of all files is read, and CSV needs "
        'scan_files(schema=). "error": all files need the same columns and types, except JSON lines.',
        check_missing,
    )

    def newest(self, read: Inventory) -> "FileSource":  # noqa: ARG002  # see Source
        """The same files, directories or patterns, to be listed again."""
        return replace(self, inventory=None)

    def find(self, options: TableOptions) -> tuple[Inventory, StoreAccess]:
        """The inventory that was given, if it fits the filter, or that of the files; and how files are reached.

        All ranks get the same one.

        Raises:
            ConfigError: the inventory was scanned with another filter.
            ConfigError, DataError, StoreError: as `scan_files`; and see `compare_options`, Share.check_alike.
        """
        access = StoreAccess.of(self.storage_options, self.credentials, self.remote)
        is_remote = not all(map(is_local, _names(self.path)))
        once = reads_files(self.inventory, options) and is_scanned_once(options, is_remote=is_remote)
        compare_options(options, meets=once or scanning_share(options).count > 1)
        if self.inventory is None:
            found = self._scan(options, access, once=once)
        else:
            _check_place(self.inventory, self.path)
            found = given_alike(self.inventory, options, access, once=once)
        return under_filter(found, options.filters), access

    def _scan(self, options: TableOptions, access: StoreAccess, *, once: bool) -> Inventory:
        path = self.path
        paths = path if isinstance(path, str) or not isinstance(path, Sequence) else [_path(file) for file in path]
        request = ScanRequest(
            format=format_named(self.format),
            columns=None if options.columns is None else tuple(options.columns),
            row_filter=options.filters,
            count_rows=options.count_rows is not False,
            on_error=options.on_error,
            missing=self.missing,
            identity=options.identity,
        )
        with work_bar("footers", is_wanted=shows_bars(options)) as on_progress:

            def scan() -> Inventory:
                found = scan_paths(
                    paths,
                    access,
                    request,
                    partitioning=self.partitioning,
                    allow_bare_files=self.allow_bare_files,
                    on_progress=on_progress,
                )
                return identified(found, options.identity, access)

            return from_rank_zero(scan) if once else _scan_alike(scan, options)


def _check_place(inventory: Inventory, files: Files) -> None:
    """Warns if files of the inventory lie outside of what the caller names, unless that is nothing, or a table.

    What it was made of is right as it is: an `hf://` path, say, of which files have the commit in their names.
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


def _scan_alike(scan: Callable[[], Inventory], options: TableOptions) -> Inventory:
    """This rank's own scan, compared with those of the ranks that it will read with."""
    share = scanning_share(options)
    inventory = share.together(scan)
    share.check_alike(inventory)
    return inventory


def _names(files: Files) -> list[str]:
    """The paths that the caller names, as texts; whatever is not a path is left out."""
    given = files if isinstance(files, Sequence) and not isinstance(files, str) else [files]
    return [os.fspath(path) for path in map(_path, given) if isinstance(path, (str, os.PathLike)) and path]


def _path(file: DataFileInfo | PathLike) -> PathLike:
    return file.path if isinstance(file, DataFileInfo) else file
