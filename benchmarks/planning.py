"""The cost of the plan of one of 1,024 ranks × 8 workers over 1,000,000 row groups.

python benchmarks/planning.py [row groups]
"""

import pickle
import resource
import statistics
import sys
import tracemalloc
from dataclasses import fields

import numpy as np
from measure import print_machine, save, seconds

from torch_dataloader_utils import Inventory, plan_epoch
from torch_dataloader_utils._core.inventory import FileTable, GroupTable, StringColumn


def make_inventory(rows: np.ndarray, groups_per_file: int) -> Inventory:
    """Files that nobody wrote, whose row groups have so many rows of 241 bytes."""
    groups = len(rows)
    files = groups // groups_per_file
    file = np.repeat(np.arange(files, dtype=np.int32), groups_per_file)
    ordinal = np.tile(np.arange(groups_per_file, dtype=np.int32), files)
    zeros = np.zeros(groups, dtype=np.int64)
    return Inventory(
        files=FileTable(
            paths=StringColumn.of(f"s3://bucket/table/part-{i:07}.parquet" for i in range(files)),
            sizes=np.full(files, 1 << 30),
            identities=StringColumn.of(f"{i:032x}" for i in range(files)),
            formats=np.ones(files, dtype=np.uint8),
        ),
        groups=GroupTable(
            file=file,
            ordinal=ordinal,
            first_row=zeros,
            physical_rows=rows,
            live_rows=rows,
            projected_bytes=rows * 241,
            byte_offset=zeros,
            byte_length=zeros,
        ),
        schema=b"",
        source="made up",
    )


def plan_one_rank(inventory: Inventory, epoch: int):
    plan = plan_epoch(
        inventory, num_ranks=1024, num_workers=8, shuffle=True, epoch=epoch, split_bytes=1, shuffle_rows=65_536
    )
    return plan.worker_inputs(517)


def _num_bytes(*tables: GroupTable | StringColumn) -> int:
    return sum(getattr(table, field.name).nbytes for table in tables for field in fields(table))


def main() -> None:
    groups = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    inventory = make_inventory(np.random.default_rng(0).integers(50_000, 80_000, groups), groups_per_file=50)
    plan_one_rank(inventory, 0)
    times = [seconds(lambda e=epoch: plan_one_rank(inventory, e)) for epoch in range(1, 6)]
    tracemalloc.start()
    works = plan_one_rank(inventory, 9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    figures = {
        "row_groups": groups,
        "seconds_of_one_epoch": [round(time, 3) for time in times],
        "median_seconds": statistics.median(times),
        "inventory_mb": _num_bytes(inventory.groups, inventory.files.paths) / 1e6,
        "inventory_pickle_mb": len(pickle.dumps(inventory, protocol=5)) / 1e6,
        "planning_peak_mb": peak / 1e6,
        "one_worker_input_pickle_kb": len(pickle.dumps(works[0], protocol=5)) / 1e3,
        "process_peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    print_machine()
    for name, figure in figures.items():
        print(f"{name:<28} {figure}")
    save("planning", **figures)


if __name__ == "__main__":
    main()
