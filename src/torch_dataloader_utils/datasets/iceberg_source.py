"""`IcebergSource`: place of an Iceberg table, and the snapshot that all ranks read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from torch_dataloader_utils._core.arguments import check_flag
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.option_fields import Checked, option
from torch_dataloader_utils._core.table_snapshot import check_snapshot
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._store import Credentials, RemoteOptions, Secret, StoreAccess, is_local
from torch_dataloader_utils.datasets.options import ALLOW_EMPTY_TEXT, CREDENTIALS_TEXT, REMOTE_TEXT, ScanOptions
from torch_dataloader_utils.discover.roots import PathRules, Roots
from torch_dataloader_utils.errors import ConfigTypeError, of_type
from torch_dataloader_utils.tables.iceberg.catalog import OpenTable, TablePlace, open_table
from torch_dataloader_utils.tables.iceberg.snapshots import AgreedState, SnapshotChoice, choose_snapshot
from torch_dataloader_utils.tables.iceberg.table_scan import IcebergScanOptions, scan_table

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

# Stands for "no snapshot" among snapshot ids, as in tables of format version 1.
_NO_SNAPSHOT = -1

# Options that choose the snapshot.
_SNAPSHOT_OPTIONS = ("snapshot_id", "as_of_timestamp", "branch", "tag", "from_snapshot_id", "allow_rewrites")


def _table_name(_: str, table: Any) -> str:
    name = os.fspath(table) if isinstance(table, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        given = repr(name) if name == "" else of_type(table)
        raise ConfigTypeError(
            f'table is {given}: pass its name in the catalog ("db.events") or, without catalog_config, the path of its '
            "metadata file or directory."
        )
    return name


@dataclass(frozen=True, kw_only=True)
class IcebergSource(Checked):
    """Place of an Iceberg table, and the part that is read; see `Source`."""

    has_versions: ClassVar[bool] = True

    table: str | os.PathLike[str] = option(
        MISSING,
        'Name of the table in the catalog ("db.events"); with catalog_config=None the path of a metadata file '
        "(*.metadata.json) or of the table's directory.",
        _table_name,
        tier="everyday",
    )
    catalog_config: Mapping[str, Any] | None = option(
        None,
        'Arguments of `load_catalog` of pyiceberg: {"type": "sql", "uri": ...}, rest, glue, hive, ...; None: no '
        "catalog.",
        tier="everyday",
        is_secret=True,
    )
    snapshot_id: int | None = option(
        None,
        "Id of the snapshot to read; at most one of snapshot_id, as_of_timestamp, branch and tag, except a snapshot_id "
        "with its branch. None: the current one. A refresh reads the newest snapshot of the branch or the table.",
        tier="everyday",
    )
    scan_filter: "BooleanExpression | str | None" = option(
        None,
        "A pyiceberg expression (or its text) that leaves out data files that cannot match it. It does not filter "
        "rows; for that, use `filters`.",
    )
    as_of_timestamp: int | datetime | None = option(
        None, "Read the snapshot of this time, a datetime or milliseconds since 1970."
    )
    branch: str | None = option(None, "Name of a branch; its last snapshot is read.")
    tag: str | None = option(None, "Name of a tag; its snapshot is read.")
    from_snapshot_id: int | None = option(
        None,
        "Read only the data files that were appended after this snapshot, up to the chosen one. If a snapshot in "
        "between deleted or rewrote rows, that is an error.",
    )
    storage_options: Mapping[str, Any] | None = option(
        None,
        "Options of the storage client; by default the options of the catalog and of catalog_config.",
        is_secret=True,
    )
    remote: RemoteOptions | None = option(None, REMOTE_TEXT)
    inventory: Inventory | None = option(
        None, "Result of `scan_iceberg`; then no manifest is read again.", check_inventory
    )
    allow_rewrites: bool = option(
        False,
        "With from_snapshot_id, ignore snapshots that deleted or rewrote rows, instead of an error.",
        check_flag,
        tier="rare",
    )
    path_rewrites: Mapping[str, str] | None = option(
        None,
        '{old prefix: new prefix}, for tables that were moved, or have paths for another client ({"s3a://": "s3://"}).',
        tier="rare",
    )
    allowed_roots: Sequence[str] | None = option(
        None,
        'Prefixes of paths that the table may refer to, after path_rewrites: "s3://bucket/warehouse", "s3://" (any '
        'bucket), "/data". None: the buckets (or the machine) of its metadata. If it refers to another path, that is '
        "an error, and the file is not read.",
        tier="rare",
    )
    credentials: Credentials | None = option(
        None,
        f"{CREDENTIALS_TEXT} None: the credentials that the catalog gives for the table; workers ask the catalog again "
        "when they expire.",
        tier="rare",
        is_secret=True,
    )
    allow_empty: bool = option(False, ALLOW_EMPTY_TEXT, check_flag, tier="rare")
    allow_bare_vectors: bool = option(
        False,
        "Read deletion vectors without a Puffin container, which some early writers wrote.",
        check_flag,
        tier="rare",
    )

    @cached_property
    def place(self) -> TablePlace:
        """Place of the table, and how it is reached.

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

    @property
    def is_remote(self) -> bool:
        """See Source."""
        return self.catalog_config is not None or not is_local(self.place.table)

    def open(self) -> OpenTable:
        """Open the table as it is now."""
        return open_table(self.place)

    def access(self) -> StoreAccess:
        """Return how the table's files are reached; ask the catalog, unless the caller said how."""
        asks = self.catalog_config is not None and self.storage_options is None and self.credentials is None
        return self.open().files.access if asks else self.place.access

    def check_given(self, inventory: Inventory) -> None:
        """See Source."""
        check_snapshot("IcebergDataset", inventory.snapshot, "snapshot", self.snapshot_id, self.from_snapshot_id)
        self._choice()
        if self.place.allowed_roots is not None:
            self.place.allowed_roots.check_inventory(inventory)

    def scan(self, options: ScanOptions, share: Share, on_progress: OnProgress | None) -> tuple[Inventory, StoreAccess]:
        """See Source."""
        opened, wanted = open_alike(self, self.scan_options(options), share)
        return share.together(lambda: scan_table(opened, wanted, on_progress)), opened.files.access

    def scan_options(self, options: ScanOptions) -> IcebergScanOptions:
        """Return the options of the table's scan.

        Raises:
            ConfigTypeError, ConfigError: options of another type, or that do not fit each other.
        """
        return IcebergScanOptions(
            columns=None if options.columns is None else tuple(options.columns),
            filters=options.filters,
            scan_filter=self.scan_filter,
            snapshot=self._choice(),
            allow_bare_vectors=self.allow_bare_vectors,
            allow_empty=self.allow_empty,
            on_error=options.on_error,
        )

    def _choice(self) -> SnapshotChoice:
        return SnapshotChoice(**{name: getattr(self, name) for name in _SNAPSHOT_OPTIONS})

    def newest(self, read: Inventory) -> "IcebergSource":
        """Return the source of the newest snapshot of the branch or table; of an increment, the snapshots after it."""
        after = None if read.snapshot is None else read.snapshot.next_start
        return replace(self, inventory=None, snapshot_id=None, as_of_timestamp=None, tag=None, from_snapshot_id=after)


def _catalog_secret(catalog_config: Any) -> Secret | None:
    if catalog_config is None:
        return None
    if not isinstance(catalog_config, Mapping):
        raise ConfigTypeError(
            f"catalog_config is {of_type(catalog_config)}: pass a dict of the arguments of pyiceberg's load_catalog. "
            'A catalog of its configuration file goes by its name alone: {"name": "prod"}.'
        )
    return Secret(dict(catalog_config))


def open_alike(source: IcebergSource, scan: IcebergScanOptions, share: Share) -> tuple[OpenTable, IcebergScanOptions]:
    """Open the table for a scan of one snapshot and schema on all processes of the share.

    Rank 0 opens the table first, and sends the ids of the snapshot and the schema that it found.

    Raises:
        NoDataError, ConfigError, DataError, StoreError: a rank could not open the table, or did not find the snapshot;
            all ranks raise it.
    """
    if share.count == 1:
        return source.open(), scan
    first, found = share.together(lambda: _look(source, scan) if share.index == 0 else (None, (0, 0)))
    snapshot_id, schema_id = share.exchange(np.array(found)).tolist()
    agreed = AgreedState(snapshot_id=None if snapshot_id == _NO_SNAPSHOT else snapshot_id, schema_id=schema_id)
    return share.together(lambda: first or source.open()), replace(scan, snapshot=replace(scan.snapshot, agreed=agreed))


def _look(source: IcebergSource, scan: IcebergScanOptions) -> tuple[OpenTable, tuple[int, int]]:
    """Return the table, and the ids of the snapshot and the schema that the scan would read now."""
    opened = source.open()
    target = choose_snapshot(opened.metadata, scan.snapshot, opened.name)
    snapshot_id = _NO_SNAPSHOT if target.snapshot is None else target.snapshot.snapshot_id
    return opened, (snapshot_id, target.schema.schema_id)
