"""Built-in split strategies: pure functions of files, workers, epoch and rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.arguments import check_seed, hold_flags, hold_integers
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.splits import DataFileInfo, RowRange, Shard, Split
from torch_dataloader_utils._core.units import RowSpace, Units
from torch_dataloader_utils.plan.balance import assign_owners, assign_units, slice_units, worker_order
from torch_dataloader_utils.plan.chunks import chunk_row_groups, order_chunks


@dataclass(frozen=True, slots=True)
class TargetSizeSplitStrategy:
    """Chunks of about target_bytes (or target_rows, if given), sliced to ranks and assigned by LPT to workers.

    Without either, chunks have 128 MiB; with shuffle a 1,024th of the data, if that is less. A file without row
    groups is one chunk. Chunks are the same as without a strategy, but ranks are not balanced.
    """

    target_bytes: int | None = None
    target_rows: int | None = None
    shuffle: bool = False
    seed: int = 42

    def __post_init__(self) -> None:
        hold_integers(self, "target_bytes", "target_rows", least=1)
        _hold_order(self)

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int = 0, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        """See SplitStrategy."""
        options = PlanOptions(
            split_bytes=self.target_bytes, split_rows=self.target_rows, shuffle=self.shuffle, seed=self.seed
        )
        space = _space_of_files(files)
        chunks = order_chunks(chunk_row_groups(space, options), options, epoch)
        mine = slice_units(chunks, rank, num_ranks)
        order = worker_order(max(1, num_workers), options, epoch, rank)
        workers = assign_units(mine, space.bytes_between(mine.start, mine.stop), order)
        return [Shard(worker, _splits_of(units, space, files)) for worker, units in enumerate(workers)]


@dataclass(frozen=True, slots=True)
class RoundRobinSplitStrategy:
    """Whole files by number: files[rank::num_ranks] to each rank, and file i of a rank to worker i % num_workers."""

    shuffle: bool = False
    seed: int = 42

    def __post_init__(self) -> None:
        _hold_order(self)

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int = 0, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        """See SplitStrategy."""
        workers = max(1, num_workers)
        mine = _ordered(files, shuffle=self.shuffle, seed=self.seed, epoch=epoch)[rank::num_ranks]
        return [Shard(worker, [Split(file) for file in mine[worker::workers]]) for worker in range(workers)]


@dataclass(frozen=True, slots=True)
class SizeBalancedSplitStrategy:
    """Whole files: files[rank::num_ranks] to each rank, then by LPT over rows (bytes if unknown) to workers."""

    shuffle: bool = False
    seed: int = 42

    def __post_init__(self) -> None:
        _hold_order(self)

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int = 0, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        """See SplitStrategy."""
        mine = _ordered(files, shuffle=self.shuffle, seed=self.seed, epoch=epoch)[rank::num_ranks]
        options, workers = PlanOptions(shuffle=self.shuffle, seed=self.seed), max(1, num_workers)
        owner = assign_owners(_weights(mine), [0] * workers, worker_order(workers, options, epoch, rank))
        return [
            Shard(worker, [Split(file) for file, by in zip(mine, owner.tolist(), strict=True) if by == worker])
            for worker in range(workers)
        ]


def _space_of_files(files: Sequence[DataFileInfo]) -> RowSpace:
    """Number the rows of these files, in file order, as plan rows.

    A file without row groups is one group of `record_count` rows, or of one row if the record count is not known.
    """
    groups = [
        (file.row_groups.rows, file.row_groups.bytes)
        if file.row_groups is not None
        else (
            np.array([1 if file.record_count is None else file.record_count]),
            np.array([file.file_size or file.record_count or 1]),
        )
        for file in files
    ]
    rows = np.concatenate([np.zeros(1, np.int64), *(group[0] for group in groups)])
    weights = np.concatenate([np.zeros(1, np.int64), *(group[1] for group in groups)])
    counts = [len(group[0]) for group in groups]
    return RowSpace(
        group_start=np.cumsum(rows),
        byte_start=np.cumsum(weights),
        file=np.repeat(np.arange(len(files), dtype=np.int32), counts),
        exact=True,
    )


def file_starts(space: RowSpace, num_files: int) -> Int64s:
    """Return the first plan row of every file, and the end of the last file: int64 [num_files + 1]."""
    first = np.searchsorted(space.file, np.arange(num_files + 1), side="left")
    return space.group_start[first]


def _splits_of(units: Units, space: RowSpace, files: Sequence[DataFileInfo]) -> list[Split]:
    starts = file_starts(space, len(files))
    file = np.searchsorted(starts, units.start, side="right") - 1
    return [
        Split(files[f], None if files[f].record_count is None else RowRange(start - int(starts[f]), stop - start))
        for f, start, stop in zip(file.tolist(), units.start.tolist(), units.stop.tolist(), strict=True)
    ]


def _hold_order(strategy: TargetSizeSplitStrategy | RoundRobinSplitStrategy | SizeBalancedSplitStrategy) -> None:
    hold_flags(strategy, "shuffle")
    object.__setattr__(strategy, "seed", check_seed("seed", strategy.seed))


def _ordered(files: Sequence[DataFileInfo], *, shuffle: bool, seed: int, epoch: int) -> list[DataFileInfo]:
    if not shuffle:
        return list(files)
    order = permutation(len(files), seed=seed, epoch=epoch, purpose=Purpose.CHUNKS)
    return [files[index] for index in order.tolist()]


def _weights(files: Sequence[DataFileInfo]) -> Int64s:
    if all(file.record_count is not None for file in files):
        return np.array([file.record_count or 0 for file in files], dtype=np.int64)
    return np.array([file.file_size or 1 for file in files], dtype=np.int64)
