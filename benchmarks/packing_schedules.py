"""Packing schedules on lognormal and bimodal lengths: padding, waiting ranks, and how long planning takes.

    python benchmarks/packing_schedules.py [--seeds 5] [--rounds 7]

64 ranks (16 data × 4 context parallel) of 8,192 tokens. Lognormal: median 665 tokens, sigma 1.2, at most 32,768.
Bimodal: nine of ten sequences have 128 to 1,023 tokens, the tenth 8,192 to 32,767. Costs are those of a decoder
of hidden size 4,096. "First-fit" takes packs in the order in which they were opened. The lower bound has the fewest
microbatches that hold all tokens, and ranks that all finish at the same moment. Quality is the mean over seeds.
Planning is timed whole (groups, arrays and checks): processor seconds of one thread, median and least of the rounds.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial

import numpy as np
from measure import alternate, print_machine, save

from torch_dataloader_utils.megatron.schedules import (
    BasePackingScheduler,
    ComputeBalancedScheduler,
    CostModel,
    DpBalancedScheduler,
    HybridContextParallelScheduler,
    ScheduleQuality,
    measure_schedule,
)
from torch_dataloader_utils.megatron.schedules.plan.fit import first_fit, split_last_packs
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s, SampleGroups, Schedule

TOKENS_PER_RANK, CP_SIZE, DP_SIZE = 8192, 4, 16
LONGEST = TOKENS_PER_RANK * CP_SIZE
COST = CostModel.transformer(4096)


class FirstFitScheduler(BasePackingScheduler):
    """First-fit in the original order: the baseline."""

    def get_groups_and_subsamples(self, sample_id_seqlens: list[tuple[int, int]]) -> SampleGroups:
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


def mean_quality(scheduler: BasePackingScheduler, batches: list[Int64s]) -> ScheduleQuality:
    """The mean over global batches; a sequence might be shared by all ranks, so says the bound."""
    found = []
    for batch in batches:
        schedule = scheduler.schedule(batch)
        span = schedule.num_ranks
        found.append(measure_schedule(schedule, batch, cost=COST, tokens_per_rank=TOKENS_PER_RANK, max_span=span))
    names = [field.name for field in fields(ScheduleQuality)]
    return ScheduleQuality(**{name: float(np.mean([getattr(each, name) for each in found])) for name in names})


def print_quality(count: int, seeds: int) -> dict[str, dict[str, float]]:
    """A table of all distributions and schedulers."""
    rows = {}
    print(f"\nGlobal batch of {count:,} sequences:\n")
    print("| lengths | schedule | microbatches | padding waste | max/mean compute | worst microbatch | time / bound |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name, draw in DISTRIBUTIONS.items():
        batches = [draw(count, np.random.default_rng(seed)) for seed in range(seeds)]
        slots = TOKENS_PER_RANK * CP_SIZE * DP_SIZE
        least = [-(-int(batch.sum()) // slots) for batch in batches]
        waste = [1 - int(batch.sum()) / (slots * count) for batch, count in zip(batches, least, strict=True)]
        for title, make in SCHEDULERS.items():
            mean = mean_quality(make(), batches)
            print(
                f"| {name} | {title} | {mean.num_microbatches:.1f} | {mean.padding_waste:.1%} "
                f"| {mean.max_over_mean:.4f} | {mean.worst_max_over_mean:.3f} | {mean.time_over_bound:.4f} |"
            )
            rows[f"{name}, {title}"] = asdict(mean)
        print(f"| {name} | lower bound | {np.mean(least):.1f} | {np.mean(waste):.1%} | 1 | 1 | 1 |")
        rows[f"{name}, lower bound"] = {"num_microbatches": np.mean(least), "padding_waste": np.mean(waste)}
    return rows


def print_speed(count: int, rounds: int) -> dict[str, list[float]]:
    """A table of processor seconds per global batch."""
    batches = {name: draw(count, np.random.default_rng(0)) for name, draw in DISTRIBUTIONS.items()}
    cases = {
        f"{name}, {title}": partial(make().schedule, batch)
        for title, make in SCHEDULERS.items()
        for name, batch in batches.items()
    }
    times = alternate(cases, runs=rounds, clock="processor")
    print(f"\nPlanning a global batch of {count:,} sequences, processor seconds:\n")
    print("| schedule | lognormal, median (least) | bimodal, median (least) |")
    print("|---|---:|---:|")
    for title in SCHEDULERS:
        spent = [times[f"{name}, {title}"] for name in batches]
        print(f"| {title} | {' | '.join(f'{np.median(each):.2f} ({min(each):.2f})' for each in spent)} |")
    return times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print_machine()
    quality = {size: print_quality(size, options.seeds) for size in (1024, 8192)}
    seconds = print_speed(100_000, options.rounds)
    save("packing_schedules", **vars(options), quality=quality, processor_seconds=seconds)
