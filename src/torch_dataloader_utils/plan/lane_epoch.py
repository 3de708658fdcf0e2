"""One epoch's plan with lanes: micro-batches have numbers for the whole job, and a resumed epoch goes on counting."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.buckets import EqualBuckets
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Segment, first_topology
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError, InternalError
from torch_dataloader_utils.plan.lanes import LaneDeal
from torch_dataloader_utils.plan.steps import lacks_last_row
from torch_dataloader_utils.plan.strategy_check import StrategyCall


@dataclass(frozen=True, kw_only=True, eq=False)
class LanePlan:
    """The plan of one epoch that is dealt by lanes (see lanes.py); see ExactPlan for the arguments."""

    space: RowSpace
    options: PlanOptions
    epoch: int
    chunks: Units
    topology: Topology
    history: tuple[Segment, ...] = ()
    done: int = 0
    strategy: StrategyCall | None = None

    # Levelling moves rows between lanes; ranks are even without it.
    moved_rows = 0
    cuts = 0

    @cached_property
    def _lanes(self) -> LaneDeal:
        if self.options.num_lanes is None:
            raise InternalError("A plan with lanes was made without num_lanes.")
        first = first_topology(self.history, self.topology)
        return LaneDeal(
            units=self.chunks,
            options=self.options,
            num_lanes=self.options.num_lanes,
            micro_rows=self.options.lane_rows or first.batch_size,
        )

    @cached_property
    def _first_number(self) -> int:
        """The first micro-batch that the present topology takes."""
        number = 0
        for segment in self.history:
            if segment.has_drifted:
                raise ConfigError(
                    "Ranks that received different numbers of batches cannot resume with num_lanes: the job's batches "
                    "are one numbered sequence. Save the state when all ranks have taken the same steps."
                )
            number += segment.steps_of(0) * self._lanes.numbers_per_step(segment.topology)
        return number

    @cached_property
    def rank_steps(self) -> Int64s:
        """Steps of every rank under the present topology, all alike. int64 [num_ranks]."""
        return np.full(self.topology.num_ranks, self._lanes.steps(self._first_number, self.topology))

    @cached_property
    def rank_rows(self) -> Int64s:
        """Rows that each rank delivers under the present topology, repeats not counted. int64 [num_ranks]."""
        return self._lanes.rank_rows(self._first_number, self.topology)

    @property
    def dropped_rows(self) -> int:
        """Rows that drop_last leaves out, over all ranks."""
        left = self._lanes.num_rows - self._first_number * self._lanes.micro_rows
        return max(0, left) - int(self.rank_rows.sum())

    @property
    def repeated_rows(self) -> int:
        """Rows delivered a second time so that every rank takes every step, over all ranks."""
        tail = self._lanes.tail_rows(self._first_number, self.topology)
        return max(0, self.topology.num_ranks - tail) if tail else 0

    def padding_rows(self, rank: int) -> int:
        """Of `repeated_rows`, those that one rank delivers: 1 if it has none left for its last step, else 0."""
        rows, steps = int(self.rank_rows[rank]), int(self.rank_steps[rank])
        return int(self.repeated_rows > 0 and lacks_last_row(rows, steps, self.topology.batch_size))

    def programs(self, rank: int) -> tuple[WorkerProgram, ...]:
        """What each worker of a rank still has to do, from step `done` on."""
        self.topology.check_rank(rank)
        by_length = EqualBuckets(bucket_rows=self._lanes.micro_rows) if self.options.bucket_by else None
        programs = []
        for worker in range(self.topology.num_workers):
            mine = self._lanes.worker(rank, worker, self._first_number, self.done, self.topology)
            programs.append(
                WorkerProgram(
                    lanes=mine.lanes,
                    schedule=mine.schedule,
                    seed=self.options.seed,
                    epoch=self.epoch,
                    by_length=by_length,
                )
            )
        return tuple(programs)
