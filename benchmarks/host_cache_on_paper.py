"""What would caches of some sizes save on many hosts? Computed from plans alone: nothing is read.

    python benchmarks/host_cache_on_paper.py [--terabytes 100] [--hosts 128] [--ranks 8] [--epochs 20]

Row groups of 128 MiB, shuffled, with a cache on each host that is empty at first. Printed is the part of its bytes that
a host reads from its cache in some epochs, with and without shares that stay on their hosts.
"""

import argparse
from itertools import product

import numpy as np
from measure import print_machine, save
from planning import make_inventory

from torch_dataloader_utils import plan_epoch
from torch_dataloader_utils.plan.explain import host_reads
from torch_dataloader_utils.plan.upcoming import EPOCHS_AHEAD, CacheForecast

GROUP_BYTES = 128 << 20
PARTS = (0.5, 1.0, 1.25, 2.5, 6.0, 12.0)
SHOWN = (1, 4, 9, 19)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--terabytes", type=float, default=100)
    parser.add_argument("--hosts", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    print_machine()
    groups = round(given.terabytes * 1e12 / GROUP_BYTES / 8) * 8
    inventory = make_inventory(np.full(groups, GROUP_BYTES // 241), 8)
    sizes = inventory.groups.projected_bytes
    share = int(sizes.sum()) / given.hosts
    shown = [epoch for epoch in SHOWN if epoch < given.epochs]
    print(
        f"{groups:,} row groups on {given.hosts} hosts x {given.ranks} ranks, each of which reads {share / 1e9:,.0f} GB"
    )
    print(f"{'cache of a host':>16} {'of its share':>12}  " + " ".join(f"{f'epoch {epoch}':>9}" for epoch in shown))
    figures = {}
    for host_shares, part in product((None, given.hosts), PARTS):
        if part == PARTS[0]:
            plan = plan_epoch(
                inventory,
                num_ranks=given.hosts * given.ranks,
                batch_size=1024,
                shuffle="chunks",
                host_shares=host_shares,
            )
            reads = host_reads(plan, given.ranks, given.epochs + EPOCHS_AHEAD)
            print("every chunk on any host:" if host_shares is None else f"host_shares={host_shares}:")
        found = CacheForecast(reads, sizes, round(part * share)).parts()
        rates = [found[epoch].cached_bytes / found[epoch].read_bytes for epoch in shown]
        print(f"{part * share / 1e9:>13,.0f} GB {part:>12.0%}  " + " ".join(f"{rate:>9.1%}" for rate in rates))
        figures[f"{host_shares}, {part:.0%}"] = rates
    save("host_cache_on_paper", **figures)


if __name__ == "__main__":
    main()
