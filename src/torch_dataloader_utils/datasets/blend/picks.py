"""Which source gives what in every step of a blend: the greatest-error rule, run on from any counts, until it stops.

    shares 1/2 1/4 1/4      picks 0 1 2 0 0 1 2 0 ...      per="sample", 4 rows a step: (2, 1, 1), (2, 1, 1), ...

Pure arithmetic on counts; the same on every rank.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_integer, hold_flags, hold_integers, is_integer
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.tokens.blend_index import BlendRule, continue_blend, normalize_weights

ItemKind = Literal["batch", "sample"]
StopPolicy = Literal["first_exhausted", "all_exhausted"]
Stop = StopPolicy | int

# A longer batch is no batch; one that has to be filled would be picked row by row for minutes before memory runs out.
_MOST_FILLED_ROWS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOptions:
    """See `blend`. batch_rows: rows of a batch with per="sample", 1 (a whole batch is the item) with per="batch"."""

    weights: tuple[float, ...]
    per: ItemKind
    stop: Stop
    batch_rows: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        hold_flags(self, "drop_last")
        for index, weight in enumerate(self.weights):
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(f"Source {index} has the weight {weight}: pass positive numbers, or leave it out.")
        if self.per not in get_args(ItemKind):
            raise ConfigError(f'per={self.per!r}: pass "batch" or "sample".')
        if is_integer(self.stop):
            hold_integers(self, "stop", least=1)
        elif self.stop not in get_args(StopPolicy):
            raise ConfigError(f'stop={self.stop!r}: pass "first_exhausted", "all_exhausted" or a number of steps.')
        object.__setattr__(self, "batch_rows", check_integer("batch_size", self.batch_rows, least=1))
        if self.stop != "first_exhausted" and self.batch_rows > _MOST_FILLED_ROWS:
            raise ConfigError(
                f"batch_size={self.batch_rows} with stop={self.stop!r}: batches are filled with rows that come again. "
                f'Pass at most {_MOST_FILLED_ROWS}, or stop="first_exhausted".'
            )

    def describe(self) -> dict[str, Any]:
        """The options that decide the order of a blend, for its state."""
        return {
            "weights": list(self.weights),
            "per": self.per,
            "stop": self.stop,
            "batch_size": self.batch_rows,
            "drop_last": self.drop_last,
        }


# Picks made at once: 5 to 10 ms of numpy, 128 KiB.
_BLOCK_PICKS = 1 << 16
_SEGMENTS = 256

Picks = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendStart:
    """Where the picks go on. All int64 of shape [sources], in items: batches, or rows with per="sample".

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
    """For every step the items that each source gives, int64 [sources]."""
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
    """How many picks remain until a source would have to give more than it has; None where it is more than these."""
    left = start.least_left - taken
    reached = [_place(picks, source, int(left[source])) for source in range(len(left))]
    return min((place for place in reached if place is not None), default=None)


def _until_all_exhausted(options: BlendOptions, start: BlendStart, taken: Int64s, picks: Picks) -> int | None:
    """How many picks remain until every source has given all; None if that is not known from these.

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
