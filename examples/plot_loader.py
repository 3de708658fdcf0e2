"""Loader throughput on this machine, and how evenly a plan divides rows: .demo/loader.png.

    pip install matplotlib
    python -m examples.plot_loader

The left picture is as noisy as the machine; `tdu bench` and benchmarks/ measure with care. The right one is arithmetic.
"""

from pathlib import Path
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
from examples.trips import FEATURES, find_trips
from matplotlib.axes import Axes

from torch_dataloader_utils import Inventory, StructuredDataset, plan_epoch, scan_files

BATCH_SIZES = (64, 256, 1024, 4096)
ENGINES = {"threads": 0, "2 processes": 2}
REPEATS = 3
NUM_RANKS = 8


def rows_per_second(inventory: Inventory, batch_size: int, num_workers: int) -> float:
    """The best of a few epochs, the first of which fills the file cache."""
    loader, dataset = StructuredDataset.create_dataloader(
        "in the inventory",
        inventory=inventory,
        columns=[*FEATURES, "fare"],
        stack={"x": FEATURES},
        batch_size=batch_size,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    rates = []
    for epoch in range(REPEATS):
        dataset.set_epoch(epoch)
        begin = perf_counter()
        rows = sum(batch.num_rows for batch in loader)
        rates.append(rows / (perf_counter() - begin))
    return max(rates)


def plot_throughput(axes: Axes, inventory: Inventory) -> None:
    """Rows a second by batch size, a line for each engine."""
    for name, num_workers in ENGINES.items():
        rates = [rows_per_second(inventory, batch_size, num_workers) for batch_size in BATCH_SIZES]
        axes.plot(BATCH_SIZES, rates, marker="o", label=name)
        print(name, [f"{rate:,.0f} rows/s" for rate in rates])
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="rows / s", title="Throughput, one rank")
    axes.set_xticks(BATCH_SIZES, [str(size) for size in BATCH_SIZES])
    axes.legend()


def plot_balance(axes: Axes, inventory: Inventory) -> None:
    """Rows of every rank, with and without balancing."""
    for offset, sharding in enumerate(("chunks", "rows")):
        plan = plan_epoch(inventory, num_ranks=NUM_RANKS, batch_size=256, shuffle=True, rank_sharding=sharding)
        axes.bar(np.arange(NUM_RANKS) + 0.4 * offset, plan.rank_rows, width=0.4, label=f'rank_sharding="{sharding}"')
        print(f"{sharding}: rows of ranks {plan.rank_rows}, steps {plan.rank_steps}")
    axes.set(xlabel="rank", ylabel="rows", title=f"One epoch on {NUM_RANKS} ranks")
    axes.legend()


def main() -> None:
    """Draw both pictures."""
    inventory = scan_files(find_trips(), partitioning="hive")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    plot_throughput(left, inventory)
    plot_balance(right, inventory)
    target = Path(".demo/loader.png")
    figure.savefig(target, dpi=120)
    print(target)


if __name__ == "__main__":
    main()
