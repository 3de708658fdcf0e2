"""Which source gives what in every step of a blend: the greatest-error rule, run on from any counts, until it stops.

    shares 1/2 1/4 1/4      picks 0 1 2 0 0 1 2 0 ...      per="sample", 4 rows a step: (2, 1, 1), (2, 1, 1), ...

Pure arithmetic on counts; the same on every rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.blending.options import BlendOptions
from torch_dataloader_utils.blending.rows import Rows, mix_rows, num_bytes, num_rows
from torch_dataloader_utils.tokens.blend_index import BlendRule, continue_blend, normalize_weights

# Picks made at once: 5 to 10 ms of numpy, 128 KiB.
_BLOCK_PICKS = 1 << 16
_SEGMENTS = 256

Picks = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendStart:
    """Where a schedule goes on. All int64 of shape [sources], in units: batches, or rows with per="sample".

    counts: taken since the epoch began; what the rule looks at.
    least_left, most_left: what is left of the pass that the source stands in at the start, on the rank with least and
        with most of it; 0 in `most_left` for a source that has been exhausted before.
    steps: steps taken since the epoch began.
    """

    counts: Int64s
    least_left: Int64s
    most_left: Int64s
    steps: int


def blend_steps(options: BlendOptions, start: BlendStart) -> Iterator[Int64s]:
    """For every step the units that each source gives, int64 [sources]."""
    num_sources, rows = len(start.counts), options.batch_rows
    amounts, missing = np.zeros(num_sources, dtype=np.int64), rows
    for picks in _blocks(options, start):
        first = 0
        while first < len(picks):
            part = picks[first : first + missing]
            amounts = amounts + np.bincount(part, minlength=num_sources)
            first, missing = first + len(part), missing - len(part)
            if missing == 0:
                yield amounts
                amounts, missing = np.zeros(num_sources, dtype=np.int64), rows
    if missing < rows and not options.drop_last:
        yield amounts


def count_steps(options: BlendOptions, start: BlendStart) -> int:
    """How many steps `blend_steps` gives."""
    if isinstance(options.stop, int):
        return max(0, options.stop - start.steps)
    whole, rest = divmod(sum(map(len, _blocks(options, start))), options.batch_rows)
    return whole + (rest > 0 and not options.drop_last)


def _blocks(options: BlendOptions, start: BlendStart) -> Iterator[Picks]:
    """All picks until the blend stops; a block knows nothing of steps, so that large batches make no large blocks."""
    rule = BlendRule(shares=np.array(normalize_weights(options.weights)), limits=None)
    until = _until_first_exhausted if options.stop == "first_exhausted" else _until_all_exhausted
    counts = start.counts.astype(np.float64)
    taken = np.zeros_like(start.counts)
    left = max(0, options.stop - start.steps) * options.batch_rows if isinstance(options.stop, int) else None
    while left is None or left > 0:
        count = _BLOCK_PICKS if left is None else min(_BLOCK_PICKS, left)
        picks = continue_blend(rule, counts, count, segment_limit=_SEGMENTS)
        if left is None:
            left = until(options, start, taken, picks)
        if left is not None:
            picks = picks[:left]
            left -= len(picks)
        yield picks
        made = np.bincount(picks, minlength=len(counts))
        counts += made
        taken += made


def _until_first_exhausted(_: BlendOptions, start: BlendStart, taken: Int64s, picks: Picks) -> int | None:
    """How many picks remain until a source would give what it has not; None where it is more than these."""
    left = start.least_left - taken
    reached = [_place(picks, source, int(left[source])) for source in range(len(left))]
    return min((place for place in reached if place is not None), default=None)


def _until_all_exhausted(options: BlendOptions, start: BlendStart, taken: Int64s, picks: Picks) -> int | None:
    """How many picks remain until every source has given all; None where these do not tell.

    They may be more than these: the last step is filled up by going on.
    """
    left = start.most_left - taken
    reached = [_place(picks, source, int(left[source]) - 1) for source in np.flatnonzero(left > 0).tolist()]
    if None in reached:
        return None
    made, last = int(taken.sum()), max((place for place in reached if place is not None), default=-1)
    return -(-(made + last + 1) // options.batch_rows) * options.batch_rows - made


def _place(picks: Picks, source: int, number: int) -> int | None:
    """Where pick `number` (from 0) of a source stands in the block, None if it is not in it."""
    places = np.flatnonzero(picks == source)
    return int(places[number]) if number < len(places) else None


# Steps whose rows are joined and cut together, so many or bytes of them: 51 columns of 1,024 rows, in the cache, take
# 110 us a batch so, and 220 us one batch at a time.
_MOST_STEPS = 8
_MOST_BYTES = 4 << 20


class Step(NamedTuple):
    """amounts: units that each source gives, int64 [sources]. is_last: whether the epoch ends with it."""

    amounts: Int64s
    is_last: bool


class RowStream:
    """The batches of one source without end, whole or row by row."""

    def __init__(self, batches: Iterator[tuple[int, Any]]) -> None:
        """`batches` are pairs: rows to skip, batch."""
        self._batches = batches
        self._batch: Any = None
        self._start = self._stop = 0

    def next_batch(self) -> Any:
        """The next batch as the source gives it."""
        return next(self._batches)[1]

    def take(self, rows: int) -> Iterator[Rows]:
        """The next `rows` rows, as parts of batches."""
        while rows:
            if self._start == self._stop:
                self._start, self._batch = next(self._batches)
                self._stop = num_rows(self._batch)
            count = min(rows, self._stop - self._start)
            yield Rows(self._batch, self._start, self._start + count)
            self._start += count
            rows -= count


def steps_with_last(amounts: Iterator[Int64s]) -> Iterator[Step]:
    """The steps of a schedule (see `blend_steps`), each with whether it is the last."""
    present = next(amounts, None)
    while present is not None:
        following = next(amounts, None)
        yield Step(present, following is None)
        present = following


def whole_batches(streams: Sequence[RowStream], steps: Iterator[Step]) -> Iterator[tuple[Step, Any]]:
    """Every step with the batch of the one source that gives something."""
    for step in steps:
        yield step, streams[int(step.amounts.argmax())].next_batch()


def mixed_batches(streams: Sequence[RowStream], steps: Iterator[Step]) -> Iterator[tuple[Step, Any]]:
    """Every step with a batch of rows of all sources that give some, those of the first source first.

    The first step comes alone, so that nothing else is waited for; then several are made at once.
    """
    at_once = 1
    while lot := list(islice(steps, at_once)):
        counts = [int(step.amounts.sum()) for step in lot]
        parts = [part for step in lot for part in _parts(streams, step.amounts)]
        for number, (step, batch) in enumerate(zip(lot, mix_rows(parts, counts), strict=True)):
            if number == 0:
                at_once = min(2 * at_once, _MOST_STEPS, max(1, _MOST_BYTES // max(num_bytes(batch), 1)))
            yield step, batch


def _parts(streams: Sequence[RowStream], amounts: Int64s) -> Iterator[Rows]:
    for source in np.flatnonzero(amounts).tolist():
        yield from streams[source].take(int(amounts[source]))
