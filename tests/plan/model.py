"""A plan in a few lines that know nothing of how it was made: units to plan rows, programs to batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from hypothesis import strategies as st

from torch_dataloader_utils._core.inventory import GroupTable
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.units import RowSpace, Units
from torch_dataloader_utils.plan.assignment import Assignment, EpochInputs
from torch_dataloader_utils.plan.chunks import chunk_row_groups, order_chunks, share_chunks
from torch_dataloader_utils.plan.planner import assign_epoch
from torch_dataloader_utils.plan.strategy_call import StrategyCall


def make_space(files, group_bytes=(70, 400, 31, 0, 90, 2, 1300)):
    """A row space of files given as lists of row counts; their row groups have these bytes again and again."""
    file = np.repeat(np.arange(len(files)), [len(groups) for groups in files]).astype(np.int32)
    rows = np.array([rows for groups in files for rows in groups], dtype=np.int64)
    zeros = np.zeros_like(rows)
    return RowSpace.of(
        GroupTable(
            file=file,
            ordinal=zeros.astype(np.int32),
            first_row=zeros,
            physical_rows=rows,
            live_rows=rows,
            projected_bytes=np.resize(np.array(group_bytes, dtype=np.int64), len(rows)),
            byte_offset=zeros,
            byte_length=zeros,
        )
    )


def rows_of(units, seed, epoch):
    """The plan rows of a list of units, in delivery order."""
    rows = []
    for start, stop, window in zip(units.start, units.stop, units.window, strict=True):
        if window < 0:
            rows.extend(range(start, stop))
            continue
        stored = np.concatenate([np.arange(a, b) for a, b in zip(*units.windows.pieces(window), strict=True)])
        key = int(units.windows.keys[window])
        order = permutation(len(stored), seed=seed, epoch=epoch, purpose=Purpose.WINDOW, index=key)
        rows.extend(stored[order][start:stop].tolist())
    return rows


def batches_of(program):
    """The batches of one worker, as lists of plan rows."""
    lanes = [rows_of(lane, program.seed, program.epoch) for lane in program.lanes]
    taken = [0] * len(lanes)
    batches = []
    for number in range(program.batching.num_batches):
        batch = []
        for lane, rows in program.batching.parts(number):
            batch.extend(lanes[lane][taken[lane] : taken[lane] + rows])
            taken[lane] += rows
        batches.append(batch)
    return batches


def rank_batches(plan, rank):
    """The batches that a rank's trainer receives from the plan's position on."""
    workers = [iter(batches_of(program)) for program in plan.programs(rank)]
    steps = int(plan.rank_steps[rank])
    return [next(workers[step % len(workers)]) for step in range(plan.position.done, steps)]


def advance(plan, steps):
    """The same topology, `steps` steps later."""
    segment = replace(plan.position.segment, steps=plan.position.done + steps)
    return replace(plan, position=replace(plan.position, segment=segment))


def resume(plan, topology):
    """Another topology takes over where `plan` stands."""
    history = (*plan.position.history, plan.position.segment)
    return replace(plan, position=replace(plan.position, history=history, segment=Segment(topology=topology)))


def under(plan, topology):
    """The plan as if `topology` had begun the epoch."""
    return replace(plan, position=Position(epoch=plan.position.epoch, segment=Segment(topology=topology)))


files = st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=8)
bytes_of_groups = st.lists(st.integers(0, 500), min_size=1, max_size=12)
topologies = st.builds(
    Topology,
    num_ranks=st.integers(1, 7),
    num_workers=st.integers(1, 5),
    batch_size=st.one_of(st.integers(1, 50), st.integers(1, 4)),
    drop_last=st.booleans(),
)
options = st.builds(
    PlanOptions,
    split_rows=st.one_of(st.none(), st.integers(1, 60)),
    split_bytes=st.one_of(st.none(), st.integers(1, 500)),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    shuffle_rows=st.one_of(st.none(), st.integers(1, 60)),
    interleave=st.integers(1, 5),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """An `EpochPlan` without an inventory. begin: of the kind of assignment, if not the one that fits the inputs."""

    space: RowSpace
    options: PlanOptions
    chunks: Units
    position: Position
    strategy: StrategyCall | None = None
    batches: Units | None = None
    begin: Callable[[EpochInputs], Assignment] | None = None

    @cached_property
    def assignment(self):
        given = {
            name: getattr(self, name) for name in ("space", "options", "chunks", "position", "strategy", "batches")
        }
        inputs = EpochInputs(**given)
        return assign_epoch(inputs) if self.begin is None else self.begin(inputs)

    @property
    def rank_steps(self):
        return self.assignment.counts.steps

    @property
    def rank_rows(self):
        return self.assignment.counts.rows

    @property
    def dropped_rows(self):
        return self.assignment.counts.dropped_rows

    @property
    def repeated_rows(self):
        return int(self.assignment.counts.repeats.sum())

    @property
    def moved_rows(self):
        return self.assignment.counts.moved_rows

    @property
    def cuts(self):
        return self.assignment.counts.cuts

    def padding_rows(self, rank):
        return int(self.assignment.counts.repeats[rank])

    def programs(self, rank):
        return self.assignment.programs(rank, self.position.segment)


def make_plan(*, space, options, epoch=0, topology):
    """A fresh plan."""
    parts = options.rank_groups(topology.num_ranks)
    chunks = order_chunks(share_chunks(chunk_row_groups(space, options), options), options, epoch, parts)
    position = Position(epoch=epoch, segment=Segment(topology=topology))
    return Plan(space=space, options=options, chunks=chunks, position=position)


@st.composite
def plans(draw):
    """Fresh plans over random files, options and topologies."""
    drawn = draw(options)
    return make_plan(
        space=make_space(draw(files), draw(bytes_of_groups)),
        options=replace(drawn, host_shares=draw(st.sampled_from([None, 1, 2, 3, 4, 6])) if drawn.shuffle else None),
        epoch=draw(st.integers(0, 3)),
        topology=draw(topologies),
    )
