"""Whole batches assigned to ranks and workers: for data whose lengths decide how many rows a batch has.

lengths of all rows  →  the batches of an epoch, one list  →  equal parts of it, rank by rank, worker by worker

Each batch is one window unit. See docs/design/0015-token-batches.md.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.division import even_counts
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.position import Segment
from torch_dataloader_utils._core.program import ListedBatches, WorkerProgram
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget, halve_largest
from torch_dataloader_utils._core.units import Units, ranges
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.plan.assignment import EpochInputs, RankCounts
from torch_dataloader_utils.plan.steps import batches_of_worker
from torch_dataloader_utils.plan.windows import cut_windows

# Index of the random words of purpose CHUNKS that order groups of chunks; index 0 orders chunks.
_CHUNK_GROUPS = 1
# Windows that a group of chunks holds at least: they are cut equal, so with two each has more than two thirds of
# `shuffle_rows`. More would leave small data sets with few groups to permute.
_WINDOWS_PER_GROUP = 2


def cut_batches(chunks: Units, lengths: Lengths, budget: TokenBudget, options: PlanOptions, epoch: int) -> Units:
    """All batches of an epoch in their order, one window unit a batch; windows are cut from all chunks.

    Windows hold the same rows in every epoch, so that every epoch has as many batches. What depends on (seed, epoch):
    the order of the groups of chunks that windows are cut from, the order of batches in a window, and which of equally
    long rows are in one batch.

    chunks: in an order that is the same for every epoch. lengths: of every plan row.
    """
    groups = group_chunks(chunks, options)
    if options.shuffle:
        order = permutation(len(groups), seed=options.seed, epoch=epoch, purpose=Purpose.CHUNKS, index=_CHUNK_GROUPS)
        groups = [groups[group] for group in order.tolist()]
    windows = Units.concat(groups).windows
    rows = [
        budget.batch_rows(
            np.concatenate([lengths[start:stop] for start, stop in zip(*windows.pieces(window), strict=True)]),
            seed=options.seed,
            epoch=epoch,
            index=key,
        )
        for window, key in enumerate(windows.keys.tolist())
    ]
    stops = [np.cumsum(sizes) for sizes in rows]
    stop = np.concatenate([np.zeros(0, dtype=np.int64), *stops])
    start = stop - np.concatenate([np.zeros(0, dtype=np.int64), *rows])
    window = np.repeat(np.arange(len(rows)), [len(sizes) for sizes in rows])
    return Units(start=start, stop=stop, window=window, windows=windows)


def group_chunks(chunks: Units, options: PlanOptions) -> list[Units]:
    """The windows of each group of neighbouring chunks: at most `shuffle_rows` rows, and about equal ones.

    A group has at least `interleave` chunks and rows for two windows, if there are as many. No row group lies in two
    groups: they can be permuted without keeping a row group in memory from one window to a far one.

        shuffle_rows=4, interleave=2, chunks a (6 rows), b (3), c (5), d (5)
        a1 a2 b1 | a3 a4 b2 | a5 a6 b3      and      c1 c2 d1 d2 | c3 c4 d3 d4 | c5 d5
    """
    window_rows = options.shuffle_rows or max(1, chunks.num_rows)
    least_rows = _WINDOWS_PER_GROUP * window_rows
    ends = np.cumsum(chunks.rows)
    groups, first = [], 0
    while first < len(chunks):
        before = int(ends[first] - chunks.rows[first])
        stop = max(first + options.interleave, int(np.searchsorted(ends, before + least_rows)) + 1)
        left = len(chunks) - stop
        if left < options.interleave or ends[-1] - ends[stop - 1] < least_rows:
            stop = len(chunks)
        group = chunks.take(slice(first, stop))
        num_windows = -(-group.num_rows // window_rows)
        groups.append(cut_windows(group, -(-group.num_rows // num_windows), options.interleave))
        first = stop
    return groups


def join_batches(batches: Units) -> Units:
    """The same rows with neighbouring spans of one window joined: a lane, whose windows are gathered once each.

    window 0 rows 0-3, 3-5; window 1 rows 0-2      window 0 rows 0-5; window 1 rows 0-2
    """
    follows = (batches.window[1:] == batches.window[:-1]) & (batches.start[1:] == batches.stop[:-1])
    first = np.flatnonzero(np.append(True, ~follows))[: len(batches)]
    last = np.append(first[1:], len(batches))[: len(first)] - 1
    return Units(
        start=batches.start[first], stop=batches.stop[last], window=batches.window[first], windows=batches.windows
    )


def cap_rows(batches: Units, most_rows: int) -> Units:
    """The batches with those of more than `most_rows` rows cut into as few equal parts as that needs.

    rows 7 2, most_rows=3      2 2 3 2
    """
    parts = -(-batches.rows // most_rows)
    if (parts == 1).all():
        return batches
    part_of = np.repeat(np.arange(len(batches)), parts)
    part = ranges(np.zeros_like(parts), parts)
    rows, parts, start = batches.rows[part_of], parts[part_of], batches.start[part_of]
    return Units(
        start=start + rows * part // parts,
        stop=start + rows * (part + 1) // parts,
        window=batches.window[part_of],
        windows=batches.windows,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenAssignment:
    """The `Assignment` of batches under a token budget; to balance ranks, batches are halved, no rows moved.

    remaining: the batches of the epoch, or what remains of them, in canonical order, one unit each. They are balanced
    (see `batches`) and cut into equal ranges: rank 0's workers take the first, the last rank's last worker the last.

        7 batches, num_ranks=2, num_workers=2      8 by halving: 0 1 | 2 3    4 5 | 6 7
                                                   steps of rank 0: 0 2 1 3
    """

    inputs: EpochInputs
    remaining: Units
    topology: Topology

    @classmethod
    def begin(cls, inputs: EpochInputs) -> "TokenAssignment":
        """The assignment of the whole epoch."""
        if inputs.batches is None:
            raise InternalError("A plan of batches under a token budget was made without batches.")
        return cls(inputs=inputs, remaining=inputs.batches, topology=inputs.position.first_topology)

    def resumed(self, received: Segment, topology: Topology) -> "TokenAssignment":
        """See Assignment; the batches that drop_last left out come last."""
        parts = []
        for rank in range(self.topology.num_ranks):
            for worker, lane in enumerate(self.workers(rank)):
                done = batches_of_worker(received.steps_of(rank), worker, self.topology.num_workers)
                parts.append(lane.take(slice(done, None)))
        return replace(self, remaining=Units.concat([*parts, self.dropped]), topology=topology)

    @cached_property
    def counts(self) -> RankCounts:
        """See Assignment."""
        return RankCounts(
            steps=np.full(len(self.rank_batches), self.steps),
            rows=self.rank_rows,
            repeats=self.rank_batches < self.steps,
            dropped_rows=self.dropped.num_rows,
        )

    def programs(self, rank: int, received: Segment) -> tuple[WorkerProgram, ...]:
        """See Assignment."""
        self.topology.check_rank(rank)
        position, options, done = self.inputs.position, self.inputs.options, received.steps_of(0)
        workers, budget = self.topology.num_workers, options.token_budget(position.first_topology.batch_size)
        programs = []
        for worker, lane in enumerate(self.workers(rank)):
            left = lane.take(slice(batches_of_worker(done, worker, workers), None))
            if self.repeats_on(rank, worker) and done < self.steps:
                left = Units.concat([left, self.batches.take(slice(0, 1)).split_at(1)[0]])
            programs.append(
                WorkerProgram(
                    lanes=(join_batches(left),),
                    batching=ListedBatches(batch_rows=left.rows),
                    seed=options.seed,
                    epoch=position.epoch,
                    by_length=budget,
                )
            )
        return tuple(programs)

    @cached_property
    def batches(self) -> Units:
        """The batches that are assigned: of at most batch_size rows, halved until ranks have equally many.

        With drop_last nothing is halved; where all batches have one row, some ranks may be one short.
        """
        capped = cap_rows(self.remaining, self.topology.batch_size)
        if self.topology.drop_last:
            return capped
        start, stop, part_of = halve_largest(capped.start, capped.stop, self.topology.num_ranks)
        return Units(start=start, stop=stop, window=capped.window[part_of], windows=capped.windows)

    @cached_property
    def rank_batches(self) -> Int64s:
        """Batches of each rank's own, int64 [num_ranks]."""
        total, num_ranks = len(self.batches), self.topology.num_ranks
        return even_counts(total - total % num_ranks if self.topology.drop_last else total, num_ranks)

    @property
    def steps(self) -> int:
        """Steps of every rank; one that has a batch less repeats a row for its last one."""
        return int(self.rank_batches.max())

    @cached_property
    def rank_rows(self) -> Int64s:
        """Rows of each rank's own batches, int64 [num_ranks]."""
        ends = np.concatenate([[0], np.cumsum(self.batches.rows)])
        bounds = np.concatenate([[0], np.cumsum(self.rank_batches)])
        rows: Int64s = np.diff(ends[bounds])
        return rows

    @property
    def dropped(self) -> Units:
        """The batches that drop_last leaves out."""
        return self.batches.take(slice(int(self.rank_batches.sum()), None))

    def repeats_on(self, rank: int, worker: int) -> bool:
        """Whether a rank's last step is a row that another batch has too, and this worker gives it."""
        repeats = int(self.rank_batches[rank]) < self.steps
        return repeats and (self.steps - 1) % self.topology.num_workers == worker

    def workers(self, rank: int) -> list[Units]:
        """The batches of each worker of a rank, in order; a row that is repeated is not among them."""
        begin, workers = int(self.rank_batches[:rank].sum()), self.topology.num_workers
        lanes = []
        for worker in range(workers):
            end = begin + batches_of_worker(self.steps, worker, workers) - self.repeats_on(rank, worker)
            lanes.append(self.batches.take(slice(begin, end)))
            begin = end
        return lanes
