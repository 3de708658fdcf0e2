"""`IcebergDataset` and `scan_iceberg`: data sets of Iceberg tables, and their loaders."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import check_filters
from torch_dataloader_utils._core.arguments import check_column_names, check_count_rows, check_flag, check_function
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.option_values import FileIdentity, check_identity
from torch_dataloader_utils._core.skipping import OnError, check_on_error
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._core.table_snapshot import check_snapshot
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import Credentials, RemoteOptions, Secret, StoreAccess, is_local
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
from torch_dataloader_utils.discover.roots import PathRules, Roots
from torch_dataloader_utils.errors import ConfigTypeError, of_type
from torch_dataloader_utils.ranks.agree import from_rank_zero
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.shape.tensor_batch import TensorBatch
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.tables.iceberg.catalog import OpenTable, TablePlace, open_table
from torch_dataloader_utils.tables.iceberg.snapshots import AgreedState, SnapshotChoice, choose_snapshot
from torch_dataloader_utils.tables.iceberg.table_scan import IcebergScanOptions, scan_table

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

T = TypeVar("T")

# Stands for "no snapshot" among snapshot ids, as in tables of format version 1.
_NO_SNAPSHOT = -1

# Options that choose the snapshot.
_SNAPSHOT_OPTIONS = ("snapshot_id", "as_of_timestamp", "branch", "tag", "from_snapshot_id", "allow_rewrites")


class IcebergKeywords(TypedDict, total=False):
    """The options of `IcebergSource` that are never passed by position, except the inventory."""

    as_of_timestamp: int | datetime | None
    branch: str | None
    tag: str | None
    from_snapshot_id: int | None
    allow_rewrites: bool
    path_rewrites: Mapping[str, str] | None
    allowed_roots: Sequence[str] | None
    storage_options: Mapping[str, Any] | None
    credentials: Credentials | None
    remote: RemoteOptions | None
    allow_empty: bool
    allow_bare_vectors: bool


class IcebergLoaderKeywords(IcebergKeywords, TableKeywords, TransformKeywords, LoaderKeywords, total=False):
    """Keyword-only options of `IcebergDataset.create_dataloader`."""


class IcebergPlainKeywords(IcebergKeywords, PlainKeywords, LoaderKeywords, total=False):
    """The same, and options that may come by position, except those on which the type of batches depends."""

    scan_filter: "BooleanExpression | str | None"
    snapshot_id: int | None
    inventory: Inventory | None


class IcebergDatasetKeywords(IcebergKeywords, AllTableKeywords, total=False):
    """Keyword-only options of `IcebergDataset`."""


@dataclass(frozen=True, kw_only=True)
class IcebergSource(Checked):
    """Where a table is and which part of it is read: the options that `TableOptions` does not have."""

    table: str | os.PathLike[str] = option(
        MISSING,
        'its name in the catalog ("db.events"); with catalog_config=None the path of a metadata file '
        "(*.metadata.json) or of the table's directory.",
        lambda _, value: _table_name(value),
    )
    catalog_config: Mapping[str, Any] | None = option(
        None,
        'passed to pyiceberg\'s `load_catalog`: {"type": "sql", "uri": ...}, rest, glue, hive, ...; None: no catalog.',
        is_secret=True,
    )
    scan_filter: "BooleanExpression | str | None" = option(
        None,
        "a pyiceberg expression (or its text) that leaves out data files that cannot match it. It does not filter "
        "rows; for that, use `filters`.",
    )
    snapshot_id: int | None = option(
        None,
        "the snapshot to read; at most one of snapshot_id, as_of_timestamp, branch and tag, except a snapshot_id "
        "with its branch. None: the current one. After a refresh, it is the newest one of the branch or the table.",
    )
    as_of_timestamp: int | datetime | None = option(
        None, "read the snapshot of this time, a datetime or milliseconds since 1970."
    )
    branch: str | None = option(None, "read the last snapshot of this branch.")
    tag: str | None = option(None, "read the snapshot with this tag.")
    from_snapshot_id: int | None = option(
        None,
        "read only the data files that were appended after this snapshot, up to the chosen one. If a snapshot in "
        "between deleted or rewrote rows, that is an error.",
    )
    allow_rewrites: bool = option(
        False, "with from_snapshot_id, ignore snapshots that deleted or rewrote rows, instead of an error.", check_flag
    )
    path_rewrites: Mapping[str, str] | None = option(
        None,
        "{old prefix: new prefix}, for tables that were moved, or whose paths are written for another client "
        '({"s3a://": "s3://"}).',
    )
    allowed_roots: Sequence[str] | None = option(
        None,
        'prefixes of paths that the table may refer to, after path_rewrites: "s3://bucket/warehouse", "s3://" (any '
        'bucket), "/data". None: the buckets (or the machine) of its metadata. If it refers to another path, that is '
        "an error, and the file is not read.",
    )
    storage_options: Mapping[str, Any] | None = option(
        None, "for the storage client; by default those of the catalog and catalog_config.", is_secret=True
    )
    credentials: Credentials | None = option(
        None,
        f"{CREDENTIALS_TEXT} None: those that the catalog gives for the table; workers ask the catalog again when they "
        "expire.",
        is_secret=True,
    )
    remote: RemoteOptions | None = option(None, REMOTE_TEXT)
    allow_empty: bool = option(False, ALLOW_EMPTY_TEXT, check_flag)
    allow_bare_vectors: bool = option(
        False,
        "read deletion vectors without a Puffin container, which some early writers wrote.",
        check_flag,
    )
    inventory: Inventory | None = option(None, "from `scan_iceberg`; then no manifest is read again.", check_inventory)

    @cached_property
    def place(self) -> TablePlace:
        """Where the table is, and how it is reached.

        Raises:
            ConfigTypeError, ConfigError: options of another type, or that do not fit each other.
        """
        return TablePlace(
            table=os.fspath(self.table),
            catalog_config=_catalog_secret(self.catalog_config),
            path_rewrites=PathRules.of(self.path_rewrites).rewrites,
            access=StoreAccess.of(self.storage_options, self.credentials, self.remote),
            allowed_roots=None if self.allowed_roots is None else Roots.of(self.allowed_roots),
        )

    def scan_options(
        self, columns: Sequence[str] | None, filters: pc.Expression | None, on_error: OnError
    ) -> IcebergScanOptions:
        """The part that says which files and rows are read.

        Raises:
            ConfigTypeError, ConfigError: options of another type, or that do not fit each other.
        """
        return IcebergScanOptions(
            columns=check_column_names("columns", columns),
            filters=check_filters("filters", filters),
            scan_filter=self.scan_filter,
            snapshot=SnapshotChoice(**{name: getattr(self, name) for name in _SNAPSHOT_OPTIONS}),
            allow_bare_vectors=self.allow_bare_vectors,
            allow_empty=self.allow_empty,
            on_error=on_error,
        )

    def open(self) -> OpenTable:
        """The table as it is now."""
        return open_table(self.place)

    def access(self) -> StoreAccess:
        """How the table's files are reached; asks the catalog, unless there is none or the user said how."""
        asks = self.catalog_config is not None and self.storage_options is None and self.credentials is None
        return self.open().files.access if asks else self.place.access

    def newest(self, read: Inventory) -> "IcebergSource":
        """The newest snapshot of the same branch or table; of increments, what comes after the one that was read."""
        after = None if read.snapshot is None else read.snapshot.next_start
        return replace(self, inventory=None, snapshot_id=None, as_of_timestamp=None, tag=None, from_snapshot_id=after)

    def find(self, options: TableOptions) -> tuple[Inventory, StoreAccess]:
        """The inventory that was given, or that of the table (the same on all ranks), and how its files are reached.

        Every rank that needs credentials of the catalog asks for them itself: they are never sent between ranks.
        """
        place, scan = self.place, self.scan_options(options.columns, options.filters, options.on_error)
        share = counting_share(options, *ranks_of(options))
        once = is_scanned_once(options, is_remote=self.catalog_config is not None or not is_local(place.table))
        if self.inventory is not None:
            read = self.inventory.snapshot
            check_snapshot("IcebergDataset", read, "snapshot", self.snapshot_id, self.from_snapshot_id)
            once = once and reads_files(self.inventory, options)
            compare_options(options, meets=once or scanning_share(options).count > 1)
            if place.allowed_roots is not None:
                place.allowed_roots.check_inventory(self.inventory)
            access = self.access()
            found = given_alike(self.inventory, options, access, once=once)
            return under_filter(found, options.filters), access
        compare_options(options, meets=once or share.count > 1)
        with work_bar("data files", is_wanted=shows_bars(options)) as on_progress:

            def scanned(opened: OpenTable, scan: IcebergScanOptions) -> Inventory:
                return identified(scan_table(opened, scan, on_progress), options.identity, opened.files.access)

            if once:
                found = from_rank_zero(lambda: scanned(self.open(), scan))
                access = share.together(self.access)
            else:
                opened, scan = open_alike(self, scan, share)
                found, access = share.together(lambda: scanned(opened, scan)), opened.files.access
        return under_filter(found, options.filters), access


def _table_name(table: Any) -> str:
    name = os.fspath(table) if isinstance(table, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        given = repr(name) if name == "" else of_type(table)
        raise ConfigTypeError(
            f'table is {given}: pass its name in the catalog ("db.events") or, without catalog_config, the path of its '
            "metadata file or directory."
        )
    return name


def _catalog_secret(catalog_config: Any) -> Secret | None:
    if catalog_config is None:
        return None
    if not isinstance(catalog_config, Mapping):
        raise ConfigTypeError(
            f"catalog_config is {of_type(catalog_config)}: pass a dict of what pyiceberg's load_catalog takes. "
            'A catalog of its configuration file goes by its name alone: {"name": "prod"}.'
        )
    return Secret(dict(catalog_config))


def open_alike(source: IcebergSource, scan: IcebergScanOptions, share: Share) -> tuple[OpenTable, IcebergScanOptions]:
    """The table, and the options of a scan of the same snapshot and schema on all ranks of a process group.

    Rank 0 opens the table first and sends the other ranks which snapshot and schema it found.

    share: of which all ranks call this.

    Raises:
        NoDataError, ConfigError, DataError, StoreError: a rank could not open the table, or found no such snapshot; all
            ranks raise it.
    """
    if share.count == 1:
        return source.open(), scan
    first, found = share.together(lambda: _look(source, scan) if share.index == 0 else (None, (0, 0)))
    snapshot_id, schema_id = share.exchange(np.array(found)).tolist()
    agreed = AgreedState(snapshot_id=None if snapshot_id == _NO_SNAPSHOT else snapshot_id, schema_id=schema_id)
    return share.together(lambda: first or source.open()), replace(scan, snapshot=replace(scan.snapshot, agreed=agreed))


def _look(source: IcebergSource, scan: IcebergScanOptions) -> tuple[OpenTable, tuple[int, int]]:
    """The table, and the ids of the snapshot and the schema that the scan would read now."""
    opened = source.open()
    target = choose_snapshot(opened.metadata, scan.snapshot, opened.name)
    snapshot_id = _NO_SNAPSHOT if target.snapshot is None else target.snapshot.snapshot_id
    return opened, (snapshot_id, target.schema.schema_id)


# An option of the source that a scan does not take, since it is its result.
_NOT_SCANNED = ("inventory",)


@explains(IcebergSource, left_out=_NOT_SCANNED, more="columns, filters: as for `IcebergDataset.create_dataloader`.")
def scan_iceberg(
    table: str | os.PathLike[str],
    catalog_config: Mapping[str, Any] | None = None,
    *,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
    scan_filter: "BooleanExpression | str | None" = None,
    snapshot_id: int | None = None,
    count_rows: Literal["auto"] | bool = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    on_error: OnError = "raise",
    identity: FileIdentity = "strict",
    **options: Unpack[IcebergKeywords],
) -> Inventory:
    """The inventory of one snapshot of an Iceberg table.

    The options of the table are those of `IcebergDataset.create_dataloader`. "auto" and True for count_rows count what
    equality deletes and filters leave, by reading key and filter columns once; False leaves those row groups uncounted.
    on_progress is called in the caller's thread after each data file with (files done, files to scan). on_error="skip"
    leaves out data files whose metadata does not decode, with a warning that names them. identity: as for
    `create_dataloader`.

    Returns:
        Data files sorted by path. `notes` says how many deletes were found, and how many of them dangle.

    Raises:
        ConfigError, DataError, StoreError: see `IcebergDataset.create_dataloader`.
    """
    arguments = arguments_of(locals())
    check_names(options, [name for name in names_of(IcebergSource) if name not in _NOT_SCANNED])
    check_function("on_progress", on_progress)
    check_on_error("on_error", on_error)
    counts = check_count_rows("count_rows", count_rows)
    source = chosen(IcebergSource, arguments)
    scan, opened = source.scan_options(columns, filters, on_error), source.open()
    inventory = scan_table(opened, scan, on_progress)
    inventory = identified(inventory, check_identity("identity", identity), opened.files.access)
    return count_alone(inventory, filters, opened.files.access) if counts else inventory


class IcebergDataset(BuiltDataset):
    """One snapshot of an Iceberg table as an iterable data set of batches, one rank's share of them.

    Every kind of delete is applied, and files are split into row groups whether they have deletes or not. Workers
    get data files and deletes; they ask the catalog for nothing but new credentials, once those it gave have expired.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        *,
        scan_filter: "BooleanExpression | str | None" = None,
        snapshot_id: int | None = None,
        inventory: Inventory | None = None,
        **options: Unpack[IcebergDatasetKeywords],
    ) -> None:
        """A data set of this table.

        Args: see `create_dataloader`.

        Raises:
            ConfigError, DataError, StoreError: see `create_dataloader`.
        """
        self._without_loader(IcebergSource, arguments_of(locals()))

    # The type of batches is what the last function of the user returns, or follows from the output format.
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        collate_fn: Callable[[Any], T],
        transform: Callable[[Any], Any] | None = None,
        output_format: OutputFormat = "torch",
        **options: Unpack[IcebergPlainKeywords],
    ) -> tuple[TableDataLoader[T], "IcebergDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        transform: Callable[[Any], T],
        collate_fn: None = None,
        output_format: OutputFormat = "torch",
        **options: Unpack[IcebergPlainKeywords],
    ) -> tuple[TableDataLoader[T], "IcebergDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["torch"] = "torch",
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[IcebergPlainKeywords],
    ) -> tuple[TableDataLoader[TensorBatch], "IcebergDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["numpy"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[IcebergPlainKeywords],
    ) -> tuple[TableDataLoader[dict[str, npt.NDArray[Any]]], "IcebergDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["arrow"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[IcebergPlainKeywords],
    ) -> tuple[TableDataLoader[pa.RecordBatch], "IcebergDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["dict"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[IcebergPlainKeywords],
    ) -> tuple[TableDataLoader[dict[str, list[Any]]], "IcebergDataset"]: ...
    @classmethod
    @explains(IcebergSource, TableOptions, more=LOADER_TEXT)
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: "BooleanExpression | str | None" = None,
        snapshot_id: int | None = None,
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
        **options: Unpack[IcebergLoaderKeywords],
    ) -> tuple[TableDataLoader[Any], "IcebergDataset"]:
        """A loader of one rank's batches of an Iceberg table, and its data set.

        All options are on the page "Options" of the reference, and in `help()` of this function: those of the table,
        those of every data set (`TableOptions`), and those of torch's DataLoader.

        Returns:
            (loader, dataset). A state is bound to the snapshot that was read.

        Raises:
            ConfigError: arguments that do not fit each other or the table. NoDataError: no such table, or nothing to
                read. MissingDependencyError: pyiceberg is not installed.
            DataError: metadata, deletes or data that are corrupt or use what is not supported.
            StoreError: catalog or storage failed.
        """
        return cls._with_loader(IcebergSource, arguments_of(locals()))
