"""`DeltaSource`: place of a Delta table, and the version that all ranks read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from torch_dataloader_utils._core.arguments import check_flag
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.option_fields import Checked, option
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._core.table_snapshot import check_snapshot
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._store import Credentials, RemoteOptions, StoreAccess, is_local
from torch_dataloader_utils.datasets.options import ALLOW_EMPTY_TEXT, CREDENTIALS_TEXT, REMOTE_TEXT, ScanOptions
from torch_dataloader_utils.discover.roots import Roots
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.tables.delta.log import VersionChoice
from torch_dataloader_utils.tables.delta.snapshot import DeltaTable
from torch_dataloader_utils.tables.delta.table_scan import DeltaScanOptions, scan_table


def _directory(_: str, table: Any) -> str:
    if not (path := check_path("table", table)):
        raise ConfigError("table is '': pass the path of the table's directory.")
    return path


@dataclass(frozen=True, kw_only=True)
class DeltaSource(Checked):
    """Place of a Delta table, and the part that is read; see `Source`."""

    has_versions: ClassVar[bool] = True

    table: str | os.PathLike[str] = option(
        MISSING,
        "Directory of the table, which holds _delta_log: a local path or a URL.",
        _directory,
        tier="everyday",
    )
    version: int | None = option(
        None, "Number of the version to read; at most one of version and timestamp. None: the newest.", tier="everyday"
    )
    storage_options: Mapping[str, Any] | None = option(
        None, "Options of the storage client.", tier="everyday", is_secret=True
    )
    timestamp: int | datetime | None = option(
        None, "Read the version of this time, a datetime or milliseconds since 1970."
    )
    from_version: int | None = option(
        None,
        "Read only the data files that were appended after this version, up to the chosen one. If a version in "
        "between deleted rows, that is an error.",
    )
    remote: RemoteOptions | None = option(None, REMOTE_TEXT)
    inventory: Inventory | None = option(
        None, "Result of `scan_delta`; then the log is not read again.", check_inventory
    )
    allowed_roots: Sequence[str] | None = option(
        None,
        'Prefixes of paths that the table may refer to: "s3://bucket/tables", "s3://" (any bucket), "/data". None: '
        "its own bucket (or machine). If it refers to another path, that is an error, and the file is not read.",
        tier="rare",
    )
    credentials: Credentials | None = option(None, CREDENTIALS_TEXT, tier="rare", is_secret=True)
    allow_empty: bool = option(False, ALLOW_EMPTY_TEXT, check_flag, tier="rare")

    @cached_property
    def place(self) -> DeltaTable:
        """Place of the table, and how it is reached."""
        access = StoreAccess.of(self.storage_options, self.credentials, self.remote)
        return DeltaTable.at(os.fspath(self.table), access, self._roots)

    @cached_property
    def _roots(self) -> Roots | None:
        return None if self.allowed_roots is None else Roots.of(self.allowed_roots)

    @property
    def is_remote(self) -> bool:
        """See Source."""
        return not is_local(os.fspath(self.table))

    def access(self) -> StoreAccess:
        """See Source."""
        return self.place.files.access

    def check_given(self, inventory: Inventory) -> None:
        """See Source."""
        check_snapshot("DeltaDataset", inventory.snapshot, "version", self.version, self.from_version)
        self._choice()
        if self._roots is not None:
            self._roots.check_inventory(inventory)

    def scan(self, options: ScanOptions, share: Share, on_progress: OnProgress | None) -> tuple[Inventory, StoreAccess]:
        """See Source."""
        wanted = of_one_version(self.place, self.scan_options(options), share)
        return share.together(lambda: scan_table(self.place, wanted, on_progress)), self.access()

    def scan_options(self, options: ScanOptions) -> DeltaScanOptions:
        """Return the options of the table's scan.

        Raises:
            ConfigTypeError, ConfigError: options of another type, or that do not fit each other.
        """
        return DeltaScanOptions(
            columns=None if options.columns is None else tuple(options.columns),
            filters=options.filters,
            version=self._choice(),
            allow_empty=self.allow_empty,
            on_error=options.on_error,
        )

    def _choice(self) -> VersionChoice:
        return VersionChoice(version=self.version, timestamp=self.timestamp, from_version=self.from_version)

    def newest(self, read: Inventory) -> "DeltaSource":
        """Return the source of the newest version; of an increment, the versions after it."""
        after = None if read.snapshot is None else read.snapshot.next_start
        return replace(self, inventory=None, version=None, timestamp=None, from_version=after)


def of_one_version(table: DeltaTable, scan: DeltaScanOptions, share: Share) -> DeltaScanOptions:
    """Return the options of a scan of the version that rank 0 finds, on all processes of the share.

    Raises:
        NoDataError, ConfigError, DataError, StoreError: rank 0 did not find the version; all ranks raise it.
    """
    if share.count == 1:
        return scan
    mine = share.together(lambda: table.version(scan.version) if share.index == 0 else 0)
    version = int(share.exchange(np.array([mine]))[0])
    return replace(scan, version=replace(scan.version, version=version, timestamp=None))
