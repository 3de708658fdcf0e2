"""The log in a state: the topologies of an epoch and the batches received under each, as columns of JSON values.

    {"earlier": "", "num_ranks": [8, 6], "num_workers": [4, 4], "batch_size": [1024, 1024], "drop_last": [false, false],
     "steps": [1200, 310], "cursors": []}

The log has columns so that the keys of a state are always the same and its values plain: torch.distributed.checkpoint
needs both to load one state into the place of another.

Steps are null where all steps were taken. If the steps of the last entry are null, the log belongs to the epoch before
the state's epoch. Steps may be one number a rank: in [2, null, 1], rank 1 has finished before the others.

Of more than eight topologies all but the last are in `earlier`, as text of `packed_numbers`. The columns of that text
are the number of topologies, their ranks, workers, batch sizes, drop_last and steps, and, where ranks differ, the steps
of each rank. Written out, a topology takes about 20 characters. A state of 200 topologies has room for three characters
each in 1 kB, fewer than any separators leave.

Cursors are not packed: one cursor for each worker of each rank is far more than 1 kB holds.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.packed_numbers import PackedColumns, packed
from torch_dataloader_utils._core.position import RankCursors, Segment
from torch_dataloader_utils._core.sealed_state import MOST_COUNT, is_count, is_list

_TOPOLOGY = ("num_ranks", "num_workers", "batch_size", "drop_last")
_COLUMNS = (*_TOPOLOGY, "steps")
_KEYS = {"earlier", *_COLUMNS, "cursors"}

# More topologies than _MOST_WRITTEN are packed, but at most _MOST_PACKED numbers: packing takes quadratic time.
_MOST_WRITTEN = 8
_MOST_PACKED = 1 << 12
# Characters of a packed number: 64 bits, and the announcement of a new number.
_MOST_CHARACTERS = 16

# Plans take memory for each worker of each rank of a log; no job has a million workers.
_MOST_WORKERS = 1 << 20

# Packed steps: null, one number for each rank, or a number n as _FIRST + n.
_ALL, _EACH, _FIRST = range(3)

Entry = tuple[Any, ...]
"""Values of _COLUMNS of one topology."""


def encode_log(segments: Sequence[Segment]) -> dict[str, Any]:
    """Return the log as a new JSON-able dict."""
    entries = [_entry(segment) for segment in segments]
    num_packed = _num_packed(entries)
    written = [[list(value) if isinstance(value, tuple) else value for value in each] for each in entries[num_packed:]]
    return {
        "earlier": _packed(tuple(entries[:num_packed])),
        **{name: [each[place] for each in written] for place, name in enumerate(_COLUMNS)},
        "cursors": _encode_cursors(segments),
    }


def decode_log(log: Mapping[str, Any], worker: int | None = None) -> tuple[Segment, ...]:
    """Return the segments of a log, also of version 2. worker: Worker of the state, see `encode_state`."""
    entries = [*_unpacked(log.get("earlier", "")), *_written(log)]
    cursors = log["cursors"] or [()] * len(entries)
    return tuple(_segment(entry, of_ranks, worker) for entry, of_ranks in zip(entries, cursors, strict=True))


def log_findings(log: Any) -> Iterator[tuple[str, object, bool]]:
    """Yield, for `refuse_misfits`, whether each value of a log is a value that `encode_log` writes."""
    yield "log", log, isinstance(log, Mapping) and {"earlier", *log} == _KEYS
    earlier = log.get("earlier", "")
    yield "log", log, all(is_list(log[name]) for name in (*_COLUMNS, "cursors"))
    yield "log", log, all(len(log[one]) == len(log[other]) for one, other in pairwise(_COLUMNS))
    yield "earlier", earlier, isinstance(earlier, str) and _is_packed(earlier)
    entries = [*_unpacked(earlier), *_written(log)]
    yield "log", log, len(log["cursors"]) in (0, len(entries))
    for num_ranks, num_workers, batch_size, drop_last, steps in entries:
        yield "num_ranks", num_ranks, is_count(num_ranks, 1) and num_ranks <= _MOST_WORKERS
        yield "num_workers", num_workers, is_count(num_workers, 1) and num_ranks * num_workers <= _MOST_WORKERS
        yield "batch_size", batch_size, is_count(batch_size, 1)
        yield "drop_last", drop_last, isinstance(drop_last, bool)
        yield "steps", steps, _are_steps(steps if is_list(steps, num_ranks) else [steps])
    for entry, of_ranks in zip(entries, log["cursors"], strict=False):
        yield "cursors", of_ranks, is_list(of_ranks) and all(_are_cursors(each, *entry[:2]) for each in of_ranks)


def _are_steps(values: Sequence[Any]) -> bool:
    """Return whether each value is a count or None; fast, because a job has one value for each rank."""
    counts = [value for value in values if value is not None]
    if set(map(type, counts)) <= {int}:
        return not counts or (min(counts) >= 0 and max(counts) <= MOST_COUNT)
    return all(map(is_count, counts))


def _are_cursors(value: Any, num_ranks: int, num_workers: int) -> bool:
    """Return whether the value is [rank, [[units, rows], one a worker], next worker]; version 2 has no next worker."""
    if not is_list(value) or len(value) not in (2, 3):
        return False
    rank, of_workers, *next_worker = value
    if not all(is_count(each) for each in (rank, *next_worker)) or rank >= num_ranks:
        return False
    has_worker = all(each < num_workers for each in next_worker)
    return has_worker and is_list(of_workers, num_workers) and all(map(_is_cursor, of_workers))


def _is_cursor(value: Any) -> bool:
    return is_list(value, 2) and all(map(is_count, value))


def _written(log: Mapping[str, object]) -> Iterator[Entry]:
    return zip(*(log[name] for name in _COLUMNS), strict=True)


def _entry(segment: Segment) -> Entry:
    return (*(getattr(segment.topology, name) for name in _TOPOLOGY), segment.steps)


def _segment(entry: Entry, cursors: Sequence[Any], worker: int | None) -> Segment:
    steps = entry[-1] if entry[-1] is None or isinstance(entry[-1], int) else tuple(entry[-1])
    return Segment(
        topology=Topology(**dict(zip(_TOPOLOGY, entry, strict=False))),
        steps=steps,
        cursors=tuple((each[0], _decode_cursors(*each, steps=steps, worker=worker)) for each in cursors) or None,
    )


def _encode_cursors(segments: Sequence[Segment]) -> list[Any]:
    """Return for each segment a list of [rank, [[units, rows], ...], next worker]; [] if no segment has cursors."""
    if all(segment.cursors is None for segment in segments):
        return []
    return [
        [[rank, [list(c) for c in each.workers], each.next_worker] for rank, each in segment.cursors or ()]
        for segment in segments
    ]


def _decode_cursors(
    rank: int, of_workers: Sequence[Any], next_worker: int | None = None, *, steps: Any, worker: int | None
) -> RankCursors:
    """Return the cursors of one rank. Version 2 lacks the next worker; the steps give it, while no worker has ended."""
    if next_worker is None:
        done = steps[rank] if isinstance(steps, tuple) else steps
        next_worker = ((done or 0) if worker is None else worker) % len(of_workers)
    return RankCursors(workers=tuple((units, rows) for units, rows in of_workers), next_worker=next_worker)


def _num_packed(entries: Sequence[Entry]) -> int:
    """Return the number of entries that are packed, the oldest entries."""
    if len(entries) <= _MOST_WRITTEN:
        return 0
    numbers = accumulate(len(entry) + (len(entry[-1]) if isinstance(entry[-1], tuple) else 0) for entry in entries)
    return min(len(entries) - 1, bisect_right(list(numbers), _MOST_PACKED))


# A log changes only when a state is loaded; states may be taken after every step, and all ranks have the same log.
@lru_cache(maxsize=8)
def _packed(entries: tuple[Entry, ...]) -> str:
    if not entries:
        return ""
    *topologies, steps = zip(*entries, strict=True)
    kinds = [_ALL if each is None else _EACH if isinstance(each, tuple) else _FIRST + each for each in steps]
    of_ranks = [0 if each is None else each + 1 for listed in steps if isinstance(listed, tuple) for each in listed]
    return packed([[len(entries)], *topologies, kinds, of_ranks])


@lru_cache(maxsize=8)
def _unpacked(earlier: str) -> tuple[Entry, ...]:
    """Return the entries that `_packed` was called with.

    Raises:
        ValueError: no entries give this text.
    """
    if not earlier:
        return ()
    if len(earlier) > _MOST_CHARACTERS * _MOST_PACKED:
        raise ValueError(f"{len(earlier)} characters")
    columns = PackedColumns(earlier)
    (length,) = columns.column(1)
    if not 0 < length <= _MOST_PACKED:
        raise ValueError(f"{length} topologies")
    num_ranks, num_workers, batch_size, drop_last, kinds = (columns.column(length) for _ in _COLUMNS)
    listed = [ranks for ranks, kind in zip(num_ranks, kinds, strict=True) if kind == _EACH]
    if sum(listed) > _MOST_PACKED:
        raise ValueError(f"steps of {sum(listed)} ranks")
    of_ranks = iter([None if each == 0 else each - 1 for each in columns.column(sum(listed))])
    if not columns.is_read or max(drop_last) > 1:
        raise ValueError("more than one log")
    steps = [
        None if kind == _ALL else tuple(next(of_ranks) for _ in range(ranks)) if kind == _EACH else kind - _FIRST
        for ranks, kind in zip(num_ranks, kinds, strict=True)
    ]
    return tuple(zip(num_ranks, num_workers, batch_size, map(bool, drop_last), steps, strict=True))


def _is_packed(earlier: str) -> bool:
    try:
        _unpacked(earlier)
    except ValueError:
        return False
    return True
