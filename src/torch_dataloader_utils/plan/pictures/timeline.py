"""Lay out a plan as bars: for each worker the row groups that it reads, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._core.program import RotatingLanes, WorkerProgram
from torch_dataloader_utils._core.units import Units

if TYPE_CHECKING:
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan

Float64s = npt.NDArray[np.float64]

# With more bars, neighbouring row groups of a file are merged into one bar: browsers draw about this many at once.
_MOST_BARS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Rows of one row group, or of neighbouring row groups, that a worker reads.

    start, length: bytes, on the worker's own axis. file: index into Timeline.files. is_shared: true if other workers
    read other rows of the same row group. label: text of a tooltip.
    """

    start: float
    length: float
    file: int
    is_shared: bool
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """Row of one worker: its totals, and its bars lane by lane."""

    rank: int
    worker: int
    num_rows: int
    num_batches: int | None
    num_bytes: int
    lanes: tuple[tuple[Bar, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Workers of the ranks that are shown, and the names of the files that they read."""

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
        """Mean bytes of a worker."""
        return sum(worker.num_bytes for worker in self.workers) / max(1, len(self.workers))

    @property
    def imbalance(self) -> float:
        """Bytes of the heaviest worker divided by the mean, over the ranks that are shown: 1.0 is even."""
        return self.longest_bytes / self.mean_bytes if self.mean_bytes else 1.0

    @property
    def shown_ranks_note(self) -> str:
        """Text after a figure of all workers: ", first 32 ranks", or "" if all ranks are shown."""
        return f", first {self.shown_ranks:,} ranks" if self.shown_ranks < self.num_ranks else ""

    @property
    def ticks(self) -> tuple[int, ...]:
        """Round positions on the axis: four to eight multiples of a power of two."""
        step = 1 << max(0, (self.longest_bytes // 4).bit_length() - 1)
        return tuple(range(0, self.longest_bytes + 1, step))

    @property
    def shared_groups(self) -> int:
        """Number of bars that are parts of a row group that other workers read too."""
        return sum(bar.is_shared for worker in self.workers for lane in worker.lanes for bar in lane)


def make_timeline(plan: "EpochPlan", max_ranks: int) -> Timeline:
    """Return the timeline of the first `max_ranks` ranks."""
    shown = min(max_ranks, plan.topology.num_ranks)
    uses = _Uses.of(plan, shown)
    # Uses are sorted by worker, so the uses of each worker are a range.
    number, num_workers = uses.rank * plan.topology.num_workers + uses.worker, plan.topology.num_workers
    begins = number.searchsorted(np.arange(shown * num_workers + 1))
    workers = []
    for rank in range(shown):
        for worker, program in enumerate(plan.programs(rank)):
            at = rank * num_workers + worker
            own = np.arange(begins[at], begins[at + 1])
            workers.append(_worker_row(uses, own, rank, worker, program))
    return Timeline(workers=tuple(workers), files=uses.files, num_ranks=plan.topology.num_ranks, shown_ranks=shown)


def _worker_row(uses: "_Uses", own: Int64s, rank: int, worker: int, program: WorkerProgram) -> WorkerRow:
    """Return the row of one worker, with the bars of its lanes.

    Lanes advance together, so each lane spans the whole axis. Only the rows of the job's incomplete last step, which
    are a lane of their own, come at the end.
    """
    lanes = [own[uses.lane[own] == lane] for lane in range(len(program.lanes))]
    sizes = [_sizes(uses, lane, units) for lane, units in zip(lanes, program.lanes, strict=True)]
    batching = program.batching
    has_last_step = isinstance(batching, RotatingLanes) and batching.tail_rows > 0
    total = float(sum(size.sum() for size in sizes))
    last = float(sizes[-1].sum()) if has_last_step else 0.0
    spans = [(0.0, total - last)] * len(lanes)
    if has_last_step:
        spans[-1] = (total - last, total)
    return WorkerRow(
        rank=rank,
        worker=worker,
        num_rows=program.num_rows,
        num_batches=batching.num_batches,
        num_bytes=round(total),
        lanes=tuple(_bars(uses, lane, size, span) for lane, size, span in zip(lanes, sizes, spans, strict=True)),
    )


def _sizes(uses: "_Uses", lane: Int64s, units: Units) -> Float64s:
    """Return the bytes of each use. A span of a window takes its part of every piece of the window."""
    rows = np.bincount(uses.unit[lane], uses.stop_row[lane] - uses.start_row[lane], minlength=len(units))
    part = np.where(units.is_plain, 1.0, units.rows / np.maximum(rows, 1))
    return np.asarray(uses.num_bytes[lane] * part[uses.unit[lane]], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Uses:
    """Rows that are read, in reading order: the columns of EpochPlan.to_arrow as arrays of shape [uses].

    file: index into `files`, the short names. is_shared: true if more than one worker reads the row group.
    """

    rank: Int64s
    worker: Int64s
    lane: Int64s
    unit: Int64s
    file: Int64s
    row_group: Int64s
    start_row: Int64s
    stop_row: Int64s
    num_bytes: Int64s
    is_shared: Any
    files: tuple[str, ...]

    @classmethod
    def of(cls, plan: "EpochPlan", shown: int) -> "_Uses":
        """Return the uses of the first `shown` ranks."""
        table = plan.to_arrow(range(shown))
        columns = {
            name: table.column(name).to_numpy().astype(np.int64) for name in table.column_names if name != "path"
        }
        paths, file = np.unique(np.array(table.column("path").to_pylist(), dtype=object), return_inverse=True)
        groups = np.unique(np.stack([file, columns["row_group"]]), axis=1, return_inverse=True)[1].reshape(-1)
        readers = np.unique(np.stack([groups, columns["rank"], columns["worker"]]), axis=1)
        counts = np.bincount(readers[0], minlength=1)
        names = ("rank", "worker", "lane", "unit", "row_group", "start_row", "stop_row")
        return cls(
            **{name: columns[name] for name in names},
            file=file.astype(np.int64),
            num_bytes=columns["bytes"],
            is_shared=counts[groups] > 1,
            files=_short_names([redact(path) for path in paths]),
        )


def _short_names(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths without the directories that all paths share.

    /data/year=1/a  /data/year=2/a      year=1/a  year=2/a
    """
    shared = paths[0].rpartition("/")[0] if paths else ""
    while shared and not all(path.startswith(f"{shared}/") for path in paths):
        shared = shared.rpartition("/")[0]
    return tuple(path.removeprefix(f"{shared}/") for path in paths)


def _bars(uses: _Uses, lane: Int64s, sizes: Float64s, span: tuple[float, float]) -> tuple[Bar, ...]:
    """Return the bars of one lane, in `span` = [start, stop) of the worker's axis."""
    if len(lane) == 0:
        return ()
    start_of_lane, stop_of_lane = span
    scale = (stop_of_lane - start_of_lane) / sizes.sum() if sizes.sum() else 0.0
    ends = start_of_lane + np.cumsum(sizes) * scale
    first = _run_starts(uses, lane) if len(uses.rank) > _MOST_BARS else np.arange(len(lane))
    last = np.append(first[1:], len(lane)) - 1
    begins = np.append(start_of_lane, ends)[first]
    return tuple(
        Bar(
            start=float(begin),
            length=float(ends[stop] - begin),
            file=int(uses.file[lane[start]]),
            is_shared=bool(uses.is_shared[lane[start]]),
            label=_label(uses, lane[start], lane[stop]),
        )
        for start, stop, begin in zip(first.tolist(), last.tolist(), begins.tolist(), strict=True)
    )


def _run_starts(uses: _Uses, lane: Int64s) -> Int64s:
    """Return the indices in a lane where a run of neighbouring row groups of one file begins."""
    shared = uses.is_shared[lane]
    follows = (np.diff(uses.file[lane]) == 0) & (np.diff(uses.row_group[lane]) == 1) & ~shared[1:] & ~shared[:-1]
    return np.flatnonzero(np.append(True, ~follows))


def _label(uses: _Uses, first: int, last: int) -> str:
    name, begin, end = uses.files[uses.file[first]], uses.row_group[first], uses.row_group[last]
    if begin != end:
        return f"{name} row groups {begin} to {end}"
    return f"{name} row group {begin}, rows {uses.start_row[first]:,} to {uses.stop_row[last]:,}"
