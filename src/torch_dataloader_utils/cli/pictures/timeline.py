"""A plan as bars: for each worker what it reads, one row group after the other."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.planning import EpochPlan

# More bars than this are merged over neighbouring row groups of a file; browsers draw so many at once.
_MOST_BARS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Rows of one row group (or of neighbouring ones) that a worker reads.

    start, length: bytes, on the worker's own axis. file: index into Timeline.files. is_shared: other workers read
    other rows of the same row group. label: for a tooltip.
    """

    start: float
    length: float
    file: int
    is_shared: bool
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker: its totals, and its bars lane by lane."""

    rank: int
    worker: int
    num_rows: int
    num_batches: int | None
    num_bytes: int
    lanes: tuple[tuple[Bar, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The workers of the ranks that are shown, and the names of the files they read."""

    workers: tuple[WorkerRow, ...]
    files: tuple[str, ...]
    num_ranks: int
    shown_ranks: int

    @property
    def longest_bytes(self) -> int:
        """Bytes of the heaviest worker: the length of the axis."""
        return max((worker.num_bytes for worker in self.workers), default=0)

    @property
    def mean_bytes(self) -> float:
        """Mean of the workers."""
        return sum(worker.num_bytes for worker in self.workers) / max(1, len(self.workers))

    @property
    def imbalance(self) -> float:
        """Heaviest worker by the mean: 1.0 is even."""
        return self.longest_bytes / self.mean_bytes if self.mean_bytes else 1.0

    @property
    def ticks(self) -> tuple[int, ...]:
        """Round places on the axis: multiples of a power of two, four to eight of them."""
        step = 1 << max(0, (self.longest_bytes // 4).bit_length() - 1)
        return tuple(range(0, self.longest_bytes + 1, step))

    @property
    def shared_groups(self) -> int:
        """Bars that are parts of a row group which other workers read too."""
        return sum(bar.is_shared for worker in self.workers for lane in worker.lanes for bar in lane)


def make_timeline(plan: EpochPlan, max_ranks: int) -> Timeline:
    """The timeline of the first `max_ranks` ranks."""
    shown = min(max_ranks, plan.topology.num_ranks)
    uses = _uses(plan, shown)
    files, file_of_use = np.unique(uses["path"], return_inverse=True) if len(uses["path"]) else ((), uses["rank"])
    merges = len(uses["rank"]) > _MOST_BARS
    shared = _shared(uses, file_of_use)
    workers = []
    for rank in range(shown):
        for worker, program in enumerate(plan.details.programs(rank)):
            own = np.flatnonzero((uses["rank"] == rank) & (uses["worker"] == worker))
            lanes = [own[uses["lane"][own] == lane] for lane in range(len(program.lanes))]
            total = int(uses["bytes"][own].sum())
            workers.append(
                WorkerRow(
                    rank=rank,
                    worker=worker,
                    num_rows=program.num_rows,
                    num_batches=program.schedule.num_batches,
                    num_bytes=total,
                    lanes=tuple(_bars(uses, file_of_use, shared, lane, total, merges=merges) for lane in lanes),
                )
            )
    names = tuple(PurePosixPath(redact(str(path))).name for path in files)
    return Timeline(workers=tuple(workers), files=names, num_ranks=plan.topology.num_ranks, shown_ranks=shown)


def _uses(plan: EpochPlan, shown: int) -> dict[str, Any]:
    table = plan.to_arrow(range(shown))
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}


def _shared(uses: dict[str, Any], file_of_use: Int64s) -> Any:
    """Whether each use is of a row group that more than one worker reads."""
    groups = np.stack([file_of_use, uses["row_group"]]) if len(file_of_use) else np.zeros((2, 0), dtype=np.int64)
    _, group = np.unique(groups, axis=1, return_inverse=True)
    group = group.reshape(-1)
    pairs = np.unique(np.stack([group, uses["rank"], uses["worker"]]), axis=1)
    readers = np.bincount(pairs[0].astype(np.int64)) if pairs.shape[1] else np.zeros(1, dtype=np.int64)
    return readers[group] > 1 if len(group) else np.zeros(0, dtype=bool)


def _bars(
    uses: dict[str, Any], file_of_use: Int64s, shared: Any, lane: Int64s, worker_bytes: int, *, merges: bool
) -> tuple[Bar, ...]:
    """The bars of one lane; lanes of a worker advance together, so that each spans the worker's whole axis."""
    if len(lane) == 0:
        return ()
    sizes = uses["bytes"][lane].astype(np.float64)
    scale = worker_bytes / sizes.sum() if sizes.sum() else 0.0
    ends = np.cumsum(sizes) * scale
    first = _run_starts(uses, file_of_use, shared, lane) if merges else np.arange(len(lane))
    last = np.append(first[1:], len(lane)) - 1
    begins = np.append(0.0, ends)[first]
    return tuple(
        Bar(
            start=float(begin),
            length=float(ends[stop] - begin),
            file=int(file_of_use[lane[start]]),
            is_shared=bool(shared[lane[start]]),
            label=_label(uses, lane[start], lane[stop]),
        )
        for start, stop, begin in zip(first.tolist(), last.tolist(), begins.tolist(), strict=True)
    )


def _run_starts(uses: dict[str, Any], file_of_use: Int64s, shared: Any, lane: Int64s) -> Int64s:
    """Where a run of neighbouring row groups of one file begins, in a lane's order."""
    follows = (
        (np.diff(file_of_use[lane]) == 0)
        & (np.diff(uses["row_group"][lane]) == 1)
        & ~shared[lane][1:]
        & ~shared[lane][:-1]
    )
    return np.flatnonzero(np.append(True, ~follows))


def _label(uses: dict[str, Any], first: int, last: int) -> str:
    name = PurePosixPath(redact(str(uses["path"][first]))).name
    begin, end = int(uses["row_group"][first]), int(uses["row_group"][last])
    if first != last and begin != end:
        return f"{name} row groups {begin} to {end}"
    return f"{name} row group {begin}, rows {int(uses['start_row'][first]):,} to {int(uses['stop_row'][last]):,}"
