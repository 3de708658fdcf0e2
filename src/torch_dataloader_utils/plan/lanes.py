"""Lanes: one numbered sequence of micro-batches for the whole job, whatever its ranks and workers.

Chunks are dealt to G lanes and levelled, so that lane g holds the micro-batches g, g + G, g + 2G, ... of the epoch,
each of m rows (the last one of the epoch may be shorter). A step takes the next Q = R * B / m numbers; rank r takes
those whose remainder by R is r. While R divides Q and W * Q divides G, every worker owns whole lanes, and every
global batch is the same set of rows on any number of ranks and workers:

    G=4, m=B, R=2, W=1, so Q=2      step 0: 0 | 1     step 1: 2 | 3     step 2: 4 | 5
    lane of number q: q mod 4       rank 0 owns lanes 0 and 2, rank 1 lanes 1 and 3

A last step that is not whole is one sequence of rows, cut evenly over the ranks so that each takes the step.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.program import RotatingLanes, numbers_of_rank
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.level import Transfer, level_list, plan_transfers
from torch_dataloader_utils.plan.slice import rows_per_share, slice_units
from torch_dataloader_utils.plan.steps import batches_of_worker
from torch_dataloader_utils.plan.window import shuffle_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLanes:
    """One worker's lanes from its next batch on, and the schedule that draws from them."""

    lanes: tuple[Units, ...]
    schedule: RotatingLanes


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneDeal:
    """The numbered micro-batches of one epoch, and who takes them."""

    units: Units
    options: PlanOptions
    num_lanes: int
    micro_rows: int

    @cached_property
    def num_rows(self) -> int:
        """Rows of the epoch."""
        return self.units.num_rows

    @cached_property
    def _targets(self) -> Int64s:
        whole, rest = divmod(self.num_rows, self.micro_rows)
        lanes = np.arange(self.num_lanes)
        targets: Int64s = (whole - lanes + self.num_lanes - 1) // self.num_lanes * self.micro_rows
        targets[whole % self.num_lanes] += rest
        return targets

    @cached_property
    def _transfers(self) -> list[Transfer]:
        return plan_transfers(rows_per_share(self.units, self.num_lanes), self._targets)

    @cached_property
    def _built(self) -> dict[int, Units]:
        return {}

    def lane(self, lane: int) -> Units:
        """All rows of one lane, windows cut; built once."""
        if lane not in self._built:
            units = level_list(lane, lambda i: slice_units(self.units, i, self.num_lanes), self._transfers)
            self._built[lane] = shuffle_windows(units, self.options, self.micro_rows)
        return self._built[lane]

    def numbers_per_step(self, topology: Topology) -> int:
        """Q, checked against the rule.

        Raises:
            ConfigError: the topology does not fit the lanes; the message says which would.
        """
        ranks, workers, batch = topology.num_ranks, topology.num_workers, topology.batch_size
        numbers, left = divmod(ranks * batch, self.micro_rows)
        if left == 0 and numbers % ranks == 0 and self.num_lanes % (workers * numbers) == 0:
            return numbers
        fitting = ranks * max(1, batch // self.micro_rows) * workers
        raise ConfigError(
            f"num_lanes={self.num_lanes} with lane_rows={self.micro_rows} does not fit num_ranks={ranks}, "
            f"num_workers={workers}, batch_size={batch}. batch_size must be a multiple of lane_rows, and num_lanes a "
            f"multiple of num_workers * num_ranks * batch_size / lane_rows: num_lanes={fitting} or a multiple of it "
            f"fits this topology; these num_lanes fit num_ranks * num_workers * (batch_size / lane_rows) in "
            f"{_divisors(self.num_lanes)}."
        )

    def steps(self, first_number: int, topology: Topology) -> int:
        """Steps from micro-batch `first_number` to the end of the epoch; the same on every rank."""
        numbers = self.numbers_per_step(topology)
        left = self.num_rows - first_number * self.micro_rows
        rows_per_step = numbers * self.micro_rows
        return max(0, left // rows_per_step if topology.drop_last else -(-left // rows_per_step))

    def tail_rows(self, first_number: int, topology: Topology) -> int:
        """Rows of the last step over all ranks if it is not whole, else 0."""
        steps, numbers = self.steps(first_number, topology), self.numbers_per_step(topology)
        left = self.num_rows - (first_number + max(steps - 1, 0) * numbers) * self.micro_rows
        return left if steps and left < numbers * self.micro_rows else 0

    def rank_rows(self, first_number: int, topology: Topology) -> Int64s:
        """Rows of every rank from micro-batch `first_number` on, repeats not counted. int64 [num_ranks]."""
        ranks, tail = topology.num_ranks, self.tail_rows(first_number, topology)
        whole_steps = self.steps(first_number, topology) - bool(tail)
        per_step = self.numbers_per_step(topology) // ranks * self.micro_rows
        edges = tail * np.arange(ranks + 1) // ranks
        rows: Int64s = whole_steps * per_step + np.diff(edges)
        return rows

    def worker(self, rank: int, worker: int, first_number: int, first_step: int, topology: Topology) -> WorkerLanes:
        """The lanes of worker `worker` of rank `rank`, from step `first_step` of those that begin at `first_number`."""
        workers = topology.num_workers
        numbers, steps = self.numbers_per_step(topology), self.steps(first_number, topology)
        tail = self.tail_rows(first_number, topology)
        skipped = batches_of_worker(first_step, worker, workers)
        begin = worker + skipped * workers
        batches = max(0, batches_of_worker(steps, worker, workers) - skipped)
        owned = self._owned(range(begin, steps - bool(tail), workers), rank, first_number, topology)
        lanes = [self._rest(lane, first_number + begin * numbers) for lane in owned]
        tail_rows = 0
        if tail and steps > first_step and (steps - 1) % workers == worker:
            last_step = self._from(first_number + (steps - 1) * numbers, tail)
            lanes.append(_even_part(last_step, rank, topology.num_ranks))
            tail_rows = lanes[-1].num_rows
        schedule = RotatingLanes(
            micro_rows=self.micro_rows,
            num_lanes=self.num_lanes,
            num_ranks=topology.num_ranks,
            rank=rank,
            num_workers=workers,
            first_step=begin,
            first_number=first_number,
            numbers_per_step=numbers,
            num_batches=batches,
            lane_ids=tuple(owned),
            tail_rows=tail_rows,
        )
        return WorkerLanes(lanes=tuple(lanes), schedule=schedule)

    def _taken(self, step: int, rank: int, first_number: int, topology: Topology) -> range:
        """The numbers that `rank` takes in `step`, ascending."""
        numbers = self.numbers_per_step(topology)
        begin = first_number + step * numbers
        return numbers_of_rank(begin, begin + numbers, rank, topology.num_ranks)

    def _owned(self, steps: range, rank: int, first_number: int, topology: Topology) -> list[int]:
        """The lanes drawn from in these steps, ascending. Their numbers repeat after num_lanes steps at the latest."""
        some = steps[: self.num_lanes]
        return sorted({n % self.num_lanes for step in some for n in self._taken(step, rank, first_number, topology)})

    def _rest(self, lane: int, number: int) -> Units:
        """The rows of a lane from the first of its micro-batches that is not below `number`."""
        done = max(0, -(-(number - lane) // self.num_lanes))
        return self.lane(lane).split_at(done * self.micro_rows)[1]

    def _from(self, number: int, rows: int) -> Units:
        """The `rows` rows of micro-batches number, number + 1, ..., in that order."""
        parts = []
        while rows > 0:
            part, _ = self._rest(number % self.num_lanes, number).split_at(min(rows, self.micro_rows))
            parts.append(part)
            rows -= part.num_rows
            number += 1
        return Units.concat(parts)


def _even_part(units: Units, index: int, count: int) -> Units:
    """Part `index` of `count` about equal ones; where rows are too few, one row that the next part has too.

    3 rows, count=2      1 and 2 rows          1 row, count=2      the same row twice
    """
    start, stop = (units.num_rows * border // count for border in (index, index + 1))
    return units.split_at(start)[1].split_at(max(1, stop - start))[0]


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]
