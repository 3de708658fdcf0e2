"""The files of a data set, from a caller's paths and options; and how all ranks agree on one inventory."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.splits import DataFileInfo
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils._store import StoreAccess, redact
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.rank_agreement import compare_options, scanning_share, shows_bars
from torch_dataloader_utils.datasets.row_counts import under_filter
from torch_dataloader_utils.discover.bad_files import lies_in
from torch_dataloader_utils.discover.file_scan import ScanRequest
from torch_dataloader_utils.discover.formats import file_format_of
from torch_dataloader_utils.discover.paths import PathLike
from torch_dataloader_utils.discover.scan import scan_paths
from torch_dataloader_utils.stream.ranks import from_rank_zero

Files = Sequence[DataFileInfo | PathLike] | PathLike


def find_inventory(
    files: Files,
    format: str,  # noqa: A002  # the field's name for it
    options: TableOptions,
    *,
    partitioning: Any,
    access: StoreAccess,
    inventory: Inventory | None,
    allow_bare_files: bool = False,
) -> Inventory:
    """The inventory that was given, if it fits the filter, or that of the files.

    One that was given is what is read: if it has files elsewhere than in `files`, that is a warning.

    Raises:
        ConfigTypeError: `inventory` is no inventory. ConfigError: it was scanned with another filter.
        ConfigError, DataError, StoreError: as `scan_files`; and see `compare_options`, Share.check_alike.
    """
    compare_options(options, scanning_share(options))
    if inventory is None:
        paths = files if isinstance(files, str) or not isinstance(files, Sequence) else [_path(file) for file in files]
        request = ScanRequest(
            file_format=file_format_of(format),
            columns=None if options.columns is None else tuple(options.columns),
            row_filter=options.filters,
            count_rows=options.count_rows is not False,
            on_error=options.on_error,
        )
        scan = partial(scan_paths, paths, access, request, partitioning=partitioning, allow_bare_files=allow_bare_files)
        with work_bar("footers", is_wanted=shows_bars(options)) as on_progress:
            scan = partial(scan, on_progress=on_progress)
            inventory = from_rank_zero(scan) if options.broadcast_inventory else _scan_alike(scan, options)
    else:
        _check_place(check_inventory(inventory), files)
    return under_filter(inventory, options.filters)


def _check_place(inventory: Inventory, files: Files) -> None:
    """Warns if files of the inventory lie outside of what the caller names, unless that is nothing, or a table."""
    given = files if isinstance(files, Sequence) and not isinstance(files, str) else [files]
    named = [os.fspath(path) for path in map(_path, given) if isinstance(path, (str, os.PathLike)) and path]
    paths = inventory.files.paths
    if not named or inventory.snapshot or not len(paths):
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


def _path(file: DataFileInfo | PathLike) -> PathLike:
    return file.path if isinstance(file, DataFileInfo) else file
