"""What the sources give, step by step: whole batches in turn, or batches of mixed rows."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.blending.rows import Rows, mix_rows, num_bytes, num_rows

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
