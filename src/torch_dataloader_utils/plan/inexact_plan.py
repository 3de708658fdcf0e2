"""The plan of one epoch without row counts: chunks dealt whole, batches until each lane ends."""

from dataclasses import dataclass, replace
from functools import cached_property

from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._core.program import UntilExhausted, WorkerProgram
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.inexact_deal import InexactDeal, after_cursor, remaining_after
from torch_dataloader_utils.plan.strategy_check import StrategyCall


@dataclass(frozen=True, kw_only=True, eq=False)
class InexactPlan:
    """The plan of one epoch whose row counts are unknown; see ExactPlan for the arguments."""

    space: RowSpace
    options: PlanOptions
    chunks: Units
    position: Position
    strategy: StrategyCall | None = None

    # Steps and rows are not known, and nothing is levelled, dropped or repeated.
    rank_steps = None
    rank_rows = None
    dropped_rows = 0
    repeated_rows = 0
    moved_rows = 0
    cuts = 0

    def __post_init__(self) -> None:
        if self.options.num_lanes is not None:
            raise ConfigError(
                "num_lanes needs exact row counts, and this plan has none: leave count_rows at its default, "
                'or pass count_rows="auto".'
            )
        if self.options.bucket_by:
            raise ConfigError(
                "bucket_by needs exact row counts, so that windows are whole batches, and this plan has none: leave "
                'count_rows at its default, or pass count_rows="auto".'
            )

    @cached_property
    def _deal(self) -> InexactDeal:
        first, given = self.position.first_topology, None
        if self.strategy is not None:
            given = self.strategy.units(self.position.epoch, first.num_ranks, first.num_workers)
        deal = InexactDeal(
            units=self.chunks,
            space=self.space,
            options=self.options,
            epoch=self.position.epoch,
            topology=first,
            given=given,
        )
        for segment, following in self.position.changes():
            rest = remaining_after(deal, segment.cursors_of(range(segment.topology.num_ranks)))
            deal = replace(deal, units=rest, topology=following, given=None)
        return deal

    def padding_rows(self, rank: int) -> int:  # noqa: ARG002
        """0: a rank without rows takes no step."""
        return 0

    def programs(self, rank: int) -> tuple[WorkerProgram, ...]:
        """What each worker of a rank still has to do."""
        present, topology = self.position.segment, self.position.topology
        topology.check_rank(rank)
        cursors = dict(present.cursors or ()).get(rank, ((0, 0),) * topology.num_workers)
        return tuple(
            WorkerProgram(
                lanes=(after_cursor(lane, cursor),),
                schedule=UntilExhausted(batch_rows=topology.batch_size),
                seed=self.options.seed,
                epoch=self.position.epoch,
            )
            for lane, cursor in zip(self._deal.rank(rank), cursors, strict=True)
        )
