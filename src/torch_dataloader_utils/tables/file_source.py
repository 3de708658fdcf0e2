"""The files of a data set, from a caller's paths and options; and how all ranks agree on one inventory."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.splits import DataFileInfo
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.discover.file_scan import ScanRequest
from torch_dataloader_utils.discover.formats import file_format_of
from torch_dataloader_utils.discover.paths import PathLike
from torch_dataloader_utils.discover.scan import scan_paths
from torch_dataloader_utils.stream.rank_work import from_rank_zero
from torch_dataloader_utils.tables.counting import under_filter
from torch_dataloader_utils.tables.rank_share import scanning_share, shows_bars
from torch_dataloader_utils.tables.table_options import TableOptions

Files = Sequence[DataFileInfo | PathLike] | PathLike


def find_inventory(
    files: Files,
    format: str,  # noqa: A002  # the field's name for it
    options: TableOptions,
    *,
    partitioning: Any,
    access: StoreAccess,
    inventory: Inventory | None,
) -> Inventory:
    """The inventory that was given, if it fits the filter, or that of the files.

    Raises:
        ConfigTypeError: `inventory` is no inventory. ConfigError: it was scanned with another filter.
        ConfigError, DataError, StoreError: as `scan_files`. DataError: see Share.check_alike.
    """
    if inventory is None:
        paths = files if isinstance(files, str) or not isinstance(files, Sequence) else [_path(file) for file in files]
        request = ScanRequest(
            file_format=file_format_of(format),
            columns=None if options.columns is None else tuple(options.columns),
            row_filter=options.filters,
            count_rows=options.count_rows is not False,
            on_error=options.on_error,
        )
        scan = partial(scan_paths, paths, access, request, partitioning=partitioning)
        with work_bar("footers", is_wanted=shows_bars(options)) as on_progress:
            scan = partial(scan, on_progress=on_progress)
            inventory = from_rank_zero(scan) if options.broadcast_inventory else _scan_alike(scan, options)
    return under_filter(check_inventory(inventory), options.filters)


def _scan_alike(scan: Callable[[], Inventory], options: TableOptions) -> Inventory:
    """This rank's own scan, compared with those of the ranks that it will read with."""
    share = scanning_share(options)
    inventory = share.together(scan)
    share.check_alike(inventory)
    return inventory


def _path(file: DataFileInfo | PathLike) -> PathLike:
    return file.path if isinstance(file, DataFileInfo) else file
