"""The plan of one epoch under a token budget: it has the interface of ExactPlan, and deals whole batches."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._core.program import ListedBatches, WorkerProgram
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.steps import batches_of_worker
from torch_dataloader_utils.plan.token_batches import BatchDeal, join_batches


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenPlan:
    """The plan of one epoch of batches under a token budget; see ExactPlan for the arguments.

    batches: those of the whole epoch, from `cut_batches`, under the budget of its first topology.
    """

    space: RowSpace
    options: PlanOptions
    chunks: Units
    batches: Units
    position: Position

    # Levelling halves batches; it moves no rows.
    moved_rows = 0
    cuts = 0

    @property
    def _topology(self) -> Topology:
        return self.position.topology

    @cached_property
    def _deal(self) -> BatchDeal:
        deal = BatchDeal(remaining=self.batches, topology=self.position.first_topology)
        for segment, following in self.position.changes():
            deal = BatchDeal(remaining=deal.after(segment), topology=following)
        return deal

    @property
    def rank_steps(self) -> Int64s:
        """Steps of every rank under the present topology, all alike. int64 [num_ranks]."""
        return np.full(self._topology.num_ranks, self._deal.steps)

    @property
    def rank_rows(self) -> Int64s:
        """Rows that each rank delivers under the present topology, repeats not counted. int64 [num_ranks]."""
        return self._deal.rank_rows

    @property
    def dropped_rows(self) -> int:
        """Rows that drop_last leaves out, over all ranks."""
        return self._deal.dropped.num_rows

    @property
    def repeated_rows(self) -> int:
        """Rows delivered a second time so that every rank takes every step, over all ranks."""
        return sum(map(self.padding_rows, range(self._topology.num_ranks)))

    def padding_rows(self, rank: int) -> int:
        """How many of `repeated_rows` one rank repeats."""
        return int(self._deal.repeats(rank))

    def programs(self, rank: int) -> tuple[WorkerProgram, ...]:
        """What each worker of a rank still has to do, from the position on."""
        self._topology.check_rank(rank)
        workers = self._topology.num_workers
        budget = self.options.token_budget(self.position.first_topology.batch_size)
        programs = []
        for worker, lane in enumerate(self._deal.workers(rank)):
            left = lane.take(slice(batches_of_worker(self.position.done, worker, workers), None))
            if self._deal.repeats_on(rank, worker) and self.position.done < self._deal.steps:
                left = Units.concat([left, self._deal.batches.take(slice(0, 1)).split_at(1)[0]])
            programs.append(
                WorkerProgram(
                    lanes=(join_batches(left),),
                    schedule=ListedBatches(batch_rows=left.rows),
                    seed=self.options.seed,
                    epoch=self.position.epoch,
                    by_length=budget,
                )
            )
        return tuple(programs)
