"""Plan an epoch from inventory, options and position: `plan_epoch`, and the `Planner` of every loader."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from torch_dataloader_utils._core.arguments import check_epoch, check_integer
from torch_dataloader_utils._core.division import even_span
from torch_dataloader_utils._core.inventory import Inventory, check_inventory, data_settings, planning_fingerprint
from torch_dataloader_utils._core.option_values import Lanes, TokenBatches, check_lanes, check_token_batches
from torch_dataloader_utils._core.options import PlanOptions, RankSharding, Shuffle, Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._core.state import Identity
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._core.units import RowSpace, Units
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils.errors import ConfigError, LoaderError
from torch_dataloader_utils.plan.assignment import Assignment, EpochInputs
from torch_dataloader_utils.plan.chunks import chunk_row_groups, keep_span, order_chunks, share_chunks
from torch_dataloader_utils.plan.epoch_plan import EpochPlan
from torch_dataloader_utils.plan.lanes import LaneAssignment
from torch_dataloader_utils.plan.problems import plan_problems
from torch_dataloader_utils.plan.row_assignment import RowAssignment
from torch_dataloader_utils.plan.strategy_call import (
    StrategyCall,
    describe_files,
    find_strategy,
    strategy_name,
    takes_ranks,
)
from torch_dataloader_utils.plan.token_batches import TokenAssignment, cut_batches
from torch_dataloader_utils.plan.uncounted import UncountedAssignment
from torch_dataloader_utils.plan.upcoming import EPOCHS_AHEAD, GroupReads
from torch_dataloader_utils.plan.windows import size_windows


def plan_epoch(
    inventory: Inventory,
    *,
    num_ranks: int = 1,
    num_workers: int = 1,
    batch_size: int = 1024,
    shuffle: Shuffle = False,
    seed: int = 42,
    epoch: int = 0,
    drop_last: bool = False,
    split_bytes: int | str | None = None,
    split_rows: int | None = None,
    rank_sharding: RankSharding = "rows",
    shuffle_rows: int | None = None,
    interleave: int | None = None,
    lanes: Lanes | int | None = None,
    token_batches: TokenBatches | None = None,
    host_shares: int | None = None,
    split_strategy: SplitStrategy | str | None = None,
) -> EpochPlan:
    """Plan one epoch. The plan is a pure function of the arguments.

    Args:
        inventory: inventory from `scan_files` or `scan_iceberg`.
        num_ranks: number of training processes. num_workers: number of workers of each rank's loader (0 counts as 1).
        batch_size: number of rows in a batch of one rank.
        shuffle: True permutes chunks, and rows in windows, by (seed, epoch); "chunks" permutes chunks only.
        seed: any integer, taken modulo 2^64.
        epoch: number of the epoch.
        drop_last: give only full batches. The plan counts the rows that are left out.
        split_bytes: projected bytes of a chunk, an int or text; None for 128 MiB, with `shuffle` for a 1,024th of the
            data if that is less. split_rows: rows of a chunk; wins over `split_bytes`.
        rank_sharding: "rows" for equal steps, "chunks" to keep every chunk on one rank.
        shuffle_rows: rows of a shuffle window; None with shuffle=True for the default, otherwise 0 or None for no
            windows. interleave: number of chunks that a window draws from; None for 16 with shuffle=True, otherwise 4.
        lanes: `Lanes`, or a number of lanes, for an order that survives a change of topology. See the docs page on
            lanes.
        token_batches: `TokenBatches`: the column of lengths by which windows are ordered. Windows then are whole
            batches. A limit of tokens needs the lengths of all rows, which an inventory does not have: take the plan
            of a loader instead.
        host_shares: number of parts of the chunks that hosts keep in all epochs, for a cache. See the docs page on
            the host cache.
        split_strategy: object with `generate`, or name of a plug-in, instead of the built-in steps.

    Raises:
        ConfigError: an argument is out of range, or the lanes do not fit the topology.
    """
    inventory = check_inventory("inventory", inventory)
    num_workers = check_integer("num_workers", num_workers, least=0)
    strategy = find_strategy(split_strategy)
    options = PlanOptions.of(
        split_bytes=split_bytes,
        split_rows=split_rows,
        shuffle=shuffle,
        seed=seed,
        rank_sharding=rank_sharding,
        shuffle_rows=shuffle_rows,
        interleave=interleave,
        lanes=check_lanes("lanes", lanes),
        token_batches=check_token_batches("token_batches", token_batches),
        host_shares=host_shares,
        strategy=strategy_name(strategy),
    )
    topology = Topology(
        num_ranks=num_ranks, num_workers=max(1, num_workers), batch_size=batch_size, drop_last=drop_last
    )
    position = Position(epoch=check_epoch(epoch), segment=Segment(topology=topology))
    return Planner(inventory=inventory, options=options, strategy=strategy).plan(position)


def assign_epoch(inputs: EpochInputs) -> Assignment:
    """Return the assignment at the inputs' position: begun with the epoch, and resumed at every change of topology.

    The options choose the kind of assignment.

    Raises:
        ConfigError: the epoch cannot be assigned or resumed with these options and topologies. See `Assignment`.
    """
    assignment: Assignment = _kind(inputs).begin(inputs)
    for received, topology in inputs.position.changes():
        assignment = assignment.resumed(received, topology)
    return assignment


def _kind(
    inputs: EpochInputs,
) -> type[RowAssignment | LaneAssignment | TokenAssignment | UncountedAssignment]:
    if not inputs.space.exact:
        return UncountedAssignment
    if inputs.batches is not None:
        return TokenAssignment
    return RowAssignment if inputs.options.num_lanes is None else LaneAssignment


@dataclass(frozen=True, kw_only=True, eq=False)
class Planner:
    """Planner of one inventory under given options: returns the plan of any position.

    lengths: length of every plan row, shape [rows]; needed if the options limit the tokens of a batch.

    Values that do not depend on the position are computed once, and the last few plans are kept: asking for the same
    plan again costs nothing.
    """

    inventory: Inventory
    options: PlanOptions
    strategy: SplitStrategy | None = None
    lengths: Lengths | None = field(default=None, repr=False)

    @cached_property
    def space(self) -> RowSpace:
        """Numbering of the inventory's rows."""
        return RowSpace.of(self.inventory.groups)

    @cached_property
    def sized_options(self) -> PlanOptions:
        """The options, with the default size of shuffle windows for this data set where it is asked for."""
        return size_windows(self.options, self.space)

    @cached_property
    def identity(self) -> Identity:
        """Data and options that states are bound to."""
        fingerprint, settings = planning_fingerprint(self.inventory), data_settings(self.inventory)
        return Identity(fingerprint=fingerprint, options=self.options, settings=settings)

    @cached_property
    def _strategy_call(self) -> StrategyCall | None:
        if self.strategy is None:
            return None
        return StrategyCall(strategy=self.strategy, files=describe_files(self.inventory), space=self.space)

    @cached_property
    def _stored_chunks(self) -> Units:
        chunks = keep_span(chunk_row_groups(self.space, self.options), self.options)
        return share_chunks(chunks, self.options)

    @cached_property
    def _recent_chunks(self) -> Recent[tuple[int, int], Units]:
        return Recent(most=2)

    @cached_property
    def _recent_batches(self) -> Recent[tuple[int, TokenBudget], Units]:
        return Recent(most=2)

    @cached_property
    def _recent_plans(self) -> Recent[Position, EpochPlan]:
        return Recent(most=4)

    @cached_property
    def _recent_reads(self) -> Recent[tuple[Position, int, int | None], GroupReads]:
        return Recent(most=2 * EPOCHS_AHEAD)

    @property
    def assigns_every_row_once(self) -> bool:
        """True if every row is on one rank; false with a strategy that gives every rank all rows."""
        return self.strategy is None or takes_ranks(self.strategy)

    def span(self, num_spans: int, index: int) -> "Planner":
        """Return the planner of one of `num_spans` spans of neighbouring plan rows. A span can be cut again.

        The caller has checked that `index` is in [0, num_spans). Spans differ by at most one row, longer spans first:

            11 rows, num_spans=4      0-2  3-5  6-8  9-10

        Raises:
            ConfigError: row counts are not known.
        """
        if not self.space.exact:
            raise ConfigError(
                "A contiguous shard needs row counts, and the row counts of this data set are not known: plan with "
                'count_rows="auto", or shard with contiguous=False.'
            )
        first, stop = self.options.first_row, self.options.stop_row
        start, end = even_span((self.space.num_rows if stop is None else stop) - first, num_spans, index)
        options = replace(self.options, first_row=first + start, stop_row=first + end)
        return replace(self, options=options)

    def upcoming(self, position: Position, rank: int, worker: int | None = None) -> tuple[GroupReads, int]:
        """Return the row groups that a rank reads from `position` on and in the next epochs, and how many in this pass.

        worker: number of a worker of a foreign DataLoader, if `position` is that worker's; None for all workers.
        """
        segment = Segment(topology=position.topology)
        present_worker = None if worker is None else position.segment.next_worker(rank)
        present = self._reads(self.plan(position), rank, present_worker)
        parts = [present]
        for epoch in range(position.epoch + 1, position.epoch + 1 + EPOCHS_AHEAD):
            try:
                key = (Position(epoch=epoch, segment=segment), rank, worker)
                parts.append(self._recent_reads.get(key, self._reads_of_epoch))
            except LoaderError:  # a strategy failed, or the epoch is too high: its reads are not known
                break
        return GroupReads.one_after_other(parts), len(present.group)

    def _reads_of_epoch(self, key: tuple[Position, int, int | None]) -> GroupReads:
        position, rank, worker = key
        return self._reads(self._plan(position), rank, worker)

    def _reads(self, plan: EpochPlan, rank: int, worker: int | None) -> GroupReads:
        programs = plan.programs(rank)
        reads = GroupReads.of(programs if worker is None else programs[worker : worker + 1], self.space)
        return reads.with_members(self.inventory)

    def plan(self, position: Position) -> EpochPlan:
        """Return the plan from `position` on."""
        return self._recent_plans.get(position, self._plan)

    def counted(self, position: Position) -> Position:
        """Replace "all steps" in the position's log by the number of steps, which the plan says.

        Without row counts the position is returned as it is.

        Raises:
            CheckpointMismatchError: a rank took more steps than the plan has for the rank.
        """
        log: tuple[Segment, ...] = ()
        for segment in (*position.history, position.segment):
            steps = None
            if isinstance(segment.steps, tuple) and self.space.exact:
                before = replace(position, history=log, segment=Segment(topology=segment.topology))
                steps = self.plan(before).rank_steps
            log = (*log, segment if steps is None else segment.counted(steps))
        return replace(position, history=log[:-1], segment=log[-1])

    def problems(self, position: Position) -> Iterator[str]:
        """Return the `plan_problems` of the rest of an epoch; no problems if no steps are left."""
        plan = self.plan(position)
        return iter(()) if plan.rank_steps is not None and not any(plan.rank_steps) else plan_problems(plan)

    def _chunks(self, key: tuple[int, int]) -> Units:
        epoch, num_ranks = key
        return order_chunks(self._stored_chunks, self.options, epoch, self.options.rank_groups(num_ranks))

    def _token_batches(self, key: tuple[int, TokenBudget]) -> Units:
        epoch, budget = key
        if self.lengths is None:
            raise ConfigError(
                "max_tokens of token_batches= needs the lengths of all rows, and this plan has no lengths: use "
                "dataset.plan or loader.plan of a data set that has read the lengths."
            )
        # Every epoch uses the chunks of epoch 0: windows, and so the number of batches, stay the same.
        chunks = self._recent_chunks.get((0, 1), self._chunks)
        return cut_batches(chunks, self.lengths, budget, self.sized_options, epoch)

    def _plan(self, position: Position) -> EpochPlan:
        budget = self.options.token_budget(position.first_topology.batch_size) if self.space.exact else None
        batches = None if budget is None else self._recent_batches.get((position.epoch, budget), self._token_batches)
        inputs = EpochInputs(
            space=self.space,
            options=self.sized_options,
            chunks=self._recent_chunks.get((position.epoch, position.first_topology.num_ranks), self._chunks),
            position=position,
            strategy=self._strategy_call,
            batches=batches,
        )
        is_shared = position.topology.num_ranks > 1 and not self.assigns_every_row_once
        following = Position(epoch=position.epoch + 1, segment=Segment(topology=position.topology))
        return EpochPlan(
            inventory=self.inventory,
            inputs=inputs,
            assignment=assign_epoch(inputs),
            following=partial(self._plan, following),
            is_shared=is_shared,
        )

    def __str__(self) -> str:
        return str(self.inventory)

    def __reduce__(self) -> tuple[object, ...]:
        kept = partial(
            Planner, inventory=self.inventory, options=self.options, strategy=self.strategy, lengths=self.lengths
        )
        return kept, ()
