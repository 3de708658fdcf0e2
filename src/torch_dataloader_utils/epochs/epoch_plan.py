"""`EpochPlan`: a plan of `plan/` with its inventory, as counts, worker inputs, a table and text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.fingerprints import planning_fingerprint
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.program import WorkerInput, worker_input
from torch_dataloader_utils._core.state import VERSION as STATE_VERSION
from torch_dataloader_utils.errors import ConfigTypeError
from torch_dataloader_utils.plan.explain import explain_plan
from torch_dataloader_utils.plan.inexact_plan import InexactPlan
from torch_dataloader_utils.plan.kinds import PlanOfEpoch

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EpochPlan:
    """Who reads what in one epoch, or in what remains of it.

    Made by `plan_epoch` and by every loader (`loader.plan`). To compute one rank's part does not cost all ranks' work.

    is_shared: whether every one of several ranks reads everything: a split strategy without rank arguments.
    """

    inventory: Inventory
    details: PlanOfEpoch
    is_shared: bool = False

    @property
    def epoch(self) -> int:
        """The epoch this plan is for."""
        return self.details.position.epoch

    @property
    def topology(self) -> Topology:
        """Ranks, workers and batch size."""
        return self.details.position.topology

    @property
    def is_exact(self) -> bool:
        """Whether all row counts are known, so that steps are equal and resume is exact on any topology."""
        return not isinstance(self.details, InexactPlan)

    @property
    def rank_steps(self) -> tuple[int, ...] | None:
        """Batches of every rank under this topology, or None where row counts are not known."""
        return None if self.details.rank_steps is None else tuple(self.details.rank_steps.tolist())

    @property
    def steps(self) -> int | None:
        """Batches of the rank with most of them; with rank_sharding="rows" all ranks have as many."""
        return max(self.rank_steps) if self.rank_steps is not None else None

    @property
    def rank_rows(self) -> tuple[int, ...] | None:
        """Rows that every rank delivers, or None where row counts are not known."""
        return None if self.details.rank_rows is None else tuple(self.details.rank_rows.tolist())

    @property
    def dropped_rows(self) -> int:
        """Rows that drop_last leaves out this epoch, over all ranks."""
        return self.details.dropped_rows

    @property
    def repeated_rows(self) -> int:
        """Rows that come a second time because a rank has none left for its last step, over all ranks."""
        return self.details.repeated_rows

    def padding_rows(self, rank: int) -> int:
        """Of `repeated_rows`, those that one rank delivers: 1 if it has none left for its last step, else 0."""
        return self.details.padding_rows(check_integer("rank", rank))

    @cached_property
    def fingerprint(self) -> str:
        """blake2b (128 bits, hex) of all inputs of this plan."""
        plan = self.details
        position, data = plan.position, planning_fingerprint(self.inventory)
        # Before anything was received only the topology counts, also where a state was loaded.
        present = position.segment if position.segment.has_begun else position.topology
        text = f"({STATE_VERSION}, {data!r}, {plan.options!r}, {position.epoch}, {position.history!r}, {present!r})"
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def worker_inputs(self, rank: int) -> tuple[WorkerInput, ...]:
        """For every worker of a rank, its program and the row groups that it reads.

        Raises:
            ConfigTypeError: no whole number. ConfigError: rank not in [0, num_ranks).
        """
        programs = self.details.programs(check_integer("rank", rank))
        return tuple(worker_input(program, self.inventory, self.details.space) for program in programs)

    def explain(self, max_ranks: int = 16) -> str:
        """The plan as text: ranks × workers with rows, bytes, row groups and imbalance, and what levelling did."""
        most = check_integer("max_ranks", max_ranks, least=0)
        return explain_plan(self.details, self.inventory, most, is_shared=self.is_shared)

    def to_arrow(self, ranks: Sequence[int] | None = None) -> "pa.Table":
        """The plan as a table, one row for each row range that a worker reads, in its reading order.

        Columns: rank, worker, lane, unit, window (-1: not shuffled), path, row_group, start_row, stop_row (live rows
        of the row group), bytes (projected, estimated for parts of a row group).

        Raises:
            ConfigTypeError: no list of whole numbers. ConfigError: a rank not in [0, num_ranks).
        """
        import pyarrow as pa

        from torch_dataloader_utils.epochs.plan_table import rank_table

        if ranks is not None and not isinstance(ranks, Iterable):
            raise ConfigTypeError(f"ranks={ranks!r}: pass a list of ranks, or None for all.")
        chosen = [check_integer("rank", rank) for rank in (range(self.topology.num_ranks) if ranks is None else ranks)]
        plan = self.details
        tables = [rank_table(rank, plan.programs(rank), self.inventory, plan.space) for rank in chosen or [0]]
        return pa.concat_tables(tables) if chosen else tables[0].slice(0, 0)

    def __repr__(self) -> str:
        topology, steps = self.topology, self.steps
        each = f"{topology.num_ranks} ranks x {topology.num_workers} workers, batch_size={topology.batch_size}"
        counts = "row counts unknown" if self.rank_rows is None else f"{sum(self.rank_rows):,} rows, {steps:,} steps"
        left = f", {self.dropped_rows:,} rows dropped" if self.dropped_rows else ""
        return f"<EpochPlan: epoch {self.epoch}, {each}, {counts}{left}; explain() says more>"
