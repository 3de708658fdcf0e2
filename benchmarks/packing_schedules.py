"""Packing schedules on lognormal and bimodal lengths: padding, waiting ranks, and how long planning takes.

    python benchmarks/packing_schedules.py [--seeds 5] [--rounds 7]

64 ranks (16 data × 4 context parallel) of 8,192 tokens. Lognormal: median 665 tokens, sigma 1.2, at most 32,768.
Bimodal: nine of ten sequences have 128 to 1,023 tokens, the tenth 8,192 to 32,767. Costs are those of a decoder
of hidden size 4,096. "First-fit" takes packs in the order in which they were opened. The lower bound has the fewest
microbatches that hold all tokens, and ranks that all finish at the same moment. Quality is the mean over seeds.
Planning is timed whole (groups, arrays and checks): processor seconds of one thread, median and least of the rounds.
"""

import argparse
import platform
import time
from collections.abc import Callable

import numpy as np

from torch_dataloader_utils.packing import (
    BasePackingScheduler,
    ComputeBalancedScheduler,
    CostModel,
    DpBalancedScheduler,
    HybridContextParallelScheduler,
    measure_schedule,
)
from torch_dataloader_utils.packing.plan.first_fit import first_fit
from torch_dataloader_utils.packing.plan.next_fit import split_last_packs
from torch_dataloader_utils.packing.plan.schedule import Groups, Int64s, Schedule

TOKENS_PER_RANK, CP_SIZE, DP_SIZE = 8192, 4, 16
LONGEST = TOKENS_PER_RANK * CP_SIZE
COST = CostModel.transformer(4096)


class FirstFitScheduler(BasePackingScheduler):
    """First-fit in the original order: the baseline."""

    def get_groups_and_subsamples(self, sample_id_seqlens: list[tuple[int, int]]) -> Groups:
        lengths = np.array([length for _, length in sample_id_seqlens])
        packs = first_fit(lengths, np.arange(len(lengths)), capacity=self.shape.pack_tokens)
        packs = split_last_packs(packs, multiple=self.shape.dp_size, policy=self.policy)
        schedule = Schedule.of_packs(packs, [self.shape.cp_size] * len(packs), num_ranks=self.shape.num_ranks)
        return schedule.to_groups(range(len(lengths)))


SCHEDULERS: dict[str, Callable[[], BasePackingScheduler]] = {
    "first-fit": lambda: FirstFitScheduler(TOKENS_PER_RANK, CP_SIZE, DP_SIZE),
    "`dp_balanced`": lambda: DpBalancedScheduler(TOKENS_PER_RANK, CP_SIZE, DP_SIZE),
    "`compute_balanced`": lambda: ComputeBalancedScheduler(TOKENS_PER_RANK, CP_SIZE, DP_SIZE, cost=COST),
    "`hybrid_context_parallel`": lambda: HybridContextParallelScheduler(TOKENS_PER_RANK, CP_SIZE, DP_SIZE, cost=COST),
}


def lognormal(count: int, random: np.random.Generator) -> Int64s:
    return np.exp(random.normal(6.5, 1.2, count)).astype(np.int64).clip(1, LONGEST)


def bimodal(count: int, random: np.random.Generator) -> Int64s:
    short, long = random.integers(128, 1024, count), random.integers(8192, LONGEST, count)
    return np.where(random.random(count) < 0.9, short, long)


DISTRIBUTIONS = {"lognormal": lognormal, "bimodal": bimodal}


def print_quality(count: int, seeds: int) -> None:
    """A table of all distributions and schedulers."""
    print(f"\nGlobal batch of {count:,} sequences:\n")
    print("| lengths | schedule | microbatches | padding waste | max/mean compute | worst microbatch | time / bound |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name, draw in DISTRIBUTIONS.items():
        batches = [draw(count, np.random.default_rng(seed)) for seed in range(seeds)]
        slots = TOKENS_PER_RANK * CP_SIZE * DP_SIZE
        least = [-(-int(batch.sum()) // slots) for batch in batches]
        waste = [1 - int(batch.sum()) / (slots * count) for batch, count in zip(batches, least, strict=True)]
        for title, make in SCHEDULERS.items():
            scheduler = make()
            found = [
                measure_schedule(scheduler.schedule(batch), batch, cost=COST, tokens_per_rank=TOKENS_PER_RANK)
                for batch in batches
            ]
            print(
                f"| {name} | {title} | {np.mean([each.num_microbatches for each in found]):.1f} "
                f"| {np.mean([each.padding_waste for each in found]):.1%} "
                f"| {np.mean([each.max_over_mean for each in found]):.4f} "
                f"| {np.mean([each.worst_max_over_mean for each in found]):.3f} "
                f"| {np.mean([each.time_over_bound for each in found]):.4f} |"
            )
        print(f"| {name} | lower bound | {np.mean(least):.1f} | {np.mean(waste):.1%} | 1 | 1 | 1 |")


def print_speed(count: int, rounds: int) -> None:
    """A table of processor seconds per global batch."""
    print(f"\nPlanning a global batch of {count:,} sequences, processor seconds:\n")
    print("| schedule | lognormal, median (least) | bimodal, median (least) |")
    print("|---|---:|---:|")
    for title, make in SCHEDULERS.items():
        scheduler, cells = make(), []
        for draw in DISTRIBUTIONS.values():
            batch = draw(count, np.random.default_rng(0))
            times = []
            for _ in range(rounds):
                start = time.process_time()
                scheduler.schedule(batch)
                times.append(time.process_time() - start)
            cells.append(f"{np.median(times):.2f} ({min(times):.2f})")
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    for size in (1024, 8192):
        print_quality(size, options.seeds)
    print_speed(100_000, options.rounds)
