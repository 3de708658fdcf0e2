"""The plan of one epoch with lanes: the job's micro-batches are numbered, and a resumed epoch goes on counting."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.token_budget import EqualBuckets
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError, InternalError
from torch_dataloader_utils.plan.lane_deal import LaneDeal
from torch_dataloader_utils.plan.lanes import Lanes
from torch_dataloader_utils.plan.steps import lacks_last_row


@dataclass(frozen=True, kw_only=True, eq=False)
class LanePlan:
    """The plan of one epoch that is dealt by lanes (see lanes.py and lane_deal.py); see ExactPlan for the arguments."""

    space: RowSpace
    options: PlanOptions
    chunks: Units
    position: Position

    # Levelling moves rows between lanes; ranks are even without it.
    moved_rows = 0
    cuts = 0

    @cached_property
    def _lanes(self) -> Lanes:
        if self.options.num_lanes is None:
            raise InternalError("A plan with lanes was made without num_lanes.")
        return Lanes(
            units=self.chunks,
            options=self.options,
            num_lanes=self.options.num_lanes,
            micro_rows=self.options.lane_rows or self.position.first_topology.batch_size,
        )

    @cached_property
    def _deal(self) -> LaneDeal:
        deal = LaneDeal(lanes=self._lanes, topology=self.position.first_topology)
        for segment, following in self.position.changes():
            if segment.has_drifted:
                raise ConfigError(
                    "Ranks that received different numbers of batches cannot resume with num_lanes: the job's batches "
                    "are one numbered sequence. Save the state when all ranks have taken the same steps."
                )
            first_number = deal.number_of(segment.steps_of(0))
            deal = LaneDeal(lanes=self._lanes, topology=following, first_number=first_number)
        return deal

    @property
    def rank_steps(self) -> Int64s:
        """Steps of every rank under the present topology, all alike. int64 [num_ranks]."""
        return np.full(self.position.topology.num_ranks, self._deal.steps)

    @property
    def rank_rows(self) -> Int64s:
        """Rows that each rank delivers under the present topology, repeats not counted. int64 [num_ranks]."""
        return self._deal.rank_rows

    @property
    def dropped_rows(self) -> int:
        """Rows that drop_last leaves out, over all ranks."""
        return self._deal.dropped_rows

    @property
    def repeated_rows(self) -> int:
        """Rows delivered a second time so that every rank takes every step, over all ranks."""
        return self._deal.repeated_rows

    def padding_rows(self, rank: int) -> int:
        """Of `repeated_rows`, those that one rank delivers: 1 if it has none left for its last step, else 0."""
        rows, batch_rows = int(self.rank_rows[rank]), self.position.topology.batch_size
        return int(self.repeated_rows > 0 and lacks_last_row(rows, self._deal.steps, batch_rows))

    def programs(self, rank: int) -> tuple[WorkerProgram, ...]:
        """What each worker of a rank still has to do, from the position on."""
        self.position.topology.check_rank(rank)
        by_length = EqualBuckets(bucket_rows=self._lanes.micro_rows) if self.options.bucket_by else None
        programs = []
        for worker in range(self.position.topology.num_workers):
            mine = self._deal.worker(rank, worker, self.position.done)
            programs.append(
                WorkerProgram(
                    lanes=mine.lanes,
                    schedule=mine.schedule,
                    seed=self.options.seed,
                    epoch=self.position.epoch,
                    by_length=by_length,
                )
            )
        return tuple(programs)
