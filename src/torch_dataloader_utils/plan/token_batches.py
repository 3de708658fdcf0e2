"""Assign whole batches to ranks and workers, where the lengths of rows decide how many rows a batch has.

lengths of all rows  →  the batches of an epoch, one list  →  equal parts of the list, rank by rank, worker by worker

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

# Index of the random words of purpose CHUNKS that order groups of chunks. Index 0 orders chunks.
_CHUNK_GROUPS = 1
# Least number of windows in a group of chunks. Windows are cut equal, so with two windows each has more than two thirds
# of `shuffle_rows`. A larger number would leave small data sets with few groups to permute.
_WINDOWS_PER_GROUP = 2


def cut_batches(chunks: Units, lengths: Lengths, budget: TokenBudget, options: PlanOptions, epoch: int) -> Units:
    """Return all batches of an epoch in order, one window unit a batch. Windows are cut from all chunks.

    Windows hold the same rows in every epoch, so every epoch has the same number of batches. Three things depend on
    (seed, epoch): the order of the groups of chunks that windows are cut from, the order of batches in a window, and
    which of equally long rows are in one batch.

    chunks: all chunks, in an order that is the same for every epoch. lengths: the length of every plan row.
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
    """Return the windows of each group of neighbouring chunks: about equal, and of at most `shuffle_rows` rows.

    A group has at least `interleave` chunks and rows for two windows, if the data set is large enough. No row group
    lies in two groups, so groups can be permuted without keeping a row group in memory from one window to a far window.

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
    """Join neighbouring spans of one window, so that a lane of these batches gathers each window once.

    window 0 rows 0-3, 3-5; window 1 rows 0-2      window 0 rows 0-5; window 1 rows 0-2
    """
    follows = (batches.window[1:] == batches.window[:-1]) & (batches.start[1:] == batches.stop[:-1])
    first = np.flatnonzero(np.append(True, ~follows))[: len(batches)]
    last = np.append(first[1:], len(batches))[: len(first)] - 1
    return Units(
        start=batches.start[first], stop=batches.stop[last], window=batches.window[first], windows=batches.windows
    )


def cap_rows(batches: Units, most_rows: int) -> Units:
    """Cut every batch of more than `most_rows` rows into as few equal parts as possible.

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
    """`Assignment` of batches under a token budget. To balance ranks, batches are halved; no rows are moved.

    remaining: the (remaining) batches of the epoch in canonical order, one unit each. The batches are balanced (see
    `batches`) and cut into equal ranges: rank 0's first worker takes the first range, the last rank's last worker the
    last range.

        7 batches, num_ranks=2, num_workers=2      8 by halving: 0 1 | 2 3    4 5 | 6 7
                                                   steps of rank 0: 0 2 1 3
    """

    inputs: EpochInputs
    remaining: Units
    topology: Topology

    @classmethod
    def begin(cls, inputs: EpochInputs) -> "TokenAssignment":
        """Return the assignment of the whole epoch."""
        if inputs.batches is None:
            raise InternalError("A plan of batches under a token budget was made without batches.")
        return cls(inputs=inputs, remaining=inputs.batches, topology=inputs.position.first_topology)

    def resumed(self, received: Segment, topology: Topology) -> "TokenAssignment":
        """See Assignment. The batches that drop_last left out come last."""
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
        """Assigned batches: of at most batch_size rows, halved until ranks have equally many batches.

        With drop_last no batch is halved. If all batches have one row, some ranks may have one batch less.
        """
        capped = cap_rows(self.remaining, self.topology.batch_size)
        if self.topology.drop_last:
            return capped
        start, stop, part_of = halve_largest(capped.start, capped.stop, self.topology.num_ranks)
        return Units(start=start, stop=stop, window=capped.window[part_of], windows=capped.windows)

    @cached_property
    def rank_batches(self) -> Int64s:
        """Number of each rank's own batches, int64 [num_ranks]."""
        total, num_ranks = len(self.batches), self.topology.num_ranks
        return even_counts(total - total % num_ranks if self.topology.drop_last else total, num_ranks)

    @property
    def steps(self) -> int:
        """Steps of every rank. A rank with one batch less repeats a row in its last step."""
        return int(self.rank_batches.max())

    @cached_property
    def rank_rows(self) -> Int64s:
        """Number of rows in each rank's own batches, int64 [num_ranks]."""
        ends = np.concatenate([[0], np.cumsum(self.batches.rows)])
        bounds = np.concatenate([[0], np.cumsum(self.rank_batches)])
        rows: Int64s = np.diff(ends[bounds])
        return rows

    @property
    def dropped(self) -> Units:
        """Batches that drop_last leaves out."""
        return self.batches.take(slice(int(self.rank_batches.sum()), None))

    def repeats_on(self, rank: int, worker: int) -> bool:
        """Return whether a rank's last step repeats a row of another batch, and this worker gives the step."""
        repeats = int(self.rank_batches[rank]) < self.steps
        return repeats and (self.steps - 1) % self.topology.num_workers == worker

    def workers(self, rank: int) -> list[Units]:
        """Return the batches of each worker of a rank, in order, without a repeated row."""
        begin, workers = int(self.rank_batches[:rank].sum()), self.topology.num_workers
        lanes = []
        for worker in range(workers):
            end = begin + batches_of_worker(self.steps, worker, workers) - self.repeats_on(rank, worker)
            lanes.append(self.batches.take(slice(begin, end)))
            begin = end
        return lanes
