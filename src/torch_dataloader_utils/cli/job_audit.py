"""Compare the records of a job with its data: which rows every epoch gave, through stops, resumes and other topologies.

    files  →  passes  →  an epoch's steps that count  →  rows given never, once, more often, or in another step

A pass begins at a position. Steps of the same epoch after this position, which earlier passes gave, are replayed: the
state that was loaded is from before them. What is left is one list of segments, as in a state, and each of its steps
has rows.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from json import dumps
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from torch_dataloader_utils._core.inventory import FileTable, GroupTable, Int64s, Inventory, StringColumn
from torch_dataloader_utils._core.units import RowSpace
from torch_dataloader_utils._observe.audit_file import PassFound, group_checksum, read_audit
from torch_dataloader_utils.cli.given_rows import Given, Windows, given_spans
from torch_dataloader_utils.cli.step_audit import make_planner
from torch_dataloader_utils.errors import CorruptFileError, NoDataError, plural

_NAMED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Rows [start, stop) of a row group that came `times` times; live rows, as in plans."""

    path: str
    row_group: int
    start: int
    stop: int
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAudit:
    """Findings about one epoch of one order of the data.

    state: "complete", or "stopped" if steps are left. steps: most steps of any rank, over all topologies.
    rows, once, never, again: rows of the data, rows that came once, never, and deliveries beyond the first.
    dropped, repeated: rows that drop_last leaves out, and rows that come a second time, as the plan announces.
    replayed: rows given after the state that a resume loaded, not counted above.
    behind: (rank, its steps) of each rank with fewer recorded steps than another rank, since the last resume, if the
        epoch stopped.
    """

    data: str
    epoch: int
    seed: int
    state: str
    topologies: tuple[str, ...]
    steps: int
    rows: int
    once: int
    never: int
    again: int
    dropped: int
    repeated: int
    replayed: int
    behind: tuple[tuple[int, int], ...]
    problems: tuple[str, ...]
    wrong: tuple[RowRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAudit:
    """Findings about a job. files, passes: numbers of records that were read."""

    files: int
    passes: int
    epochs: tuple[EpochAudit, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every row came as often as planned."""
        return not any(epoch.problems for epoch in self.epochs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Row groups of the data. inventory: Facts that plans depend on. starts: int64 [groups + 1], plan rows."""

    inventory: Inventory
    starts: Int64s

    @classmethod
    def load(cls, path: Path) -> "Groups":
        """Return the row groups that `write_groups` wrote.

        Raises:
            NoDataError: there is no such file. CorruptFileError: the file was damaged.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                paths = StringColumn(data=arrays["paths"], offsets=arrays["path_ends"])
                groups = GroupTable(**{name: arrays[f"group_{name}"] for name in GroupTable.__slots__})
        except FileNotFoundError as error:
            raise NoDataError(
                f"{path.parent} has records and no {path.name}, the row groups that the records count from. The first "
                "loader with this audit= wrote the file beside its records. Copy the whole folder of audit=."
            ) from error
        except (BadZipFile, KeyError, ValueError, EOFError, zlib.error) as error:
            raise CorruptFileError(
                f"{path} is damaged ({error}). Copy the folder of audit= again, or run an epoch with another folder."
            ) from error
        nothing = np.zeros(len(paths), np.int64)
        files = FileTable(
            paths=paths, sizes=nothing, identities=StringColumn.of([""] * len(paths)), formats=nothing.astype(np.uint8)
        )
        inventory = Inventory(files=files, groups=groups, schema=b"", source="")
        return cls(inventory=inventory, starts=RowSpace.of(groups).group_start)

    def _place(self, group: int) -> tuple[str, int]:
        """Return the path of a row group's file, and its number in the file."""
        files, groups = self.inventory.files, self.inventory.groups
        return files.paths[int(groups.file[group])], int(groups.ordinal[group])

    @property
    def num_rows(self) -> int:
        """Number of live rows."""
        return int(self.starts[-1])

    def group_of(self, row: int) -> int:
        """Return the row group of a plan row."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def has_checksum(self, first_row: int, checksum: int) -> bool:
        """Return whether the row group that begins at this plan row has this checksum, see `Origins.first_row`."""
        if not 0 <= first_row < self.num_rows:
            return False
        group = self.group_of(first_row)
        return int(self.starts[group]) == first_row and group_checksum(*self._place(group)) == checksum

    def ranges(self, start: int, stop: int, times: int) -> Iterator[RowRange]:
        """Yield the plan rows [start, stop) as rows of row groups."""
        while start < stop:
            group = self.group_of(start)
            begin, end = int(self.starts[group]), min(int(self.starts[group + 1]), stop)
            path, ordinal = self._place(group)
            yield RowRange(path=path, row_group=ordinal, start=start - begin, stop=end - begin, times=times)
            start = end


@dataclass(slots=True, kw_only=True, eq=False)
class SegmentFound:
    """Segment of an epoch: the steps of each rank that count. ends: for each rank the steps that it should have."""

    topology: Mapping[str, Any]
    given: dict[int, list[Given]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    is_closed: bool = False

    def cut(self, rank: int, first_step: int, by: int = 1, first: int = 0) -> int:
        """Take back a rank's steps from `first_step` on; return their rows."""
        pairs = [each.without(first_step, by, first) for each in self.given.get(rank, [])]
        self.given[rank] = [given for given, _ in pairs if len(given.runs)]
        return sum(gone for _, gone in pairs)

    def missing(self) -> Iterator[tuple[int, int, int]]:
        """Yield (rank, number of steps, first of them) for each rank that lacks steps."""
        for rank in range(self.topology["num_ranks"]):
            steps = [given.steps() for given in self.given.get(rank, [])]
            found = np.unique(np.concatenate([np.zeros(0, np.int64), *steps]))
            end = self.ends.get(rank, max(self.ends.values(), default=0))
            left = np.setdiff1d(np.arange(end), found)
            if len(left):
                yield rank, len(left), int(left[0])

    def steps_of(self, rank: int) -> int:
        """Return the number of a rank's steps that count."""
        return sum(len(given.steps()) for given in self.given.get(rank, []))


class EpochFound:
    """One epoch of one order: its segments, after all passes so far."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.segments: list[SegmentFound] = []
        self.replayed = 0
        self.last: Mapping[str, Any] = {}
        self.problems: dict[str, None] = {}

    def add(self, found: PassFound) -> None:
        """Take back what the pass's position leaves out, and add what the pass gave."""
        header = self.last = found.header
        rank, first_step, history = header["rank"], header["first_step"], header["history"]
        for number, entry in enumerate(history):
            segment = self._segment(number, entry["topology"])
            segment.is_closed = True
            steps = entry["steps"]
            for each in range(entry["topology"]["num_ranks"]):
                end = steps[each] if isinstance(steps, list) else steps
                self.replayed += segment.cut(each, end)
                segment.ends[each] = end
        segment = self._segment(len(history), header["topology"])
        segment.is_closed = False
        self._drop(len(history) + 1)
        worker = header["worker"]
        by, first = (1, 0) if worker is None else (header["topology"]["num_workers"], first_step)
        self.replayed += segment.cut(rank, first_step, by, first)
        segment.ends[rank] = header["num_steps"]
        segment.given.setdefault(rank, []).append(Given(of=found, runs=found.runs))
        for first_row, checksum in found.groups.tolist():
            if not self._groups.has_checksum(first_row, checksum):
                self.problems[
                    f"Rank {rank} read a row group for plan row {first_row:,} that is not the row group of this row."
                ] = None

    def _segment(self, number: int, topology: Mapping[str, Any]) -> SegmentFound:
        if number < len(self.segments) and self.segments[number].topology != topology:
            self._drop(number)
        while len(self.segments) <= number:
            self.segments.append(SegmentFound(topology=topology))
        return self.segments[number]

    def _drop(self, number: int) -> None:
        for segment in self.segments[number:]:
            self.replayed += sum(segment.cut(rank, 0) for rank in list(segment.given))
        del self.segments[number:]

    def audited(self, followed_by: int | None) -> EpochAudit:
        """Return the findings. followed_by: a later epoch to which the job went on; None for no such epoch."""
        order, epoch = self.last["order"], self.last["epoch"]
        problems, groups = list(self.problems), self._groups
        last, incomplete = self.segments[-1], False
        for segment in self.segments:
            for rank, count, first in segment.missing():
                if rank in segment.ends and not segment.is_closed:
                    incomplete = True
                else:
                    problems.append(
                        f"Rank {rank} of {segment.topology['num_ranks']} has no record of {plural(count, 'step')}, "
                        f"from step {first:,} on."
                    )
        if incomplete and followed_by is not None and not self.last["is_blended"]:
            problems.append(f"The job went on to epoch {followed_by} before the end of this epoch.")
        if order["rank_sharding"] == "rows" and len(set(last.ends.values())) > 1:
            problems.append(f"Ranks have different numbers of steps: {sorted(set(last.ends.values()))}.")
        windows, planner = Windows(order["seed"], epoch), make_planner(groups.inventory, order)
        spans: list[tuple[Int64s, Int64s]] = []
        for given in chain.from_iterable(chain.from_iterable(each.given.values()) for each in self.segments):
            spans += given_spans(given, windows, planner, problems)
        problems += dict.fromkeys(windows.problems)
        start, stop, times = _times(spans, groups.num_rows)
        length = stop - start
        never, again = int(length[times == 0].sum()), int((length * np.clip(times - 1, 0, None)).sum())
        dropped, repeated = int(self.last["dropped_rows"]), int(self.last["repeated_rows"])
        if (start < 0).any() or (stop > groups.num_rows).any():
            problems.append("Rows came that the data does not have.")
        if again > repeated or (not incomplete and again != repeated):
            problems.append(f"{plural(again, 'row')} came again; the plan repeats {repeated:,}.")
        if not incomplete and never != dropped:
            problems.append(f"{plural(never, 'row')} never came; the plan leaves out {dropped:,}.")
        is_wrong = (times > 1) | ((times == 0) & (not incomplete))
        counts = [last.steps_of(rank) for rank in range(last.topology["num_ranks"])] if incomplete else []
        wrong = [
            each
            for begin, end, count in np.stack([start, stop, times])[:, is_wrong].T[:_NAMED].tolist()
            for each in groups.ranges(max(begin, 0), min(end, groups.num_rows), count)
        ]
        return EpochAudit(
            data=self.last["fingerprint"],
            epoch=epoch,
            seed=order["seed"],
            state="stopped" if incomplete else "complete",
            topologies=tuple(_words(segment.topology) for segment in self.segments),
            steps=sum(max(map(segment.steps_of, segment.given), default=0) for segment in self.segments),
            rows=groups.num_rows,
            once=int(length[times == 1].sum()),
            never=never,
            again=again,
            dropped=dropped,
            repeated=repeated,
            replayed=self.replayed,
            behind=tuple((rank, count) for rank, count in enumerate(counts) if count < max(counts)),
            problems=tuple(problems),
            wrong=tuple(wrong[:_NAMED]),
        )


def _times(spans: Sequence[tuple[Int64s, Int64s]], num_rows: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return (start, stop, times) of neighbouring ranges of rows, and how often each came."""
    start = np.concatenate([np.zeros(0, np.int64), *(start for start, _ in spans)])
    stop = np.concatenate([np.zeros(0, np.int64), *(stop for _, stop in spans)])
    edges = np.unique(np.concatenate([start, stop, [0, num_rows]]))
    depth = np.zeros(len(edges), dtype=np.int64)
    np.add.at(depth, np.searchsorted(edges, start), 1)
    np.add.at(depth, np.searchsorted(edges, stop), -1)
    return edges[:-1], edges[1:], np.cumsum(depth)[:-1]


def audit_job(folder: Path) -> JobAudit:
    """Compare all records in a folder with the data.

    Raises:
        NoDataError: the folder has no records, or lacks the row groups of their data. CorruptFileError: a file of the
            folder changed since it was written.
    """
    files = sorted(folder.glob("*.audit"))
    if not files:
        raise NoDataError(f"{folder} has no records. Pass the folder that audit= of the loaders named.")
    passes = sorted(chain.from_iterable(map(read_audit, files)), key=lambda found: found.header["time_ns"])
    epochs: dict[tuple[str, str, int], EpochFound] = {}
    groups: dict[str, Groups] = {}
    for found in passes:
        data = found.header["fingerprint"]
        if data not in groups:
            groups[data] = Groups.load(folder / f"rows-{data}.npz")
        key = data, dumps(found.header["order"], sort_keys=True), found.header["epoch"]
        epochs.setdefault(key, EpochFound(groups[data])).add(found)
    return JobAudit(
        files=len(files),
        passes=len(passes),
        epochs=tuple(found.audited(_next_epoch(found, list(epochs.values()))) for found in epochs.values()),
    )


def _next_epoch(left: EpochFound, epochs: Sequence[EpochFound]) -> int | None:
    """Return the first epoch of the same order that was begun after the last pass of an earlier epoch."""
    later = [
        found.last["epoch"]
        for found in epochs
        if found.last["order"] == left.last["order"]
        and found.last["epoch"] > left.last["epoch"]
        and found.last["time_ns"] > left.last["time_ns"]
    ]
    return min(later, default=None)


def _words(topology: Mapping[str, Any]) -> str:
    ranks, workers = plural(topology["num_ranks"], "rank"), plural(topology["num_workers"], "worker")
    return f"{ranks} × {workers}, batch {topology['batch_size']:,}"
