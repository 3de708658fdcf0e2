"""on_error="skip": every row group is decoded once before the plan, and bad ones are left out of the inventory.

A plan promises its steps before anything is read. So what cannot be read has to be known by then: skipped later, a
row group would leave its rank short of the others. docs/design/0010-faults.md has the argument.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory
from torch_dataloader_utils._core.parallel import map_watched
from torch_dataloader_utils._core.share import Share
from torch_dataloader_utils._core.user_warning import warn_user
from torch_dataloader_utils.discover import with_live_rows
from torch_dataloader_utils.errors import (
    CorruptFileError,
    DataError,
    NoDataError,
    RowCountError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.read.reader import Reader

_log = logging.getLogger(__name__)

# A file that changed or does not fit the schema is not bad data, and storage that fails says nothing of the data.
_SKIPPED: tuple[type[DataError], ...] = (CorruptFileError, RowCountError, UnsupportedFeatureError)
_MOST_NAMED = 20


def leave_out_bad_groups(
    inventory: Inventory, reader: Reader, share: Share, on_progress: Callable[[int, int], None] | None = None
) -> Inventory:
    """The inventory without the row groups that `reader` cannot read; the others have their live rows counted.

    Each row group left out is logged, and noted in the inventory.

    share: which row groups this process reads.
    on_progress: called in the caller's thread after each row group with (row groups done, row groups of this process).

    Raises:
        NoDataError: nothing is left. StoreError, FileChangedError, SchemaError: these are never skipped; all processes
            of the share raise them.
    """
    mine = share.of(inventory.num_groups)
    verdicts = share.together(
        lambda: map_watched(
            lambda group: _verify(inventory, reader, group),
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
    notes = _notes(inventory, bad, fault)
    warn_user("; ".join(notes))
    kept = with_live_rows(inventory, np.where(fault > 0, 0, live_rows))
    return replace(kept, notes=(*inventory.notes, *notes))


def _verify(inventory: Inventory, reader: Reader, group: int) -> tuple[int, int]:
    """(live rows, 0), or (0, number of the fault)."""
    try:
        return reader.read(inventory.task(group)).num_rows, 0
    except _SKIPPED as error:
        _log.warning("left out: %s", error)
        return 0, next(i for i, kind in enumerate(_SKIPPED, start=1) if isinstance(error, kind))


def _notes(inventory: Inventory, bad: Int64s, fault: Int64s) -> tuple[str, ...]:
    groups = inventory.groups
    rows = groups.physical_rows[bad]
    total = f"{int(rows.sum()):,} rows" if (rows != UNKNOWN).all() else "uncounted rows"
    lines = [f"on_error=skip left out {len(bad):,} of {len(groups):,} row groups with {total}"]
    lines.extend(
        f"{inventory.task(group).where}: {_SKIPPED[int(fault[group]) - 1].__name__}"
        for group in bad[:_MOST_NAMED].tolist()
    )
    if len(bad) > _MOST_NAMED:
        lines.append(f"and {len(bad) - _MOST_NAMED:,} more, in the log")
    return tuple(lines)
