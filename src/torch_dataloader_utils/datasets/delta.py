"""`DeltaDataset` and `scan_delta`: data sets of Delta Lake tables, and their loaders."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import check_filters
from torch_dataloader_utils._core.arguments import check_column_names, check_count_rows, check_flag, check_function
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.option_values import FileIdentity, check_identity
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._core.skipping import OnError, check_on_error
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._core.table_snapshot import check_snapshot
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import Credentials, RemoteOptions, StoreAccess, is_local
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.keywords import (
    AllTableKeywords,
    LoaderKeywords,
    PlainKeywords,
    TableKeywords,
    TransformKeywords,
)
from torch_dataloader_utils.datasets.option_fields import (
    Checked,
    arguments_of,
    check_names,
    chosen,
    explains,
    names_of,
    option,
)
from torch_dataloader_utils.datasets.options import (
    ALLOW_EMPTY_TEXT,
    CREDENTIALS_TEXT,
    LOADER_TEXT,
    REMOTE_TEXT,
    TableOptions,
)
from torch_dataloader_utils.datasets.rank_agreement import (
    compare_options,
    counting_share,
    given_alike,
    is_scanned_once,
    ranks_of,
    reads_files,
    scanning_share,
    shows_bars,
)
from torch_dataloader_utils.datasets.row_counts import count_alone, under_filter
from torch_dataloader_utils.discover.content import identified
from torch_dataloader_utils.discover.roots import Roots
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.ranks.agree import from_rank_zero
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.shape.tensor_batch import TensorBatch
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.tables.delta.log import VersionChoice
from torch_dataloader_utils.tables.delta.snapshot import DeltaTable
from torch_dataloader_utils.tables.delta.table_scan import DeltaScanOptions, scan_table

T = TypeVar("T")


class DeltaKeywords(TypedDict, total=False):
    """The options of `DeltaSource` that are never passed by position, except the inventory."""

    from_version: int | None
    allowed_roots: Sequence[str] | None
    credentials: Credentials | None
    remote: RemoteOptions | None
    allow_empty: bool


class DeltaLoaderKeywords(DeltaKeywords, TableKeywords, TransformKeywords, LoaderKeywords, total=False):
    """Keyword-only options of `DeltaDataset.create_dataloader`."""


class DeltaPlainKeywords(DeltaKeywords, PlainKeywords, LoaderKeywords, total=False):
    """The same, and options that may come by position, except those on which the type of batches depends."""

    version: int | None
    timestamp: int | datetime | None
    storage_options: Mapping[str, Any] | None
    inventory: Inventory | None


class DeltaDatasetKeywords(DeltaKeywords, AllTableKeywords, total=False):
    """Keyword-only options of `DeltaDataset`."""


@dataclass(frozen=True, kw_only=True)
class DeltaSource(Checked):
    """Where a table is and which part of it is read: the options that `TableOptions` does not have."""

    table: str | os.PathLike[str] = option(
        MISSING,
        "the table's directory, which holds _delta_log: a local path or a URL.",
        lambda _, value: _directory(value),
    )
    version: int | None = option(
        None, "the version to read; at most one of version and timestamp. None: the newest one."
    )
    timestamp: int | datetime | None = option(
        None, "read the version of this time, a datetime or milliseconds since 1970."
    )
    from_version: int | None = option(
        None,
        "read only the data files that were appended after this version, up to the chosen one. If a version in "
        "between deleted rows, that is an error.",
    )
    allowed_roots: Sequence[str] | None = option(
        None,
        'prefixes of paths that the table may refer to: "s3://bucket/tables", "s3://" (any bucket), "/data". None: '
        "its own bucket (or machine). If it refers to another path, that is an error, and the file is not read.",
    )
    storage_options: Mapping[str, Any] | None = option(None, "for the storage client.", is_secret=True)
    credentials: Credentials | None = option(None, CREDENTIALS_TEXT, is_secret=True)
    remote: RemoteOptions | None = option(None, REMOTE_TEXT)
    allow_empty: bool = option(False, ALLOW_EMPTY_TEXT, check_flag)
    inventory: Inventory | None = option(
        None, "the result of `scan_delta`; then the log is not read again.", check_inventory
    )

    @cached_property
    def access(self) -> StoreAccess:
        """How the table's files are reached."""
        return StoreAccess.of(self.storage_options, self.credentials, self.remote)

    @cached_property
    def roots(self) -> Roots | None:
        """Where the table's files may lie, if the user says so."""
        return None if self.allowed_roots is None else Roots.of(self.allowed_roots)

    @cached_property
    def place(self) -> DeltaTable:
        """The table."""
        return DeltaTable.at(os.fspath(self.table), self.access, self.roots)

    def scan_options(
        self, columns: Sequence[str] | None, filters: pc.Expression | None, on_error: OnError
    ) -> DeltaScanOptions:
        """The part that says which files and rows are read.

        Raises:
            ConfigTypeError, ConfigError: options of another type, or that do not fit each other.
        """
        return DeltaScanOptions(
            columns=check_column_names("columns", columns),
            filters=check_filters("filters", filters),
            version=VersionChoice(version=self.version, timestamp=self.timestamp, from_version=self.from_version),
            allow_empty=self.allow_empty,
            on_error=on_error,
        )

    def newest(self, read: Inventory) -> "DeltaSource":
        """The newest version; of increments, what comes after the one that was read."""
        after = None if read.snapshot is None else read.snapshot.next_start
        return replace(self, inventory=None, version=None, timestamp=None, from_version=after)

    def find(self, options: TableOptions) -> tuple[Inventory, StoreAccess]:
        """The inventory that was given, or that of the table (the same on all ranks), and how its files are reached."""
        scan = self.scan_options(options.columns, options.filters, options.on_error)
        share = counting_share(options, *ranks_of(options))
        once = is_scanned_once(options, is_remote=not is_local(os.fspath(self.table)))
        if self.inventory is not None:
            check_snapshot("DeltaDataset", self.inventory.snapshot, "version", self.version, self.from_version)
            once = once and reads_files(self.inventory, options)
            compare_options(options, meets=once or scanning_share(options).count > 1)
            if self.roots is not None:
                self.roots.check_inventory(self.inventory)
            found = given_alike(self.inventory, options, self.access, once=once)
            return under_filter(found, options.filters), self.access
        compare_options(options, meets=once or share.count > 1)
        with work_bar("data files", is_wanted=shows_bars(options)) as on_progress:

            def scanned(scan: DeltaScanOptions) -> Inventory:
                return identified(scan_table(self.place, scan, on_progress), options.identity, self.access)

            if once:
                found = from_rank_zero(lambda: scanned(scan))
            else:
                agreed = of_one_version(self.place, scan, share)
                found = share.together(lambda: scanned(agreed))
        return under_filter(found, options.filters), self.access


def _directory(table: Any) -> str:
    if not (path := check_path("table", table)):
        raise ConfigError("table is '': pass the path of the table's directory.")
    return path


def of_one_version(table: DeltaTable, scan: DeltaScanOptions, share: Share) -> DeltaScanOptions:
    """The options of a scan of the same version on all ranks of a process group: the one that rank 0 finds.

    share: of which all ranks call this.

    Raises:
        NoDataError, ConfigError, DataError, StoreError: rank 0 found no such version; all ranks raise it.
    """
    if share.count == 1:
        return scan
    mine = share.together(lambda: table.version(scan.version) if share.index == 0 else 0)
    version = int(share.exchange(np.array([mine]))[0])
    return replace(scan, version=replace(scan.version, version=version, timestamp=None))


# An option of the source that a scan does not take, since it is its result.
_NOT_SCANNED = ("inventory",)


@explains(DeltaSource, left_out=_NOT_SCANNED, more="columns, filters: as for `DeltaDataset.create_dataloader`.")
def scan_delta(
    table: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
    version: int | None = None,
    timestamp: int | datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
    count_rows: Literal["auto"] | bool = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_error: OnError = "raise",
    identity: FileIdentity = "strict",
    **options: Unpack[DeltaKeywords],
) -> Inventory:
    """The inventory of one version of a Delta table.

    The options of the table are those of `DeltaDataset.create_dataloader`. "auto" and True for count_rows count what
    filters leave, by reading their columns once; False leaves those row groups uncounted. on_progress is called in the
    caller's thread after each data file with (files done, files to scan). on_error="skip" leaves out data files whose
    metadata does not decode, with a warning that names them. identity: as for `create_dataloader`.

    Returns:
        Data files sorted by path. `notes` says how many rows are deleted.

    Raises:
        ConfigError, DataError, StoreError: see `DeltaDataset.create_dataloader`.
    """
    arguments = arguments_of(locals())
    check_names(options, [name for name in names_of(DeltaSource) if name not in _NOT_SCANNED])
    check_function("on_progress", on_progress)
    check_on_error("on_error", on_error)
    counts = check_count_rows("count_rows", count_rows)
    source = chosen(DeltaSource, arguments)
    inventory = scan_table(source.place, source.scan_options(columns, filters, on_error), on_progress)
    inventory = identified(inventory, check_identity("identity", identity), source.access)
    return count_alone(inventory, filters, source.access) if counts else inventory


class DeltaDataset(BuiltDataset):
    """One version of a Delta Lake table as an iterable data set of batches, one rank's share of them.

    Rows that deletion vectors delete are left out, and files are split into row groups whether they have deletes or
    not. Workers get data files and deleted rows; they do not read the log.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        version: int | None = None,
        timestamp: int | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
        inventory: Inventory | None = None,
        **options: Unpack[DeltaDatasetKeywords],
    ) -> None:
        """A data set of this table.

        Args: see `create_dataloader`.

        Raises:
            ConfigError, DataError, StoreError: see `create_dataloader`.
        """
        self._without_loader(DeltaSource, arguments_of(locals()))

    # The type of batches is what the last function of the user returns, or follows from the output format.
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        collate_fn: Callable[[Any], T],
        transform: Callable[[Any], Any] | None = None,
        output_format: OutputFormat = "torch",
        **options: Unpack[DeltaPlainKeywords],
    ) -> tuple[TableDataLoader[T], "DeltaDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        transform: Callable[[Any], T],
        collate_fn: None = None,
        output_format: OutputFormat = "torch",
        **options: Unpack[DeltaPlainKeywords],
    ) -> tuple[TableDataLoader[T], "DeltaDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["torch"] = "torch",
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[DeltaPlainKeywords],
    ) -> tuple[TableDataLoader[TensorBatch], "DeltaDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["numpy"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[DeltaPlainKeywords],
    ) -> tuple[TableDataLoader[dict[str, npt.NDArray[Any]]], "DeltaDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["arrow"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[DeltaPlainKeywords],
    ) -> tuple[TableDataLoader[pa.RecordBatch], "DeltaDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["dict"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[DeltaPlainKeywords],
    ) -> tuple[TableDataLoader[dict[str, list[Any]]], "DeltaDataset"]: ...
    @classmethod
    @explains(DeltaSource, TableOptions, more=LOADER_TEXT)
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        version: int | None = None,
        timestamp: int | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        output_format: OutputFormat = "torch",
        collate_fn: Callable[[Any], Any] | None = None,
        num_ranks: int | str = 1,
        rank: int = 0,
        show_progress: bool = False,
        progress_interval_sec: float = 120.0,
        shuffle_buffer_size: int | None = None,
        *,
        inventory: Inventory | None = None,
        **options: Unpack[DeltaLoaderKeywords],
    ) -> tuple[TableDataLoader[Any], "DeltaDataset"]:
        """A loader of one rank's batches of a Delta table, and its data set.

        All options are on the page "Options" of the reference, and in `help()` of this function: those of the table,
        those of every data set (`TableOptions`), and those of torch's DataLoader.

        Returns:
            (loader, dataset). A state is bound to the version that was read.

        Raises:
            ConfigError: arguments that do not fit each other or the table. NoDataError: no such table, or nothing to
                read. MissingDependencyError: the table has deletion vectors, and pyroaring is not installed.
            DataError: log, deletion vectors or data that are corrupt or use what is not supported.
            StoreError: the storage failed.
        """
        return cls._with_loader(DeltaSource, arguments_of(locals()))
