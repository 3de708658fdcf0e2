"""Deals lanes to one topology: which micro-batches make a step, and which rank and worker takes them.

A step takes the next Q = R * B / m numbers; rank r takes those whose remainder by R is r. While R divides Q and W * Q
divides G, every worker owns whole lanes, and every global batch is the same set of rows on any number of ranks and
workers:

    G=4, m=B, R=2, W=1, so Q=2      step 0: 0 | 1     step 1: 2 | 3     step 2: 4 | 5
    lane of number q: q mod 4       rank 0 owns lanes 0 and 2, rank 1 lanes 1 and 3

A last step that is not whole (the tail) is one sequence of rows, cut evenly over the ranks so that each takes the step.
"""

from dataclasses import dataclass
from functools import cached_property
from math import isqrt

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.program import RotatingLanes, numbers_of_rank
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.lanes import Lanes
from torch_dataloader_utils.plan.steps import batches_of_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLanes:
    """One worker's lanes from its next batch on, and the schedule that draws from them."""

    lanes: tuple[Units, ...]
    schedule: RotatingLanes


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneDeal:
    """Deals the micro-batches from `first_number` to the last; steps are counted from there."""

    lanes: Lanes
    topology: Topology
    first_number: int = 0

    @cached_property
    def numbers_per_step(self) -> int:
        """Micro-batches of one step: Q.

        Raises:
            ConfigError: the topology does not fit the lanes; the message says which would.
        """
        topology, lanes = self.topology, self.lanes
        ranks, workers, batch = topology.num_ranks, topology.num_workers, topology.batch_size
        numbers, left = divmod(ranks * batch, lanes.micro_rows)
        if left == 0 and numbers % ranks == 0 and lanes.num_lanes % (workers * numbers) == 0:
            return numbers
        fitting = ranks * max(1, batch // lanes.micro_rows) * workers
        raise ConfigError(
            f"num_lanes={lanes.num_lanes} with lane_rows={lanes.micro_rows} does not fit num_ranks={ranks}, "
            f"num_workers={workers}, batch_size={batch}. batch_size must be a multiple of lane_rows, and num_lanes a "
            f"multiple of num_workers * num_ranks * batch_size / lane_rows: num_lanes={fitting} or a multiple of it "
            f"fits this topology; these num_lanes fit num_ranks * num_workers * (batch_size / lane_rows) in "
            f"{_divisors(lanes.num_lanes)}."
        )

    @property
    def num_rows(self) -> int:
        """Rows to deal, including those that drop_last leaves out."""
        return self.lanes.rows_from(self.first_number)

    @property
    def _rows_per_step(self) -> int:
        return self.numbers_per_step * self.lanes.micro_rows

    @property
    def _whole_steps(self) -> int:
        """Steps without the tail, the same on every rank."""
        return self.num_rows // self._rows_per_step

    @property
    def tail_rows(self) -> int:
        """Rows of the tail over all ranks; 0 where there is none, or drop_last leaves it out."""
        return 0 if self.topology.drop_last else self.num_rows % self._rows_per_step

    @property
    def steps(self) -> int:
        """Steps of every rank."""
        return self._whole_steps + (self.tail_rows > 0)

    @cached_property
    def rank_rows(self) -> Int64s:
        """Rows of every rank, repeats not counted. int64 [num_ranks]."""
        ranks = self.topology.num_ranks
        edges = self.tail_rows * np.arange(ranks + 1) // ranks
        rows: Int64s = self._whole_steps * self.topology.batch_size + np.diff(edges)
        return rows

    @property
    def dropped_rows(self) -> int:
        """Rows that drop_last leaves out, over all ranks."""
        return self.num_rows - int(self.rank_rows.sum())

    @property
    def repeated_rows(self) -> int:
        """Rows delivered a second time, over all ranks: one for each rank that has none of the tail."""
        return max(0, self.topology.num_ranks - self.tail_rows) if self.tail_rows else 0

    def number_of(self, step: int) -> int:
        """The first micro-batch of a step."""
        return self.first_number + step * self.numbers_per_step

    def worker(self, rank: int, worker: int, done: int) -> WorkerLanes:
        """The lanes of one worker of a rank, and its batches, after the first `done` steps."""
        workers = self.topology.num_workers
        skipped = batches_of_worker(done, worker, workers)
        first_step = worker + skipped * workers
        owned = self._owned(range(first_step, self._whole_steps, workers), rank)
        lanes = [self.lanes.lane_rest(lane, self.number_of(first_step)) for lane in owned]
        tail = self._tail(rank) if self._gives_tail(worker, done) else None
        if tail is not None:
            lanes.append(tail)
        schedule = RotatingLanes(
            micro_rows=self.lanes.micro_rows,
            num_lanes=self.lanes.num_lanes,
            num_ranks=self.topology.num_ranks,
            rank=rank,
            num_workers=workers,
            first_step=first_step,
            first_number=self.first_number,
            numbers_per_step=self.numbers_per_step,
            num_batches=max(0, batches_of_worker(self.steps, worker, workers) - skipped),
            lane_ids=tuple(owned),
            tail_rows=0 if tail is None else tail.num_rows,
        )
        return WorkerLanes(lanes=tuple(lanes), schedule=schedule)

    def _owned(self, steps: range, rank: int) -> list[int]:
        """The lanes that a rank draws from in these steps, ascending."""
        num_lanes = self.lanes.num_lanes
        # A worker's steps lie num_workers * Q numbers apart: after so many of them it is in the same lanes again.
        turn = num_lanes // (self.topology.num_workers * self.numbers_per_step)
        return sorted({number % num_lanes for step in steps[:turn] for number in self._taken(step, rank)})

    def _taken(self, step: int, rank: int) -> range:
        """The micro-batches that a rank takes in a step, ascending."""
        return numbers_of_rank(self.number_of(step), self.number_of(step + 1), rank, self.topology.num_ranks)

    def _gives_tail(self, worker: int, done: int) -> bool:
        """Whether the tail is among the steps of this worker that are still to come."""
        last = self.steps - 1
        return self.tail_rows > 0 and last >= done and last % self.topology.num_workers == worker

    def _tail(self, rank: int) -> Units:
        """One rank's rows of the tail; at least one row, which the next rank may have too if there are too few.

        3 rows, num_ranks=2      1 and 2 rows          1 row, num_ranks=2      the same row twice
        """
        rows, ranks = self.tail_rows, self.topology.num_ranks
        start, stop = (rows * border // ranks for border in (rank, rank + 1))
        return self._last_step.split_at(start)[1].split_at(max(1, stop - start))[0]

    @cached_property
    def _last_step(self) -> Units:
        """The tail's rows, of all ranks: one sequence, built once however many ranks are asked for."""
        return self.lanes.sequence(self.number_of(self.steps - 1), self.tail_rows)


def _divisors(number: int) -> list[int]:
    small = [candidate for candidate in range(1, isqrt(number) + 1) if number % candidate == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
