"""Cut lanes into windows, whose rows are permuted together; the default size of windows, and the memory they need."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.units import RowSpace, Units, Windows

Piece = tuple[int, int]

# Rows that a default window takes of each open chunk: 2 MiB, so that a window of 16 chunks has 32 MiB. Smaller windows
# take more processor time (many short copies), and the columns of larger ones do not fit into a core's cache.
_BYTES_OF_CHUNK = 2 << 20
_MOST_ROWS_OF_CHUNK = 1 << 14

# Windows of a lane in memory: the trainer's window, and two that are gathered ahead (stream/lane.py).
_WINDOWS_HELD = 3


def size_windows(options: PlanOptions, space: RowSpace) -> PlanOptions:
    """Return the options with the default size of windows, where it is asked for.

    A window takes the same number of rows of each of `interleave` chunks: rows of 2 MiB, at most 16,384. Without row
    counts a window has whole row groups: at least `interleave`. The size depends on data and options, never on ranks,
    workers or the host.

        interleave=16, rows of 200 bytes      10,485 rows of each chunk, windows of 167,760 rows
    """
    if not options.default_windows:
        return options
    if space.exact:
        row_bytes = max(1, int(space.byte_start[-1]) // max(1, space.num_rows))
        rows = min(max(1, _BYTES_OF_CHUNK // row_bytes), _MOST_ROWS_OF_CHUNK)
    else:
        rows = max(1, int(np.diff(space.group_start).max(initial=0)))
    return replace(options, shuffle_rows=options.interleave * rows)


def held_bytes(options: PlanOptions, space: RowSpace, topology: Topology, row_bytes: int) -> tuple[int, int]:
    """Return the decoded bytes of a worker's open row groups, and of its windows; both 0 if rows are not shuffled.

    options: with the size of windows. row_bytes: decoded bytes of a row, 0 if not known.
    """
    window_rows = options.window_rows(topology.batch_size)
    if window_rows is None or space.num_rows == 0:
        return 0, 0
    group_rows, workers = np.diff(space.group_start), topology.num_ranks * topology.num_workers
    group_bytes = np.maximum(np.diff(space.byte_start), group_rows * row_bytes)
    largest, total = int(group_bytes.max()), int(group_bytes.sum())
    lanes = -(-(options.num_lanes or 1) // workers)
    window = window_rows * total // space.num_rows
    share = total // workers + largest
    return min(lanes * (options.interleave * largest + window), share), min(lanes * _WINDOWS_HELD * window, share)


def shuffle_windows(lane: Units, options: PlanOptions, batch_rows: int) -> Units:
    """Cut the lane into windows if the options shuffle rows; else return the lane. batch_rows: rows of a batch."""
    window_rows = options.window_rows(batch_rows)
    return lane if window_rows is None else cut_windows(lane, window_rows, options.interleave)


def cut_windows(lane: Units, window_rows: int, interleave: int) -> Units:
    """Return the lane's rows as window units, in reading order.

    `interleave` plain units of the lane are open at once. A window takes equally many of its `window_rows` rows from
    each open unit. The next unit replaces a unit that runs out, so all windows except the last are full.

        window_rows=4, interleave=2, units a (6 rows) and b (3 rows)
        a1 a2 b1 b2 | a3 a4 b3 a5 | a6
    """
    return _as_units(list(_take_windows(lane, window_rows, interleave)), permuted=True)


def group_windows(lane: Units, group_start: Int64s, window_rows: int | None, interleave: int) -> Units:
    """Return the lane's rows as windows of whole row groups, for plans without row counts.

    Without `window_rows` each row group is a window of its own, in the lane's order and not permuted. With
    `window_rows`, a window takes row groups from `interleave` open units in rotation until it has that many rows.
    """
    units = [_groups_of(start, stop, group_start) for start, stop in zip(lane.start, lane.stop, strict=True)]
    if window_rows is None:
        return _as_units([[group] for groups in units for group in groups], permuted=False)
    return _as_units(list(_take_groups(deque(units), window_rows, interleave)), permuted=True)


def _groups_of(start: int, stop: int, group_start: Int64s) -> deque[Piece]:
    first, last = np.searchsorted(group_start, [start, stop], side="left").tolist()
    borders = group_start[first : last + 1].tolist()
    return deque((a, b) for a, b in pairwise(borders) if b > a)


def _take_groups(waiting: deque[deque[Piece]], window_rows: int, interleave: int) -> Iterator[list[Piece]]:
    opened: deque[deque[Piece]] = deque()
    while waiting or opened:
        pieces: list[Piece] = []
        missing = window_rows
        while missing > 0 and (waiting or opened):
            while waiting and len(opened) < interleave:
                opened.append(waiting.popleft())
            groups = opened.popleft()
            pieces.append(groups.popleft())
            missing -= pieces[-1][1] - pieces[-1][0]
            if groups:
                opened.append(groups)
        yield pieces


def _as_units(windows: list[list[Piece]], *, permuted: bool) -> Units:
    lengths = [len(pieces) for pieces in windows]
    flat = np.array([piece for pieces in windows for piece in pieces], dtype=np.int64).reshape(-1, 2)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.add.reduceat(flat[:, 1] - flat[:, 0], offsets[:-1]) if windows else np.zeros(0, dtype=np.int64)
    return Units(
        start=np.zeros(len(windows), dtype=np.int64),
        stop=rows,
        window=np.arange(len(windows), dtype=np.int64),
        windows=Windows(
            piece_start=flat[:, 0].copy(), piece_stop=flat[:, 1].copy(), offsets=offsets, permuted=permuted
        ),
    )


def _take_windows(lane: Units, window_rows: int, interleave: int) -> Iterator[list[Piece]]:
    waiting = deque(zip(lane.start.tolist(), lane.stop.tolist(), strict=True))
    opened: list[Piece] = []
    while waiting or opened:
        pieces: list[Piece] = []
        missing = window_rows
        while missing and (waiting or opened):
            while waiting and len(opened) < interleave:
                opened.append(waiting.popleft())
            missing = _take_round(opened, pieces, missing)
        yield _merge_neighbours(pieces)


def _take_round(opened: list[Piece], pieces: list[Piece], missing: int) -> int:
    """Take equally many rows from each open unit. Return the number of rows that the window still needs."""
    most = -(-missing // len(opened))
    for index, (start, stop) in enumerate(opened):
        taken = min(most, missing, stop - start)
        if taken:
            pieces.append((start, start + taken))
            opened[index] = (start + taken, stop)
            missing -= taken
    opened[:] = [(start, stop) for start, stop in opened if stop > start]
    return missing


def _merge_neighbours(pieces: list[Piece]) -> list[Piece]:
    """Merge ranges where one range begins at the end of an earlier range; the result has the earlier range's place.

    (0, 2) (6, 8) (2, 3)      (0, 3) (6, 8)
    """
    merged: list[Piece] = []
    ending: dict[int, int] = {}
    for start, stop in pieces:
        place = ending.pop(start, None)
        if place is None:
            ending[stop] = len(merged)
            merged.append((start, stop))
        else:
            merged[place] = (merged[place][0], stop)
            ending[stop] = place
    return merged
