"""Lanes: one numbered sequence of micro-batches for the whole job, the same for any ranks and workers.

`LaneRows`: chunks are sliced to G lanes and balanced, so that lane g holds the micro-batches g, g + G, g + 2G, ... of
the epoch. A micro-batch has m rows; the last micro-batch of the epoch may be shorter.

    G=2, m=4, chunks of 4, 4, 5 rows      lane 0: numbers 0, 2      lane 1: 1, 3 (1 row)

`LaneAssignment`: a step takes the next Q micro-batches, and rank r takes the numbers n with n % num_ranks == r.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Segment
from torch_dataloader_utils._core.program import RotatingLanes, WorkerProgram, numbers_of_rank
from torch_dataloader_utils._core.token_budget import EqualBuckets
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError, InternalError
from torch_dataloader_utils.plan.assignment import EpochInputs, RankCounts
from torch_dataloader_utils.plan.balance import Transfers, balanced_list, plan_transfers, rows_per_slice, slice_units
from torch_dataloader_utils.plan.steps import batches_of_worker
from torch_dataloader_utils.plan.windows import shuffle_windows


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneRows:
    """Rows of one epoch as numbered micro-batches.

    units: the epoch's chunks in their order. micro_rows: m, rows of a micro-batch.
    """

    units: Units
    options: PlanOptions
    num_lanes: int
    micro_rows: int

    @cached_property
    def num_rows(self) -> int:
        """Number of rows of the epoch."""
        return self.units.num_rows

    def rows_from(self, number: int) -> int:
        """Return the number of rows of the micro-batches from `number` to the last."""
        return max(0, self.num_rows - number * self.micro_rows)

    def lane_part(self, lane: int, begin: int, end: int) -> Units:
        """Return the rows of one lane in the micro-batches numbered [begin, end)."""
        first, stop = (max(0, -(-(number - lane) // self.num_lanes)) * self.micro_rows for number in (begin, end))
        return self._lane(lane).split_at(stop)[0].split_at(first)[1]

    def sequence(self, number: int, rows: int) -> Units:
        """Return the first `rows` rows of the micro-batches number, number + 1, ..., in that order."""
        parts = []
        while rows > 0:
            part, _ = self.lane_part(number % self.num_lanes, number, number + 1).split_at(rows)
            parts.append(part)
            rows -= part.num_rows
            number += 1
        return Units.concat(parts)

    @cached_property
    def _lane_rows(self) -> Int64s:
        """Rows of every lane, int64 [num_lanes]."""
        whole, rest = divmod(self.num_rows, self.micro_rows)
        lanes = np.arange(self.num_lanes)
        rows: Int64s = (whole - lanes + self.num_lanes - 1) // self.num_lanes * self.micro_rows
        rows[whole % self.num_lanes] += rest
        return rows

    @cached_property
    def _transfers(self) -> Transfers:
        return plan_transfers(rows_per_slice(self.units, self.num_lanes), self._lane_rows)

    @cached_property
    def _built(self) -> dict[int, Units]:
        return {}

    def _lane(self, lane: int) -> Units:
        """Return all rows of one lane, cut into windows if the options shuffle rows. A lane is built once."""
        if lane not in self._built:
            units = balanced_list(lane, lambda i: slice_units(self.units, i, self.num_lanes), self._transfers)
            self._built[lane] = shuffle_windows(units, self.options, self.micro_rows)
        return self._built[lane]


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneAssignment:
    """`Assignment` of the micro-batches from `first_number` to the last; a resumed epoch goes on counting.

    Steps are counted from `first_number` on. Balancing moves rows between lanes; ranks are equal without balancing.
    """

    inputs: EpochInputs
    lanes: LaneRows
    topology: Topology
    first_number: int = 0

    @classmethod
    def begin(cls, inputs: EpochInputs) -> "LaneAssignment":
        """Return the assignment of the whole epoch."""
        options, topology = inputs.options, inputs.position.first_topology
        if options.num_lanes is None:
            raise InternalError("A plan with lanes was made without num_lanes.")
        lanes = LaneRows(
            units=inputs.chunks,
            options=options,
            num_lanes=options.num_lanes,
            micro_rows=options.lane_rows or topology.batch_size,
        )
        return cls(inputs=inputs, lanes=lanes, topology=topology)

    def resumed(self, received: Segment, topology: Topology) -> "LaneAssignment":
        """See Assignment."""
        if not received.has_common_steps:
            raise ConfigError(
                "Ranks that received different numbers of batches cannot resume with lanes: the job's batches "
                "are one numbered sequence. Save the state when all ranks have taken the same steps."
            )
        return replace(self, topology=topology, first_number=self._number_of(received.steps_of(0)))

    @cached_property
    def counts(self) -> RankCounts:
        """See Assignment."""
        return RankCounts(
            steps=np.full(self.topology.num_ranks, self.steps),
            rows=self._rank_rows,
            repeats=self._rank_rows == (self.steps - 1) * self.topology.batch_size,
            dropped_rows=self.num_rows - int(self._rank_rows.sum()),
        )

    def programs(self, rank: int, received: Segment) -> tuple[WorkerProgram, ...]:
        """See Assignment."""
        self.topology.check_rank(rank)
        done = received.steps_of(0)
        return tuple(self._program(rank, worker, done) for worker in range(self.topology.num_workers))

    @cached_property
    def numbers_per_step(self) -> int:
        """Number of micro-batches of one step: Q.

        Raises:
            ConfigError: the topology does not fit the lanes; the message lists topologies that fit.
        """
        topology, lanes = self.topology, self.lanes
        ranks, workers, batch = topology.num_ranks, topology.num_workers, topology.batch_size
        numbers, left = divmod(ranks * batch, lanes.micro_rows)
        if left == 0 and numbers % ranks == 0 and lanes.num_lanes % (workers * numbers) == 0:
            return numbers
        fitting = ranks * max(1, batch // lanes.micro_rows) * workers
        raise ConfigError(
            f"lanes=Lanes({lanes.num_lanes}, rows={lanes.micro_rows}) does not fit num_ranks={ranks}, "
            f"num_workers={workers}, batch_size={batch}. batch_size must be a multiple of rows, and num_lanes a "
            f"multiple of num_workers * num_ranks * batch_size / rows: num_lanes={fitting} or a multiple of it "
            f"fits this topology; these num_lanes fit num_ranks * num_workers * (batch_size / rows) in "
            f"{_divisors(lanes.num_lanes)}."
        )

    @property
    def num_rows(self) -> int:
        """Number of remaining rows, including the rows that drop_last leaves out."""
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
        """Rows of the tail (the incomplete last step) over all ranks; 0 if there is no tail or drop_last drops it."""
        return 0 if self.topology.drop_last else self.num_rows % self._rows_per_step

    @property
    def steps(self) -> int:
        """Steps of every rank."""
        return self._whole_steps + (self.tail_rows > 0)

    @cached_property
    def _rank_rows(self) -> Int64s:
        """Rows of every rank, repeats not counted. int64 [num_ranks]."""
        ranks = self.topology.num_ranks
        edges = self.tail_rows * np.arange(ranks + 1) // ranks
        rows: Int64s = self._whole_steps * self.topology.batch_size + np.diff(edges)
        return rows

    def _number_of(self, step: int) -> int:
        """Return the number of a step's first micro-batch."""
        return self.first_number + step * self.numbers_per_step

    def _program(self, rank: int, worker: int, done: int) -> WorkerProgram:
        """Return the lanes and batches of one worker of a rank after the first `done` steps."""
        workers = self.topology.num_workers
        skipped = batches_of_worker(done, worker, workers)
        first_step = worker + skipped * workers
        owned = self._owned(range(first_step, self._whole_steps, workers), rank)
        begin, end = self._number_of(first_step), self._number_of(self._whole_steps)
        lanes = [self.lanes.lane_part(lane, begin, end) for lane in owned]
        tail = self._tail(rank) if self._gives_tail(worker, done) else None
        if tail is not None:
            lanes.append(tail)
        batching = RotatingLanes(
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
        options = self.inputs.options
        return WorkerProgram(
            lanes=tuple(lanes),
            batching=batching,
            seed=options.seed,
            epoch=self.inputs.position.epoch,
            by_length=EqualBuckets(bucket_rows=self.lanes.micro_rows) if options.bucket_by else None,
        )

    def _owned(self, steps: range, rank: int) -> list[int]:
        """Return the lanes that a rank takes micro-batches from in these steps, ascending."""
        num_lanes = self.lanes.num_lanes
        # A worker's steps lie num_workers * Q numbers apart: after `period` steps it is in the same lanes again.
        period = num_lanes // (self.topology.num_workers * self.numbers_per_step)
        return sorted({number % num_lanes for step in steps[:period] for number in self._taken(step, rank)})

    def _taken(self, step: int, rank: int) -> range:
        """Return the numbers of the micro-batches that a rank takes in a step, ascending."""
        return numbers_of_rank(self._number_of(step), self._number_of(step + 1), rank, self.topology.num_ranks)

    def _gives_tail(self, worker: int, done: int) -> bool:
        """Return whether the tail is among the steps that this worker still has to do."""
        last = self.steps - 1
        return self.tail_rows > 0 and last >= done and last % self.topology.num_workers == worker

    def _tail(self, rank: int) -> Units:
        """Return one rank's rows of the tail: at least one row, which the next rank repeats if there are too few rows.

        3 rows, num_ranks=2      1 and 2 rows          1 row, num_ranks=2      the same row twice
        """
        rows, ranks = self.tail_rows, self.topology.num_ranks
        start, stop = (rows * border // ranks for border in (rank, rank + 1))
        return self._last_step.split_at(start)[1].split_at(max(1, stop - start))[0]

    @cached_property
    def _last_step(self) -> Units:
        """The tail's rows of all ranks as one sequence, built once for any number of ranks."""
        return self.lanes.sequence(self._number_of(self.steps - 1), self.tail_rows)


def _divisors(number: int) -> list[int]:
    small = [candidate for candidate in range(1, isqrt(number) + 1) if number % candidate == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
