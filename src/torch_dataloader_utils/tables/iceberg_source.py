"""An Iceberg table and what to read of it, from a caller's options; and how all ranks agree on one snapshot."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import check_filters
from torch_dataloader_utils._core.arguments import check_column_names
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._store import Secret, StoreAccess
from torch_dataloader_utils.discover.iceberg.catalog import OpenTable, TablePlace, open_table
from torch_dataloader_utils.discover.iceberg.roots import Roots
from torch_dataloader_utils.discover.iceberg.snapshots import AgreedState, SnapshotChoice, choose_snapshot
from torch_dataloader_utils.discover.iceberg.table_paths import PathRules
from torch_dataloader_utils.discover.iceberg.table_scan import IcebergScanOptions
from torch_dataloader_utils.errors import ConfigTypeError, of_type

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
