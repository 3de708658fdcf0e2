"""Writes the files of this version; run once when a version is released: python -m tests.compat.make 1.0

    1.0             states of version 2
    1.0-state-3     states of version 3

chunks.json is a state from when shuffle=True permuted chunks only, which is shuffle="chunks" now.

The table is made up of arrays alone, so that its fingerprint depends on no file system.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from torch_dataloader_utils import Inventory, plan_epoch
from torch_dataloader_utils._core.inventory import FileTable, GroupTable, StringColumn, planning_fingerprint
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, RankCursors, Segment
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


def _segment(num_ranks, num_workers, batch_size, steps, *, drop_last=False, cursors=None):
    topology = Topology(num_ranks=num_ranks, num_workers=num_workers, batch_size=batch_size, drop_last=drop_last)
    return Segment(topology=topology, steps=steps, cursors=cursors)


def _cursors(*workers, next_worker=1):
    return RankCursors(workers=workers, next_worker=next_worker)


# Name: (the place, the worker that saved it for itself).
STATES = {
    "state": (Position(epoch=2, history=(_segment(3, 2, 4, 5),), segment=_segment(2, 1, 6, 3)), None),
    "long": (
        Position(
            epoch=2,
            history=(
                *(_segment(1 + hop % 3, 1, 1, hop % 2, drop_last=hop % 5 == 0) for hop in range(30)),
                _segment(3, 2, 4, (2, None, 1)),
                _segment(2, 1, 1, 1),
            ),
            segment=_segment(2, 3, 2, 2),
        ),
        None,
    ),
    "cursors": (
        Position(
            epoch=1,
            segment=_segment(
                2, 2, 4, 5, cursors=((0, _cursors((1, 2), (0, 8))), (1, _cursors((3, 0), (2, 1), next_worker=1)))
            ),
        ),
        None,
    ),
    "worker": (Position(epoch=0, segment=_segment(1, 2, 4, 4, cursors=((0, _cursors((0, 0), (1, 3))),))), 1),
    "end": (
        Position(epoch=3, before=(_segment(2, 1, 6, 1), _segment(2, 2, 4, None)), segment=Segment(topology=Topology())),
        None,
    ),
}


def make_state(name):
    """A state of version 3."""
    identity = Identity(fingerprint=planning_fingerprint(make_inventory()), options=OPTIONS)
    return encode_state(identity, *STATES[name])


DEFAULT_WINDOWS = PlanOptions(shuffle=True, seed=7, split_rows=20, interleave=2, default_windows=True)


def make_default_state():
    """A state of shuffle=True with windows of the default size."""
    identity = Identity(fingerprint=planning_fingerprint(make_inventory()), options=DEFAULT_WINDOWS)
    return encode_state(identity, *STATES["state"])


def make_plan(inventory=None, **options):
    """The rows of each row group by rank and worker, windows and cuts included."""
    plan = plan_epoch(
        make_inventory() if inventory is None else inventory,
        num_ranks=2,
        num_workers=2,
        batch_size=6,
        seed=7,
        epoch=2,
        **options,
    )
    return {"fingerprint": plan.fingerprint, "rows": plan.to_arrow().to_pylist()}


def make_plans():
    """Plans by the name of their file."""
    inventory = make_inventory()
    large = replace(inventory, groups=replace(inventory.groups, projected_bytes=inventory.groups.projected_bytes << 14))
    return {
        "plan": make_plan(shuffle=True, split_rows=20, shuffle_rows=16, interleave=2),
        # Rows of 363 KB: 5 of them in 2 MiB.
        "default-windows": make_plan(large, shuffle=True, split_rows=20, interleave=2),
        "chunks-plan": make_plan(shuffle="chunks", split_rows=20),
        "stored-plan": make_plan(split_rows=20),
    }


if __name__ == "__main__":
    folder = Path(__file__).parent / sys.argv[1]
    folder.mkdir(exist_ok=True)
    for name in STATES:
        (folder / f"{name}.json").write_text(json.dumps(make_state(name), indent=1) + "\n")
    (folder / "default-windows-state.json").write_text(json.dumps(make_default_state(), indent=1) + "\n")
    for name, plan in make_plans().items():
        (folder / f"{name}.json").write_text(json.dumps(plan, indent=1) + "\n")
