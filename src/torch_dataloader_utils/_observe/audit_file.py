"""The record of an audit: which rows each step gave, in files that only grow.

    rows-<fingerprint>.npz                      paths and row groups of the data
    <fingerprint>-rank<r>-<time>-<n>.audit      frames of one process: its passes, and the rows of each step
    <fingerprint>-rank<r>-<time>-<n>.last       the last runs of this process, which are in no frame yet

An audit file begins with a line that names its format. Frames follow:

    length (uint32)  kind (1 byte)  body  digest (8 bytes)

The digest is blake2b of kind and body, keyed by the digest before, so it holds the order of all frames too. Bodies are
JSON (P) or compressed int64:

    P    header of a pass
    R    runs, column by column: pass, step, steps, source, first, rows: `steps` steps, num_workers apart, gave the next
         `rows` rows each. A source is PLAN_ROWS or the number of a window.
    W    windows: number, rows, checksum of the order, first row of the order, inputs, rows of the order kept; then
         (source, first, rows) of each input, and the order if it is kept
    G    row groups that were read: pass, plan row of the first row, CRC of path and ordinal

The file of last runs is shared memory, so a step is recorded by a few stores before its batch is given, and the death
of the process loses nothing. It has the number of R frames, the number of runs, and the runs row by row. After a death
between a frame and its count, the runs are in both, and the counts of frames differ. A death may cut the last frame.
"""

import json
import mmap
import os
import secrets
import struct
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import GroupTable, Int64s, Inventory
from torch_dataloader_utils._runtime.publish import write_atomically
from torch_dataloader_utils.errors import CorruptFileError, StoreError

PLAN_ROWS = 0
"""Source of rows that were not gathered: plan rows."""

_MAGIC = b"epochplan audit 1\n"
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 8
_RUN_NUMBERS = 6
_MOST_RUNS = 1024
_WINDOW_NUMBERS = 6

Span = tuple[int, int, int]
"""(source, first, count): rows [first, first + count) of a source."""

Run = tuple[int, int, int, int, int, int]
"""(pass, step, steps, source, first, rows)."""


class BatchOrigin(NamedTuple):
    """Rows of a batch, in order; the windows among them that are new; and the row groups read since, with checksums."""

    spans: Sequence[Span] = ()
    windows: Sequence[tuple[int, ...]] = ()
    groups: Sequence[tuple[int, int]] = ()


def group_checksum(path: str, ordinal: int) -> int:
    """Return a checksum of the place of a row group: its file, and its number in the file."""
    return zlib.crc32(b"%d" % ordinal, zlib.crc32(path.encode()))


def order_checksum(order: Int64s) -> int:
    """Return a checksum of an order: a sum that differs if two rows change places. Overflows wrap around."""
    return int(np.dot(order, _places(len(order))))


@lru_cache(maxsize=4)
def _places(count: int) -> Int64s:
    return np.arange(1, count + 1, dtype=np.int64)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path}: cannot write the audit ({error}). Free space, or choose another folder in audit=."
        ) from error


def _packed(values: npt.ArrayLike) -> bytes:
    return zlib.compress(np.asarray(values, dtype="<i8").tobytes(), 1)


class AuditFile:
    """File to which one process appends, and the file of its last runs. Both are made with the first frame.

    num_flushed: number of times that the last runs were appended as a frame.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}-{time.time_ns()}-{secrets.token_hex(4)}.audit"
        self._digest = b""
        self._descriptor: int | None = None
        self._last = np.zeros(0, dtype="<i8")
        self._runs = self._last.reshape(0, _RUN_NUMBERS)
        self._numbers = memoryview(b"")
        self._num_runs = self.num_flushed = 0
        self._groups: list[tuple[int, int, int]] = []

    def begin_pass(self, header: Mapping[str, Any]) -> None:
        """Append the header of a pass."""
        self._append(b"P", json.dumps(header, separators=(",", ":")).encode())

    def add_windows(self, windows: Sequence[Sequence[int]]) -> None:
        """Append windows, before the first run that names them."""
        self._append(b"W", _packed([value for window in windows for value in window]))

    def add_groups(self, of_pass: int, groups: Iterable[tuple[int, int]]) -> None:
        """Keep the checksums of row groups that were read, and append many of them at once."""
        self._groups += ((of_pass, first_row, checksum) for first_row, checksum in groups)
        if len(self._groups) > _MOST_RUNS:
            self._flush_groups()

    def add_run(self, run: Run) -> int:
        """Add a run, and return its place, which `extend` takes."""
        if self._num_runs == _MOST_RUNS:
            self.flush()
        place = self._num_runs
        self._runs[place] = run
        # Counted after it is complete: this process may be killed at any moment.
        self._num_runs = self._last[1] = place + 1
        return place

    def extend(self, place: int, steps: int) -> None:
        """Set the number of steps of a run that was added since the last `flush`."""
        self._numbers[2 + place * _RUN_NUMBERS + 2] = steps

    def flush(self) -> None:
        """Append the last runs as a frame."""
        if self._groups:
            self._flush_groups()
        if self._num_runs:
            self._append(b"R", _packed(self._runs[: self._num_runs].T.ravel()))
            self._num_runs = self._last[1] = 0
            self._last[0] += 1
            self.num_flushed += 1

    def _flush_groups(self) -> None:
        self._append(b"G", _packed([*chain(*self._groups)]))
        self._groups.clear()

    def _append(self, kind: bytes, body: bytes) -> None:
        """Append one frame by one write, which the end of this process does not undo.

        Raises:
            StoreError: the file cannot be written.
        """
        self._digest = blake2b(kind + body, key=self._digest, digest_size=_DIGEST_BYTES).digest()
        frame = b"".join((_LENGTH.pack(len(body)), kind, body, self._digest))
        with _writing(self._path):
            if self._descriptor is None:
                self._make()
                frame = _MAGIC + frame
            rest = memoryview(frame)
            while rest:
                rest = rest[os.write(cast("int", self._descriptor), rest) :]

    def _make(self) -> None:
        flags = os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        num_bytes = 8 * (2 + _RUN_NUMBERS * _MOST_RUNS)
        last = os.open(last_runs_path(self._path), flags | os.O_RDWR, 0o666)
        try:
            os.truncate(last, num_bytes)
            memory = mmap.mmap(last, num_bytes)
        finally:
            os.close(last)
        self._last = np.frombuffer(memory, dtype="<i8")
        self._runs = self._last[2:].reshape(_MOST_RUNS, _RUN_NUMBERS)
        self._numbers = memoryview(memory).cast("q")
        self._descriptor = os.open(self._path, flags | os.O_WRONLY, 0o666)
        weakref.finalize(self, os.close, self._descriptor)


class _LastRun:
    """Last run of a worker. next_step, source, next_first, rows: the step and its rows that continue the run."""

    __slots__ = ("next_first", "next_step", "num_flushed", "place", "rows", "source", "steps")

    def __init__(self, place: int, num_flushed: int, next_step: int, source: int, next_first: int, rows: int) -> None:
        self.place, self.num_flushed, self.steps = place, num_flushed, 1
        self.next_step, self.source, self.next_first, self.rows = next_step, source, next_first, rows


class PassRecord:
    """Record of the rows that one pass gives.

    number: number of the pass in its file. first_step: step of the pass's first batch. step_by: steps from one batch to
    the next. first_worker: worker of the first batch. num_workers: workers of the rank.
    """

    def __init__(
        self, file: AuditFile, number: int, *, first_step: int, step_by: int, first_worker: int, num_workers: int
    ) -> None:
        self._file = file
        self._number = number
        self._next_step, self._step_by = first_step, step_by
        self._num_workers = num_workers
        self._next_of_worker = {(first_worker + turn) % num_workers: first_step + turn for turn in range(num_workers)}
        self._last_runs: dict[int, _LastRun] = {}

    def given(self, worker: int, origin: BatchOrigin, *, in_order: bool) -> None:
        """Record that the next batch of a worker is given. in_order: false if a batch of an earlier step may follow."""
        if in_order:
            step = self._next_step
            self._next_step += self._step_by
        else:
            step = self._next_of_worker[worker]
            self._next_of_worker[worker] += self._num_workers
        spans, windows, groups = origin
        file = self._file
        if windows:
            file.add_windows(windows)
        if groups:
            file.add_groups(self._number, groups)
        for source, first, rows in spans:
            run = self._last_runs.get(worker)
            if (
                run is not None
                and run.next_first == first
                and run.next_step == step
                and run.rows == rows
                and run.source == source
                and run.num_flushed == file.num_flushed
            ):
                run.steps += 1
                file.extend(run.place, run.steps)
                run.next_first += rows
                run.next_step += self._num_workers
            else:
                place = file.add_run((self._number, step, 1, source, first, rows))
                self._last_runs[worker] = _LastRun(
                    place, file.num_flushed, step + self._num_workers, source, first + rows, rows
                )

    def end(self) -> None:
        """Append the runs of this pass."""
        self._file.flush()


class AuditRecorder:
    """Recorder of all passes of one data set in one process. Copies in other processes write files of their own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._process = 0
        self._file: AuditFile | None = None
        self._passes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return AuditRecorder, (self._folder,)

    def begin(self, inventory: Inventory, header: Mapping[str, Any], *, step_by: int, first_worker: int) -> PassRecord:
        """Write the header of a pass, and return its record. `cli/job_audit.py` reads the header.

        Raises:
            StoreError: the folder cannot be written.
        """
        folder, data = Path(self._folder), header["fingerprint"]
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_groups(folder / f"rows-{data}.npz", inventory)
        if self._file is None or self._process != os.getpid():
            self._file = AuditFile(folder, f"{data}-rank{header['rank']}")
            self._process, self._passes = os.getpid(), 0
        self._passes += 1
        self._file.begin_pass({**header, "pass": self._passes, "time_ns": time.time_ns()})
        return PassRecord(
            self._file,
            self._passes,
            first_step=header["first_step"],
            step_by=step_by,
            first_worker=first_worker,
            num_workers=header["topology"]["num_workers"],
        )


def last_runs_path(path: Path) -> Path:
    """Return the path of the last runs of an audit file."""
    return path.with_suffix(".last")


def write_groups(path: Path, inventory: Inventory) -> None:
    """Write the row groups of the data, unless the file is there."""
    if path.exists():
        return
    groups, paths = inventory.groups, inventory.files.paths
    with write_atomically(path) as file:
        np.savez_compressed(
            file,
            paths=paths.data,
            path_ends=paths.offsets,
            **{f"group_{name}": getattr(groups, name) for name in GroupTable.__slots__},
        )


@dataclass(slots=True, kw_only=True, eq=False)
class PassFound:
    """Pass of an audit file.

    runs: int64 [runs, 5]: step, steps, source, first, rows. groups: int64 [groups, 2]: first row, CRC. windows: windows
    of all passes of the file, by number; see the module.
    """

    header: Mapping[str, Any]
    runs: Int64s
    windows: Mapping[int, Int64s]
    groups: Int64s


def read_audit(path: Path) -> list[PassFound]:
    """Return the passes of an audit file.

    Raises:
        CorruptFileError: the file is not an audit file, or a byte of it changed.
    """
    frames = list(_frames(path))
    numbers = {
        kind: [
            np.frombuffer(zlib.decompress(body), dtype="<i8").astype(np.int64) for each, body in frames if each == kind
        ]
        for kind in (b"R", b"W", b"G")
    }
    runs = np.concatenate(
        [_last_runs(path, len(numbers[b"R"])), *(each.reshape(_RUN_NUMBERS, -1).T for each in numbers[b"R"])]
    )
    windows: dict[int, Int64s] = {}
    for each in numbers[b"W"]:
        at = 0
        while at < len(each):
            stop = at + _WINDOW_NUMBERS + 3 * int(each[at + 4]) + int(each[at + 5])
            windows[int(each[at])] = each[at:stop]
            at = stop
    groups = np.concatenate([np.zeros(0, dtype=np.int64), *numbers[b"G"]]).reshape(-1, 3)
    return [
        PassFound(
            header=header,
            runs=runs[runs[:, 0] == header["pass"], 1:],
            windows=windows,
            groups=groups[groups[:, 0] == header["pass"], 1:],
        )
        for header in (json.loads(body) for kind, body in frames if kind == b"P")
    ]


def _last_runs(path: Path, num_frames: int) -> Int64s:
    last = last_runs_path(path)
    numbers = np.fromfile(last, dtype="<i8").astype(np.int64) if last.exists() else np.zeros(2, dtype=np.int64)
    count = int(numbers[1]) if len(numbers) > 1 and numbers[0] == num_frames else 0
    return numbers[2 : 2 + count * _RUN_NUMBERS].reshape(-1, _RUN_NUMBERS)


def _frames(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, body) of all frames. An incomplete last frame ends the file."""
    data = path.read_bytes()
    if not data.startswith(_MAGIC[: len(data)]):
        raise CorruptFileError(f"{path} is not a file of an audit. Pass the folder that audit= named.")
    at, digest = len(_MAGIC), b""
    while at + _LENGTH.size < len(data):
        stop = at + _LENGTH.size + 1 + _LENGTH.unpack_from(data, at)[0]
        if stop + _DIGEST_BYTES > len(data):
            return
        frame = data[at + _LENGTH.size : stop]
        digest = blake2b(frame, key=digest, digest_size=_DIGEST_BYTES).digest()
        at = stop + _DIGEST_BYTES
        if data[stop:at] != digest:
            raise CorruptFileError(f"{path}: the frame before byte {at:,} changed since it was written.")
        yield frame[:1], frame[1:]
