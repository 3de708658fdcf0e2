"""Deals as a custom split strategy decides, levelled to equal steps."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.assign import assign_owners
from torch_dataloader_utils.plan.deal import RankDeal, level_workers
from torch_dataloader_utils.plan.level import Transfers, even_targets, level_list, plan_transfers
from torch_dataloader_utils.plan.steps import count_steps, step_sizes
from torch_dataloader_utils.plan.strategy_check import RankUnits
from torch_dataloader_utils.plan.window import shuffle_windows


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyDeal:
    """Deals a strategy's units; moves rows between ranks and workers only as far as equal steps need it.

    given: every rank's units, worker by worker. shared: every rank has the same units (a strategy without rank
        arguments); then no rows move between ranks.
    """

    given: tuple[RankUnits, ...]
    shared: bool
    space: RowSpace
    options: PlanOptions
    topology: Topology

    @cached_property
    def _given_rows(self) -> Int64s:
        return np.array([sum(units.num_rows for units in workers) for workers in self.given], dtype=np.int64)

    @cached_property
    def rank_rows(self) -> Int64s:
        """See Deal."""
        levelled = self.options.rank_sharding == "rows" and not self.shared
        return even_targets(self._given_rows) if levelled else self._given_rows

    @cached_property
    def transfers(self) -> Transfers:
        """See Deal."""
        return plan_transfers(self._given_rows, self.rank_rows)

    @cached_property
    def steps(self) -> Int64s:
        """See Deal."""
        return count_steps(self.rank_rows, self.topology, equal=self.options.rank_sharding == "rows")

    @property
    def first_unit(self) -> Units:
        """See Deal."""
        return Units.concat([units for workers in self.given for units in workers]).take(slice(0, 1))

    def rank(self, rank: int) -> RankDeal:
        """See Deal."""
        units = level_list(rank, lambda i: Units.concat(self.given[i]), self.transfers)
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        owner = self._owners(rank, units)
        kept, dropped = units.split_at(sizes.rows)
        owner = owner[: len(kept)]
        lanes = [kept.take(np.flatnonzero(owner == worker)) for worker in range(self.topology.num_workers)]
        levelled = level_workers(lanes, sizes)
        workers = tuple(shuffle_windows(lane, self.options, self.topology.batch_size) for lane in levelled)
        return RankDeal(workers=workers, sizes=sizes, dropped=dropped)

    def _owners(self, rank: int, units: Units) -> Int64s:
        """The worker of each unit: the strategy's choice for the rank's own units, by LPT for those it received."""
        own = np.repeat(np.arange(self.topology.num_workers), [len(lane) for lane in self.given[rank]])
        received = sum(transfer.rows for transfer in self.transfers.received.get(rank, ()))
        num_kept = len(units.split_at(units.num_rows - received)[0])
        own = own[:num_kept]
        weights = self.space.bytes_between(units.start, units.stop)
        loads = [int(weights[:num_kept][own == worker].sum()) for worker in range(self.topology.num_workers)]
        return np.concatenate([own, assign_owners(weights[num_kept:], loads, range(len(loads)))])
