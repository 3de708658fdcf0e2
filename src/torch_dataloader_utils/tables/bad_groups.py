"""on_error="skip": every row group is decoded once before the plan, and bad ones are left out of the inventory.

A plan promises its steps before anything is read, so it must be known by then what cannot be read: a row group that is
skipped later would leave its rank with fewer rows than the others. See docs/design/0010-faults.md.
"""

from dataclasses import replace

import numpy as np

from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory
from torch_dataloader_utils._core.skipping import BAD_DATA, log_left_out, report_left_out
from torch_dataloader_utils._runtime.parallel import OnProgress, map_watched
from torch_dataloader_utils.discover import with_live_rows
from torch_dataloader_utils.errors import NoDataError
from torch_dataloader_utils.read.reader import Reader


def leave_out_bad_groups(
    inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None
) -> Inventory:
    """The inventory without the row groups that `reader` cannot read; the others have their live rows counted.

    Each row group left out is logged, and noted in the inventory.

    share: which row groups this process reads.
    on_progress: called in the caller's thread after each row group with (row groups done, row groups of this process).

    Raises:
        NoDataError: nothing is left. StoreError, FileChangedError, SchemaError: these are never skipped; all processes
            of the share raise them. DataError: see Share.check_alike.
    """
    share.check_alike(inventory)
    mine = share.of(inventory.num_groups)
    verdicts = share.together(
        lambda: map_watched(
            lambda group: _check(inventory, reader, group),
            mine,
            threads=share.threads,
            name="tdu-verify",
            on_progress=on_progress,
        )
    )
    found = np.zeros((2, inventory.num_groups), dtype=np.int64)
    found[:, mine] = np.array(verdicts, dtype=np.int64).reshape(-1, 2).T
    live_rows, fault = share.exchange(found)
    bad = np.flatnonzero(fault)
    if len(bad) == 0:
        return with_live_rows(inventory, live_rows)
    if len(bad) == inventory.num_groups:
        raise NoDataError(f"{inventory.source}: not one of {len(bad)} row groups can be read. The log has each reason.")
    notes = _report(inventory, bad, fault)
    kept = with_live_rows(inventory, np.where(fault > 0, 0, live_rows))
    return replace(kept, notes=(*inventory.notes, *notes))


def _check(inventory: Inventory, reader: Reader, group: int) -> tuple[int, int]:
    """(live rows, 0), or (0, number of the fault)."""
    try:
        return reader.read(inventory.task(group)).num_rows, 0
    except BAD_DATA as error:
        log_left_out(error)
        return 0, next(i for i, kind in enumerate(BAD_DATA, start=1) if isinstance(error, kind))


def _report(inventory: Inventory, bad: Int64s, fault: Int64s) -> tuple[str, ...]:
    rows = inventory.groups.physical_rows[bad]
    return report_left_out(
        (f"{inventory.task(group).where}: {BAD_DATA[int(fault[group]) - 1].__name__}" for group in bad.tolist()),
        count=len(bad),
        total=inventory.num_groups,
        units="row groups",
        rows=int(rows.sum()) if (rows != UNKNOWN).all() else None,
    )
