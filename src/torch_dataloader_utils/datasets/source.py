"""`find_inventory` gives all ranks one inventory of a `Source`, the place of the data of a data set."""

from dataclasses import replace
from typing import Protocol, Self

from torch_dataloader_utils._core.arguments import check_function
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.datasets.options import ScanOptions, TableOptions
from torch_dataloader_utils.datasets.rank_agreement import (
    Ranks,
    compare_options,
    counting_share,
    is_scanned_once,
    scanning_share,
    shows_bars,
)
from torch_dataloader_utils.datasets.row_counts import count_alone, under_filter
from torch_dataloader_utils.discover.content import identified
from torch_dataloader_utils.ranks.agree import from_rank_zero
from torch_dataloader_utils.samples.sample_counts import check_counts_rows


class Source(Protocol):
    """Place of the data of a data set, and how the data is scanned: `FileSource`, `IcebergSource` or `DeltaSource`."""

    @property
    def inventory(self) -> Inventory | None:
        """Inventory that the caller has scanned already."""

    @property
    def is_remote(self) -> bool:
        """Whether a scan asks servers."""

    @property
    def has_versions(self) -> bool:
        """Whether ranks that scan at different times may find different versions, and have to agree on one."""

    def access(self) -> StoreAccess:
        """Return how files are reached. Asks the catalog of a table for credentials, if it has one."""

    def check_given(self, inventory: Inventory) -> None:
        """Check that the inventory of the caller fits the other options.

        Raises:
            ConfigError: the inventory is of another version. UnsupportedFeatureError: it refers to files that are not
                allowed.
        """

    def scan(self, options: ScanOptions, share: Share, on_progress: OnProgress | None) -> tuple[Inventory, StoreAccess]:
        """Scan the data, and return how its files are reached.

        Args:
            options: Columns, filter, and how files are judged.
            share: Processes that scan one version together. Each process calls this.
            on_progress: Called after each data file with (files done, files to scan).

        Raises:
            ConfigError, DataError, StoreError: the same on all processes of the share.
        """

    def newest(self, read: Inventory) -> Self:
        """Return the source of newer data, to be read after `read`."""


def find_inventory(source: Source, options: TableOptions, ranks: Ranks) -> tuple[Inventory, StoreAccess]:
    """Return the inventory, the same on all ranks, and how its files are reached.

        inventory=       nothing is scanned
        rank 0 scans     and sends its inventory to the other ranks: for remote data, or broadcast_inventory=True
        each rank scans  the version of a table that rank 0 has found; or files, compared if ranks read rows together

    Each rank gets credentials itself: credentials are never sent between ranks.

    Raises:
        ConfigError: options of ranks differ, or the inventory was scanned with another filter or for `pack=`.
        DataError, StoreError: data could not be scanned; the same on all ranks that scan together.
    """
    if source.inventory is None:
        inventory, access = _scan(source, options, ranks)
    else:
        inventory, access = _given(source, source.inventory, options, ranks)
    if inventory.left_out and options.columns is not None:
        inventory = replace(inventory, left_out=())
    return inventory, access


def _given(source: Source, inventory: Inventory, options: TableOptions, ranks: Ranks) -> tuple[Inventory, StoreAccess]:
    source.check_given(inventory)
    if options.pack is None or inventory.sequences is not None:
        check_counts_rows(inventory)
    reads_files = options.identity == "content"
    once = reads_files and is_scanned_once(options, ranks, is_remote=source.is_remote)
    compare_options(options, ranks, meets=once or scanning_share(options, ranks).count > 1)
    access = source.access()
    if once:
        inventory = from_rank_zero(lambda: identified(inventory, options.identity, access))
    elif reads_files:
        inventory = identified(inventory, options.identity, access)
    return under_filter(inventory, options.filters), access


def _scan(source: Source, options: TableOptions, ranks: Ranks) -> tuple[Inventory, StoreAccess]:
    share = counting_share(options, ranks) if source.has_versions else scanning_share(options, ranks)
    once = is_scanned_once(options, ranks, is_remote=source.is_remote)
    compare_options(options, ranks, meets=once or share.count > 1)
    with work_bar("data files" if source.has_versions else "footers", is_wanted=shows_bars(options)) as on_progress:
        if not once:
            return _scan_by(share, source, options, on_progress)
        inventory = from_rank_zero(lambda: _scan_by(Share(), source, options, on_progress)[0])
    access = share.together(source.access)
    # Without check_ranks, the filter of rank 0 may be another one.
    return under_filter(inventory, options.filters), access


def _scan_by(
    share: Share, source: Source, options: ScanOptions, on_progress: OnProgress | None
) -> tuple[Inventory, StoreAccess]:
    inventory, access = source.scan(options, share, on_progress)
    if options.identity == "content":
        inventory = share.together(lambda: identified(inventory, options.identity, access))
    return inventory, access


def scan_alone(source: Source, options: ScanOptions, on_progress: OnProgress | None) -> Inventory:
    """Scan in this process alone, and count the rows that filters and deletes leave.

    Raises:
        ConfigTypeError: on_progress cannot be called. ConfigError, DataError, StoreError: see `Source.scan`.
    """
    check_function("on_progress", on_progress)
    inventory, access = _scan_by(Share(), source, options, on_progress)
    return count_alone(inventory, options.filters, access) if options.count_rows else inventory
