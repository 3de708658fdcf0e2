"""`EpochPlan`: the plan of one epoch, as counts, as a program for each worker, as text and as a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.inventory import Inventory, planning_fingerprint
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.program import WorkerInput, WorkerProgram, worker_input
from torch_dataloader_utils._core.units import Units, group_slices
from torch_dataloader_utils._runtime.notebook import html_of
from torch_dataloader_utils.errors import ConfigTypeError, plural
from torch_dataloader_utils.plan.assignment import Assignment, EpochInputs
from torch_dataloader_utils.plan.explain import describe_cache, explain_plan
from torch_dataloader_utils.plan.pictures.svg import small_picture

if TYPE_CHECKING:
    import pyarrow as pa


# Version 2: with `shuffle`, chunks have another default size, and workers change from epoch to epoch.
_VERSION = 2


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EpochPlan:
    """Plan of one epoch, or of the rest of an epoch: the rows that every rank and worker reads.

    `plan_epoch` and every loader (`loader.plan`) make plans. Computing one rank's part does not cost all ranks' work.

    inputs: inputs of the assignment. assignment: rows of every rank and worker.
    following: function that returns the plan of the next epoch under this topology.
    is_shared: true if every one of several ranks reads everything (a split strategy without rank arguments).
    """

    inventory: Inventory
    inputs: EpochInputs
    assignment: Assignment
    following: "Callable[[], EpochPlan]"
    is_shared: bool = False

    @property
    def epoch(self) -> int:
        """Number of the planned epoch."""
        return self.inputs.position.epoch

    @property
    def topology(self) -> Topology:
        """Ranks, workers and batch size."""
        return self.inputs.position.topology

    @property
    def is_exact(self) -> bool:
        """True if all row counts are known, so that steps are equal and resume is exact on any topology."""
        return self.assignment.counts is not None

    @cached_property
    def rank_steps(self) -> tuple[int, ...] | None:
        """Number of batches of every rank under this topology; None if row counts are not known."""
        counts = self.assignment.counts
        return None if counts is None else tuple(counts.steps.tolist())

    @property
    def steps(self) -> int | None:
        """Number of batches of the rank with most batches; with rank_sharding="rows" all ranks have this number."""
        return max(self.rank_steps) if self.rank_steps is not None else None

    @cached_property
    def rank_rows(self) -> tuple[int, ...] | None:
        """Number of rows that every rank delivers; None if row counts are not known."""
        counts = self.assignment.counts
        return None if counts is None else tuple(counts.rows.tolist())

    @property
    def dropped_rows(self) -> int:
        """Number of rows that drop_last leaves out in this epoch, over all ranks."""
        counts = self.assignment.counts
        return 0 if counts is None else counts.dropped_rows

    @property
    def repeated_rows(self) -> int:
        """Number of rows that come a second time because a rank has no row left for its last step, over all ranks."""
        counts = self.assignment.counts
        return 0 if counts is None else int(counts.repeats.sum())

    def padding_rows(self, rank: int) -> int:
        """Return how many `repeated_rows` one rank delivers: 1 if it has no row left for its last step, else 0.

        Raises:
            ConfigTypeError, ConfigError: as `programs`.
        """
        rank, counts = check_integer("rank", rank), self.assignment.counts
        self.topology.check_rank(rank)
        return 0 if counts is None else int(counts.repeats[rank])

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all inputs of this plan: blake2b, 128 bits, as hex."""
        position, options, data = self.inputs.position, self.inputs.options, planning_fingerprint(self.inventory)
        # Before the first batch was received only the topology counts, also if a state was loaded.
        present = position.segment if position.segment.has_begun else position.topology
        text = f"({_VERSION}, {data!r}, {options!r}, {position.epoch}, {position.history!r}, {present!r})"
        shares = "" if options.host_shares is None else f", {options.host_shares} shares"
        return blake2b(f"{text}{shares}".encode(), digest_size=16).hexdigest()

    def programs(self, rank: int) -> tuple[WorkerProgram, ...]:
        """Return the program of every worker of a rank: the work that it still has to do.

        Raises:
            ConfigTypeError: rank is not a whole number. ConfigError: rank is not in [0, num_ranks).
        """
        return self.assignment.programs(check_integer("rank", rank), self.inputs.position.segment)

    def worker_inputs(self, rank: int) -> tuple[WorkerInput, ...]:
        """Return the program of every worker of a rank with the row groups that it reads. Raises as `programs`."""
        return tuple(worker_input(program, self.inventory, self.inputs.space) for program in self.programs(rank))

    def explain(
        self, max_ranks: int = 16, *, cache_bytes: int | str | None = None, host_ranks: int | None = None
    ) -> str:
        """Return the plan as text: ranks × workers with rows, bytes, row groups, imbalance and the effect of balancing.

        Args:
            max_ranks: number of ranks that the table shows.
            cache_bytes: size of a `HostCache`. With a size, the text also says which part of its bytes a host would
                read from the cache in this epoch and the next epochs. All ranks of the first host are planned for it.
            host_ranks: number of ranks on a host; None for the ranks that keep a share (`host_shares`), or else all
                ranks.

        Raises:
            ConfigTypeError, ConfigError: not a valid number of bytes or ranks.
        """
        return explain_plan(
            self, check_integer("max_ranks", max_ranks, least=0), describe_cache(self, cache_bytes, host_ranks)
        )

    def to_arrow(self, ranks: Sequence[int] | None = None) -> "pa.Table":
        """Return the plan as a table: one row for each row range that a worker reads, in the worker's reading order.

        Columns: rank, worker, lane, unit, window (-1: not shuffled), path, row_group, start_row, stop_row (live rows
        of the row group), bytes (projected, estimated for parts of a row group).

        Raises:
            ConfigTypeError: ranks is not a list of whole numbers. ConfigError: a rank is not in [0, num_ranks).
        """
        import pyarrow as pa

        if ranks is not None and not isinstance(ranks, Iterable):
            raise ConfigTypeError(f"ranks={ranks!r}: pass a list of ranks, or None for all.")
        chosen = [check_integer("rank", rank) for rank in (range(self.topology.num_ranks) if ranks is None else ranks)]
        tables = [_rank_table(self, rank) for rank in chosen or [0]]
        return pa.concat_tables(tables) if chosen else tables[0].slice(0, 0)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the summary of `explain()` and the picture of `tdu plan --draw`."""
        summary = self.explain(max_ranks=1).partition("\n\n")[0]
        return html_of(
            f"Plan of epoch {self.epoch}", [("", line) for line in summary.splitlines()], small_picture(self)
        )

    def __repr__(self) -> str:
        topology, steps = self.topology, self.steps
        each = (
            f"{plural(topology.num_ranks, 'rank')} x {plural(topology.num_workers, 'worker')}, "
            f"batch_size={topology.batch_size}"
        )
        counts = "row counts unknown"
        if self.rank_rows is not None and steps is not None:
            counts = f"{plural(sum(self.rank_rows), 'row')}, {plural(steps, 'step')}"
        left = f", {plural(self.dropped_rows, 'row')} dropped" if self.dropped_rows else ""
        return f"<EpochPlan: epoch {self.epoch}, {each}, {counts}{left}; explain() says more>"


def _rank_table(plan: EpochPlan, rank: int) -> "pa.Table":
    """Return the row ranges of one rank, worker after worker, in reading order. See `EpochPlan.to_arrow`."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    groups, paths, space = plan.inventory.groups, plan.inventory.files.paths, plan.inputs.space
    for worker, program in enumerate(plan.programs(rank)):
        for lane, units in enumerate(program.lanes or (Units.none(),)):
            slices = group_slices(units, space.group_start[:-1], space.group_start[1:])
            begin = space.group_start[slices.group]
            values = {
                "rank": np.full(len(slices), rank, dtype=np.int32),
                "worker": np.full(len(slices), worker, dtype=np.int32),
                "lane": np.full(len(slices), lane, dtype=np.int32),
                "unit": slices.unit,
                "window": units.window[slices.unit],
                "path": pa.array([paths[file] for file in groups.file[slices.group].tolist()], pa.string()),
                "row_group": groups.ordinal[slices.group],
                "start_row": slices.start,
                "stop_row": slices.stop,
                "bytes": space.bytes_between(begin + slices.start, begin + slices.stop),
            }
            for name, value in values.items():
                columns.setdefault(name, []).append(pa.array(value))
    return pa.table({name: pa.chunked_array(chunks) for name, chunks in columns.items()})
