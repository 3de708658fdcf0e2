"""Writes the files of this version; run once when a version is released: python -m tests.compat.make 1.0

The table is made up of arrays alone, so that its fingerprint depends on no file system.
"""

import json
import sys
from pathlib import Path

import numpy as np

from torch_dataloader_utils import Inventory, plan_epoch
from torch_dataloader_utils._core.inventory import FileTable, GroupTable, StringColumn, planning_fingerprint
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.state import Identity, encode_state


def make_inventory() -> Inventory:
    """Four files of row groups of 5 to 30 rows."""
    rows = np.array([20, 30, 5, 25, 10, 30, 30, 15], dtype=np.int64)
    file = np.array([0, 0, 1, 1, 1, 2, 3, 3], dtype=np.int32)
    ordinal = np.array([0, 1, 0, 1, 2, 0, 0, 1], dtype=np.int32)
    zeros = np.zeros(8, dtype=np.int64)
    return Inventory(
        files=FileTable(
            paths=StringColumn.of(["a", "b", "c", "d"]),
            sizes=np.array([1, 2, 3, 4]),
            identities=StringColumn.of(["i", "j", "k", "l"]),
            formats=np.ones(4, dtype=np.uint8),
        ),
        groups=GroupTable(
            file=file,
            ordinal=ordinal,
            first_row=zeros,
            physical_rows=rows,
            live_rows=rows,
            projected_bytes=np.array([60, 1200, 300, 90, 800, 10, 500, 700]),
            byte_offset=zeros,
            byte_length=zeros,
        ),
        schema=b"",
        source="compat",
    )


OPTIONS = PlanOptions(shuffle=True, seed=7, shuffle_rows=16, split_rows=20, interleave=2)
HISTORY = (Segment(topology=Topology(num_ranks=3, num_workers=2, batch_size=4), steps=5),)


def make_state():
    """A state of epoch 2 that has seen two topologies."""
    identity = Identity(fingerprint=planning_fingerprint(make_inventory()), options=OPTIONS)
    present = Segment(topology=Topology(num_ranks=2, num_workers=1, batch_size=6), steps=3)
    return encode_state(identity, Position(epoch=2, history=HISTORY, segment=present))


def make_plan():
    """The rows of each row group by rank and worker, windows and cuts included."""
    plan = plan_epoch(
        make_inventory(),
        num_ranks=2,
        num_workers=2,
        batch_size=6,
        shuffle=True,
        seed=7,
        epoch=2,
        split_rows=20,
        shuffle_rows=16,
        interleave=2,
    )
    return {"fingerprint": plan.fingerprint, "rows": plan.to_arrow().to_pylist()}


if __name__ == "__main__":
    folder = Path(__file__).parent / sys.argv[1]
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps(make_state(), indent=1) + "\n")
    (folder / "plan.json").write_text(json.dumps(make_plan(), indent=1) + "\n")
