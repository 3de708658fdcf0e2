"""Protocols: what the stream needs of a plan and of a planner. (Stages do not import each other.)"""

from collections.abc import Iterable
from typing import Protocol

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._core.state import Identity


class Plan(Protocol):
    """What the stream asks of a plan (see epoch_plan.EpochPlan)."""

    @property
    def rank_steps(self) -> tuple[int, ...] | None:
        """Batches of every rank under the present topology; None where row counts are not known."""
        ...

    def worker_inputs(self, rank: int) -> tuple[WorkerInput, ...]:
        """What each worker of a rank still has to do."""
        ...

    def padding_rows(self, rank: int) -> int:
        """Rows that a rank delivers a second time, to take its last step."""
        ...


class PlanSource(Protocol):
    """What the stream asks of a planner (see planning.Planner)."""

    @property
    def options(self) -> PlanOptions:
        """The options that plans are made with."""
        ...

    @property
    def identity(self) -> Identity:
        """What states are bound to: the data, and the options."""
        ...

    @property
    def inventory(self) -> Inventory:
        """The files and row groups that plans are of."""
        ...

    @property
    def assigns_every_row_once(self) -> bool:
        """Whether ranks share the rows; a strategy may give every rank all of them."""
        ...

    def plan(self, position: Position) -> Plan:
        """The plan from a position on."""
        ...

    def counted(self, position: Position) -> Position:
        """The position with numbers where its log says that ranks took all their steps."""
        ...

    def problems(self, position: Position) -> Iterable[str]:
        """What a trainer must know of that plan before it begins; nothing for nearly all plans."""
        ...

    def span(self, num_spans: int, index: int) -> "PlanSource":
        """The planner of one of `num_spans` runs of neighbouring rows."""
        ...
