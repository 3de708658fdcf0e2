"""The plan of one epoch with known row counts: from chunks and the position in the epoch to each worker's program.

    chunk  →  order  →  slice  →  level  →  assign  →  level  →  windows          a fresh epoch
    what remained of it  →  cut into equal runs                                   after each change of topology

Pure: two processes with the same arguments have the same plan.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._core.program import SingleLane, WorkerProgram
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.token_budget import EqualBuckets
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.chunk import keep_span
from torch_dataloader_utils.plan.deal import Deal, FreshDeal, SequenceDeal
from torch_dataloader_utils.plan.remain import remaining_lanes, remaining_units
from torch_dataloader_utils.plan.steps import batches_of_worker, lacks_last_row
from torch_dataloader_utils.plan.strategy_check import StrategyCall, takes_ranks
from torch_dataloader_utils.plan.strategy_deal import StrategyDeal


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactPlan:
    """The plan of one epoch from a position on, with known row counts.

    chunks: all chunks in this epoch's order, from `order_chunks`.
    """

    space: RowSpace
    options: PlanOptions
    chunks: Units
    position: Position
    strategy: StrategyCall | None = None

    @property
    def _topology(self) -> Topology:
        return self.position.topology

    @cached_property
    def _deal(self) -> Deal:
        deal = self._fresh_deal(self.position.first_topology)
        is_shared = isinstance(deal, StrategyDeal) and deal.shared
        for segment, following in self.position.changes():
            # With the same ranks, each rank's rest is one of the equal parts that the sequence is cut into.
            if is_shared and (segment.has_drifted or following.num_ranks != segment.topology.num_ranks):
                raise ConfigError(
                    f"Split strategy {self.options.strategy} has no rank arguments: every rank reads everything, and "
                    "what remains cannot be dealt to another number of ranks, or to ranks that had drifted apart. "
                    f"Resume on num_ranks={segment.topology.num_ranks}, with a state of one step on all ranks, or give "
                    "generate() num_ranks and rank."
                )
            deal = SequenceDeal(units=remaining_units(deal, segment), topology=following)
        return deal

    def _fresh_deal(self, topology: Topology) -> Deal:
        if self.strategy is None:
            return FreshDeal(
                units=self.chunks,
                space=self.space,
                options=self.options,
                epoch=self.position.epoch,
                topology=topology,
            )
        return StrategyDeal(
            given=tuple(
                tuple(keep_span(units, self.options) for units in workers)
                for workers in self.strategy.units(self.position.epoch, topology.num_ranks, topology.num_workers)
            ),
            shared=not takes_ranks(self.strategy.strategy),
            space=self.space,
            options=self.options,
            topology=topology,
        )

    @property
    def _buckets(self) -> EqualBuckets | None:
        """Buckets of one batch each, by the batch size under which the epoch began and its windows were cut."""
        return EqualBuckets(bucket_rows=self.position.first_topology.batch_size) if self.options.bucket_by else None

    @cached_property
    def rank_steps(self) -> Int64s:
        """Steps of every rank under the present topology, those already done included. int64 [num_ranks]."""
        return self._deal.steps

    @cached_property
    def rank_rows(self) -> Int64s:
        """Rows that each rank delivers under the present topology, repeats not counted. int64 [num_ranks]."""
        if not self._topology.drop_last:
            return self._deal.rank_rows
        return np.minimum(self._deal.rank_rows, self._deal.steps * self._topology.batch_size)

    @cached_property
    def dropped_rows(self) -> int:
        """Rows that drop_last leaves out, over all ranks."""
        return int((self._deal.rank_rows - self.rank_rows).sum())

    @cached_property
    def repeated_rows(self) -> int:
        """Rows delivered a second time so that every rank takes every step, over all ranks."""
        if self._topology.drop_last:
            return 0
        before_last = (self._deal.steps - 1) * self._topology.batch_size
        short = (self._deal.steps > 0) & (self._deal.rank_rows == before_last)
        return int((short & ((before_last == 0) | (self._topology.batch_size == 1))).sum())

    def padding_rows(self, rank: int) -> int:
        """Of `repeated_rows`, those that one rank delivers: 1 if it has none left for its last step, else 0."""
        rows, steps = int(self.rank_rows[rank]), int(self.rank_steps[rank])
        return int(self.repeated_rows > 0 and lacks_last_row(rows, steps, self._topology.batch_size))

    @cached_property
    def moved_rows(self) -> int:
        """Rows that levelling moves between ranks."""
        return self._deal.transfers.rows

    @cached_property
    def cuts(self) -> int:
        """Row ranges that levelling moves between ranks: at most num_ranks - 1."""
        return len(self._deal.transfers)

    def programs(self, rank: int) -> tuple[WorkerProgram, ...]:
        """What each worker of a rank still has to do, from the position on."""
        self._topology.check_rank(rank)
        share, workers = self._deal.rank(rank), self._topology.num_workers
        programs = []
        for worker, lane in enumerate(remaining_lanes(share, self.position.done)):
            sizes = share.sizes.of_worker(worker, workers)
            left = sizes.steps - batches_of_worker(self.position.done, worker, workers)
            schedule = SingleLane(
                batch_rows=sizes.batch_rows, num_batches=max(0, left), tail_rows=_last(sizes.tail, left)
            )
            extra = [self._repeat()] if sizes.repeated and left > 0 else []
            programs.append(
                WorkerProgram(
                    lanes=(Units.concat([lane, *extra]),),
                    schedule=schedule,
                    seed=self.options.seed,
                    epoch=self.position.epoch,
                    by_length=self._buckets,
                )
            )
        return tuple(programs)

    def _repeat(self) -> Units:
        """The row that a rank without rows repeats: the first one that this topology deals."""
        return self._deal.first_unit.split_at(1)[0]


def _last(tail: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tail[max(0, len(tail) - count) :] if count > 0 else ()
