"""`IcebergDataset` and `scan_iceberg`: data sets of Iceberg tables, and their loaders."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
import pyarrow.compute as pc

from torch_dataloader_utils._core.arguments import check_column_names, check_count_rows, check_function
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._formats.row_filter import check_filters
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import Credentials, RemoteOptions, Secret, StoreAccess
from torch_dataloader_utils.datasets.build import make_loader
from torch_dataloader_utils.datasets.options import (
    TABLE_OPTIONS,
    IcebergKeywords,
    RowLoaderKeywords,
    TableOptions,
    check_names,
    separate_options,
)
from torch_dataloader_utils.datasets.rank_agreement import (
    compare_options,
    counting_share,
    ranks_of,
    scanning_share,
    shows_bars,
)
from torch_dataloader_utils.datasets.row_counts import count_alone, under_filter
from torch_dataloader_utils.datasets.structured import WiredDataset
from torch_dataloader_utils.discover.iceberg.catalog import OpenTable, TablePlace, open_table
from torch_dataloader_utils.discover.iceberg.snapshots import AgreedState, SnapshotChoice, choose_snapshot
from torch_dataloader_utils.discover.iceberg.table_scan import IcebergScanOptions, scan_table
from torch_dataloader_utils.discover.table_paths import PathRules, Roots
from torch_dataloader_utils.errors import ConfigTypeError, of_type
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LOADER_OPTIONS, check_loader_options
from torch_dataloader_utils.stream.ranks import from_rank_zero

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression


# Stands for no snapshot among ids, as in tables of format version 1.
_NO_SNAPSHOT = -1

# Keyword arguments that choose the snapshot, and all that say what to read of a table.
_SNAPSHOT_OPTIONS = ("snapshot_id", "as_of_timestamp", "branch", "tag", "from_snapshot_id")
SCAN_OPTIONS = (
    *_SNAPSHOT_OPTIONS,
    "scan_filter",
    "allow_empty",
    "allow_bare_vectors",
    "path_rewrites",
    "allowed_roots",
    "storage_options",
    "credentials",
    "remote",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """Where a table is, and what to read of it.

    knows_access: whether the user said how files are reached, so that the catalog is not asked for it.
    """

    place: TablePlace
    scan: IcebergScanOptions
    knows_access: bool = False

    @classmethod
    def of(
        cls,
        table: str,
        catalog_config: Mapping[str, Any] | None,
        columns: Sequence[str] | None,
        filters: pc.Expression | None,
        options: Mapping[str, Any],
    ) -> "TableSource":
        """From a caller's arguments; `options` are those named in SCAN_OPTIONS.

        Raises:
            ConfigTypeError, ConfigError: arguments of another type, or that do not fit each other.
        """
        check_filters(filters)
        rules = PathRules.of(options.get("path_rewrites"))
        given, credentials = options.get("storage_options"), options.get("credentials")
        roots = options.get("allowed_roots")
        return cls(
            place=TablePlace(
                table=_table_name(table),
                catalog_config=_catalog_secret(catalog_config),
                path_rewrites=rules.rewrites,
                access=StoreAccess.of(given, credentials, options.get("remote")),
                allowed_roots=None if roots is None else Roots.of(roots),
            ),
            knows_access=given is not None or credentials is not None,
            scan=IcebergScanOptions(
                columns=check_column_names(columns),
                filters=filters,
                scan_filter=options.get("scan_filter"),
                snapshot=SnapshotChoice(**{name: options.get(name) for name in _SNAPSHOT_OPTIONS}),
                allow_bare_vectors=options.get("allow_bare_vectors", False),
                allow_empty=options.get("allow_empty", False),
                on_error=options.get("on_error", "raise"),
            ),
        )

    def open(self) -> OpenTable:
        """The table as it is now."""
        return open_table(self.place)

    def access(self) -> StoreAccess:
        """How the table's files are reached; asks the catalog, unless there is none or the user said it."""
        asks = self.place.catalog_config is not None and not self.knows_access
        return self.open().files.access if asks else self.place.access


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


def open_alike(source: TableSource, share: Share) -> tuple[OpenTable, IcebergScanOptions]:
    """The table, and the options of a scan of the same snapshot and schema on all ranks of a process group.

    Rank 0 opens the table first and tells the other ranks which snapshot and schema it found.

    share: of which all ranks call this.

    Raises:
        NoDataError, ConfigError, DataError, StoreError: a rank could not open the table, or found no such snapshot; all
            ranks raise it.
    """
    if share.count == 1:
        return source.open(), source.scan
    first, found = share.together(lambda: _look(source) if share.index == 0 else (None, (0, 0)))
    snapshot_id, schema_id = share.exchange(np.array(found)).tolist()
    agreed = AgreedState(snapshot_id=None if snapshot_id == _NO_SNAPSHOT else snapshot_id, schema_id=schema_id)
    choice = replace(source.scan.snapshot, agreed=agreed)
    return share.together(lambda: first or source.open()), replace(source.scan, snapshot=choice)


def _look(source: TableSource) -> tuple[OpenTable, tuple[int, int]]:
    """The table, and the ids of the snapshot and the schema that the scan would read now."""
    opened = source.open()
    target = choose_snapshot(opened.metadata, source.scan.snapshot, opened.name)
    snapshot_id = _NO_SNAPSHOT if target.snapshot is None else target.snapshot.snapshot_id
    return opened, (snapshot_id, target.schema.schema_id)


def scan_iceberg(
    table: str,
    catalog_config: Mapping[str, Any] | None = None,
    *,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
    scan_filter: "BooleanExpression | str | None" = None,
    snapshot_id: int | None = None,
    as_of_timestamp: int | datetime | None = None,
    branch: str | None = None,
    tag: str | None = None,
    from_snapshot_id: int | None = None,
    path_rewrites: Mapping[str, str] | None = None,
    allowed_roots: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    credentials: Credentials | None = None,
    remote: RemoteOptions | None = None,
    allow_empty: bool = False,
    allow_bare_vectors: bool = False,
    count_rows: Literal["auto"] | bool = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> Inventory:
    """The inventory of one snapshot of an Iceberg table.

    Args:
        table, catalog_config, columns, filters, scan_filter, snapshot_id, as_of_timestamp, branch, tag,
            from_snapshot_id, path_rewrites, allowed_roots, storage_options, credentials, remote, allow_empty,
            allow_bare_vectors: see `IcebergDataset.create_dataloader`.
        count_rows: "auto" and True count what equality deletes and filters leave by reading key and filter columns
            once; False leaves those row groups uncounted.
        on_progress: called in the caller's thread after each data file with (files done, files to scan).

    Returns:
        Data files sorted by path. `notes` says how many deletes were found, and how many of them dangle.

    Raises:
        ConfigError, DataError, StoreError: see `IcebergDataset.create_dataloader`.
    """
    options = {
        "scan_filter": scan_filter,
        "snapshot_id": snapshot_id,
        "as_of_timestamp": as_of_timestamp,
        "branch": branch,
        "tag": tag,
        "from_snapshot_id": from_snapshot_id,
        "path_rewrites": path_rewrites,
        "allowed_roots": allowed_roots,
        "storage_options": storage_options,
        "credentials": credentials,
        "remote": remote,
        "allow_empty": allow_empty,
        "allow_bare_vectors": allow_bare_vectors,
    }
    check_function("on_progress", on_progress)
    counts = check_count_rows(count_rows)
    source = TableSource.of(table, catalog_config, columns, filters, options)
    opened = source.open()
    inventory = scan_table(opened, source.scan, on_progress)
    return count_alone(inventory, filters, opened.files.access) if counts else inventory


def _find(source: TableSource, given: Inventory | None, options: TableOptions) -> tuple[Inventory, StoreAccess]:
    """The given inventory or that of the table (the same on all ranks), and how its files are reached.

    Every rank that needs credentials of the catalog asks for them itself: they are never sent between ranks.
    """
    share = counting_share(options, *ranks_of(options))
    if given is not None:
        compare_options(options, scanning_share(options))
        given = check_inventory(given)
        if source.place.allowed_roots is not None:
            source.place.allowed_roots.check_inventory(given)
        return given, source.access()
    compare_options(options, share)
    with work_bar("data files", is_wanted=shows_bars(options)) as on_progress:
        if options.broadcast_inventory:
            found = from_rank_zero(lambda: scan_table(source.open(), source.scan, on_progress))
            return found, share.together(source.access)
        opened, scan = open_alike(source, share)
        return share.together(lambda: scan_table(opened, scan, on_progress)), opened.files.access


class IcebergDataset(WiredDataset):
    """One snapshot of an Iceberg table as an iterable data set of batches, one rank's share of them.

    Every kind of delete is applied, and files are split into row groups whether they have deletes or not. Workers
    get data files and deletes; they ask the catalog for nothing but new credentials, once those it gave have expired.
    """

    def __init__(
        self,
        table: str,
        catalog_config: Mapping[str, Any] | None = None,
        *,
        inventory: Inventory | None = None,
        **options: Unpack[IcebergKeywords],
    ) -> None:
        """A data set of this table.

        Args: see `create_dataloader`; num_workers (here 1 by default) is the number that plans are shown for.

        Raises:
            ConfigError, DataError, StoreError: see `create_dataloader`.
        """
        scan, others = separate_options(options, SCAN_OPTIONS)
        chosen = TableOptions.of({"num_workers": 1, **others})
        scan["on_error"] = chosen.on_error
        source = TableSource.of(table, catalog_config, chosen.columns, chosen.filters, scan)
        inventory, access = _find(source, inventory, chosen)
        super().__init__(under_filter(inventory, chosen.filters), chosen, access)

    @classmethod
    def create_dataloader(
        cls,
        table: str,
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
        as_of_timestamp: int | datetime | None = None,
        branch: str | None = None,
        tag: str | None = None,
        from_snapshot_id: int | None = None,
        path_rewrites: Mapping[str, str] | None = None,
        allowed_roots: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credentials: Credentials | None = None,
        remote: RemoteOptions | None = None,
        allow_empty: bool = False,
        allow_bare_vectors: bool = False,
        inventory: Inventory | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        broadcast_inventory: bool = False,
        **options: Unpack[RowLoaderKeywords],
    ) -> tuple[TableDataLoader, "IcebergDataset"]:
        """A loader of one rank's batches of an Iceberg table, and its data set.

        Args:
            table: its name in the catalog ("db.events"); with catalog_config=None the place of a metadata file
                (*.metadata.json) or the table's directory.
            catalog_config: passed to pyiceberg's `load_catalog` as it is: {"type": "sql", "uri": ...}, rest, glue,
                hive, ...; None to do without a catalog.
            filters: a pyarrow expression; exactly the rows for which it is true. Partitions, files and row groups
                that cannot match are not read.
            scan_filter: a pyiceberg expression (or its text) that leaves out data files which cannot match it; it
                filters no rows. For row filters use `filters`.
            snapshot_id, as_of_timestamp, branch, tag: the snapshot to read, at most one of them; a time is a datetime
                or milliseconds since 1970. None: the present one.
            from_snapshot_id: only the data files that appends after this snapshot added, up to the chosen one.
            path_rewrites: {old prefix: new prefix} for tables that were moved, or whose paths are spelled for another
                client ({"s3a://": "s3://"}).
            storage_options: for the storage client; by default what the catalog and catalog_config say.
            allow_empty: nothing to read gives an empty loader instead of an error.
            allow_bare_vectors: read deletion vectors without a Puffin container, as some early writers left them.
            allowed_roots: prefixes of where the table's files may lie, after path_rewrites: "s3://bucket/warehouse",
                "s3://" (any bucket), "/data". None: anywhere in the buckets (or on the machine) that hold its metadata.
                A table that names another place is refused unread.
            credentials: a function that returns storage options with credentials, called again when they expire. It
                travels to worker processes, what it returned does not. None: those that the catalog gives for the
                table; workers ask the catalog again when they expire.
            inventory: from `scan_iceberg`; then no manifest is read again.
            options: every other keyword option of `StructuredDataset.create_dataloader`, those for torch's DataLoader
                included; the options above that are not explained are explained there too.

        Returns:
            (loader, dataset). A state is bound to the snapshot that was read.

        Raises:
            ConfigError: arguments that do not fit each other or the table. NoDataError: no such table, or nothing to
                read. MissingDependencyError: pyiceberg is not installed.
            DataError: metadata, deletes or data that are corrupt or use what is not supported.
            StoreError: catalog or storage failed.
        """
        own, loader_options = separate_options(options, TABLE_OPTIONS)
        check_names(loader_options, sorted(LOADER_OPTIONS), (*TABLE_OPTIONS, *SCAN_OPTIONS))
        checked = check_loader_options(loader_options)
        dataset = cls(
            table,
            catalog_config,
            scan_filter=scan_filter,
            snapshot_id=snapshot_id,
            as_of_timestamp=as_of_timestamp,
            branch=branch,
            tag=tag,
            from_snapshot_id=from_snapshot_id,
            path_rewrites=path_rewrites,
            allowed_roots=allowed_roots,
            storage_options=storage_options,
            credentials=credentials,
            remote=remote,
            allow_empty=allow_empty,
            allow_bare_vectors=allow_bare_vectors,
            inventory=inventory,
            on_error=on_error,
            broadcast_inventory=broadcast_inventory,
            batch_size=batch_size,
            columns=columns,
            filters=filters,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            split_bytes=split_bytes,
            split_rows=split_rows,
            split_strategy=split_strategy,
            num_workers=num_workers,
            output_format=output_format,
            collate_fn=collate_fn,
            num_ranks=num_ranks,
            rank=rank,
            show_progress=show_progress,
            progress_interval_sec=progress_interval_sec,
            shuffle_buffer_size=shuffle_buffer_size,
            **own,
        )
        return make_loader(dataset, checked), dataset
