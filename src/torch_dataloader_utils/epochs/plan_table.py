"""Plans as tables, for people and programs: one row for each row range that a worker reads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils._core.uses import group_uses


def rank_table(rank: int, programs: Sequence[WorkerProgram], inventory: Inventory, space: RowSpace) -> pa.Table:
    """The row ranges of one rank, worker after worker, in reading order; see `EpochPlan.to_arrow`."""
    columns: dict[str, list[Any]] = {}
    groups, paths = inventory.groups, inventory.files.paths
    for worker, program in enumerate(programs):
        for lane, units in enumerate(program.lanes or (Units.none(),)):
            uses = group_uses(units, space.group_start[:-1], space.group_start[1:])
            begin = space.group_start[uses.group]
            values = {
                "rank": np.full(len(uses), rank, dtype=np.int32),
                "worker": np.full(len(uses), worker, dtype=np.int32),
                "lane": np.full(len(uses), lane, dtype=np.int32),
                "unit": uses.unit,
                "window": units.window[uses.unit],
                "path": pa.array([paths[file] for file in groups.file[uses.group].tolist()], pa.string()),
                "row_group": groups.ordinal[uses.group],
                "start_row": uses.start,
                "stop_row": uses.stop,
                "bytes": space.bytes_between(begin + uses.start, begin + uses.stop),
            }
            for name, value in values.items():
                columns.setdefault(name, []).append(pa.array(value))
    return pa.table({name: pa.chunked_array(chunks) for name, chunks in columns.items()})
