"""Which source gives what in every step of a blend: the greatest-error rule, run on from any counts, until it stops.

    shares 1/2 1/4 1/4      picks 0 1 2 0 0 1 2 0 ...      per="sample", 4 rows a step: (2, 1, 1), (2, 1, 1), ...

Pure arithmetic on counts; the same on every rank.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import (
    check_column_name,
    check_integer,
    hold_flags,
    hold_integers,
    is_integer,
)
from torch_dataloader_utils._core.blend_index import continue_blend
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.weight_schedule import SchedulePiece, WeightSchedule
from torch_dataloader_utils.errors import ConfigError

ItemKind = Literal["batch", "sample"]
StopPolicy = Literal["first_exhausted", "all_exhausted"]
Stop = StopPolicy | int
CapPolicy = Literal["stop", "renormalise", "error"]

# Items that a source without a cap may give: more than any blend takes.
UNLIMITED = 1 << 62

# Picking the rows of a longer batch, which has to be filled, would take minutes until memory runs out.
_MOST_FILLED_ROWS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOptions:
    """See `blend`. batch_rows: rows of a batch with per="sample", 1 (a whole batch is the item) with per="batch".

    source_column decides nothing about the order, and so is not described in states.
    """

    weights: tuple[float, ...] | WeightSchedule
    per: ItemKind
    stop: Stop
    batch_rows: int
    drop_last: bool = False
    max_epochs: tuple[int | None, ...] | None = None
    at_cap: CapPolicy = "stop"
    source_column: str | None = None

    def __post_init__(self) -> None:
        hold_flags(self, "drop_last")
        for index, weight in enumerate(() if isinstance(self.weights, WeightSchedule) else self.weights):
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
        check_column_name("source_column", self.source_column)
        self._check_end()

    def _check_end(self) -> None:
        """Raises ConfigError for caps that say nothing, and for an epoch without end."""
        if self.at_cap not in get_args(CapPolicy):
            raise ConfigError(f'at_cap={self.at_cap!r}: pass "stop", "renormalise" or "error".')
        if self.max_epochs is None:
            if self.at_cap != "stop":
                raise ConfigError(f"at_cap={self.at_cap!r} without max_epochs=: there is no cap to reach.")
        elif self.stop == "first_exhausted":
            raise ConfigError(
                'max_epochs= with stop="first_exhausted": no source begins a second pass. Pass stop="all_exhausted" or '
                "a number of steps."
            )
        if self.stop == "all_exhausted" and 0 in self.schedule.weights[-1]:
            source = self.schedule.weights[-1].index(0)
            raise ConfigError(
                f'stop="all_exhausted", and the last weight of source {source} is 0: it might never give all it has. '
                "Pass a number of steps."
            )

    @property
    def schedule(self) -> WeightSchedule:
        """The weights by step, also where they stay."""
        return self.weights if isinstance(self.weights, WeightSchedule) else WeightSchedule({0: self.weights})

    def describe(self) -> dict[str, Any]:
        """The options that decide the order of a blend, for its state."""
        caps = {} if self.max_epochs is None else {"max_epochs": list(self.max_epochs), "at_cap": self.at_cap}
        return {
            "weights": self.schedule.describe(),
            "per": self.per,
            "stop": self.stop,
            "batch_size": self.batch_rows,
            "drop_last": self.drop_last,
            **caps,
        }


# Picks made at once: 5 to 10 ms of numpy, 128 KiB.
_BLOCK_PICKS = 1 << 16
_SEGMENTS = 256

Picks = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendStart:
    """Where the picks go on. All int64 of shape [sources], in items: batches, or rows with per="sample".

    counts: taken since the epoch began; what the rule looks at.
    least_left: what a source may give from here on, on the rank with least of it: the rest of the pass that it stands
        in, or of its `max_epochs` passes; UNLIMITED without a cap.
    most_left: what is left of its first pass, on the rank with most of it; 0 for a source that has been exhausted.
    steps: steps taken since the epoch began.
    capped: (source, items): sources that reached their cap, and after how many items of the blend. Later ones are
        added while steps are made.
    errors: with at_cap="error", what has to be raised after the last step; added when that step is made.
    """

    counts: Int64s
    least_left: Int64s
    most_left: Int64s
    steps: int
    capped: list[tuple[int, int]] = field(default_factory=list)
    errors: list[ConfigError] = field(default_factory=list)

    def raise_errors(self) -> None:
        """Raises the error that the steps ended with, if they did."""
        if self.errors:
            raise self.errors[0]


def blend_steps(options: BlendOptions, start: BlendStart) -> Iterator[Int64s]:
    """For every step the items that each source gives, int64 [sources]; then `raise_errors` of `start`."""
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
    if missing < rows and not options.drop_last and not start.errors:
        yield amounts


def count_steps(options: BlendOptions, start: BlendStart) -> int:
    """How many steps `blend_steps` gives.

    Raises:
        ConfigError: a source reaches its cap, and that is an error.
    """
    if isinstance(options.stop, int) and options.max_epochs is None:
        return max(0, options.stop - start.steps)
    start = replace(start, capped=[*start.capped], errors=[])
    whole, rest = divmod(sum(map(len, _blocks(options, start))), options.batch_rows)
    start.raise_errors()
    return whole + (rest > 0 and not options.drop_last)


def _blocks(options: BlendOptions, start: BlendStart) -> Iterator[Picks]:
    """All picks until the blend stops; a block knows nothing of steps, so that large batches make no large blocks."""
    taken = np.zeros_like(start.counts)
    left = max(0, options.stop - start.steps) * options.batch_rows if isinstance(options.stop, int) else None
    goes_on = options.max_epochs is not None and options.at_cap == "renormalise"
    ends_at_cap = options.stop == "first_exhausted" or (options.max_epochs is not None and not goes_on)
    num_pieces = 0
    pieces: tuple[SchedulePiece, ...] = ()
    while left is None or left > 0:
        made = int(start.counts.sum() + taken.sum())
        if goes_on:
            used_up = set(np.flatnonzero(start.least_left <= taken).tolist()) - {source for source, _ in start.capped}
            start.capped.extend((source, made) for source in sorted(used_up))
        if not pieces or len(start.capped) != num_pieces:
            pieces, num_pieces = options.schedule.pieces(options.batch_rows, start.capped), len(start.capped)
        picks = _piece_picks(pieces, start.counts + taken, _BLOCK_PICKS if left is None else min(_BLOCK_PICKS, left))
        if picks is None:  # every source that has a weight is at its cap
            return
        if goes_on:
            picks = picks[: _first_cap(picks, start.least_left - taken)]
        if options.stop == "all_exhausted" and left is None:
            left = _until_all_exhausted(options, start, taken, picks)
        over = _until_over(start, taken, picks) if ends_at_cap else None
        is_over = over is not None and (left is None or over[0] < left)
        if over is not None and is_over:
            left = over[0]
        if left is not None:
            picks = picks[:left]
            left -= len(picks)
        if over is not None and is_over and options.at_cap == "error":
            start.errors.append(_cap_error(options, over[1], made + len(picks)))
        yield picks
        taken += np.bincount(picks, minlength=len(taken))


def _piece_picks(pieces: Sequence[SchedulePiece], counts: Int64s, most: int) -> Picks | None:
    """The next picks, up to `most` and in one piece of the schedule; None if no source is left to give any."""
    made = int(counts.sum())
    piece = next(piece for piece in pieces if made < piece.stop)
    active = piece.active
    if not len(active):
        return None
    count = int(min(most, piece.stop - made))
    present = counts[active]
    rule = piece.rule(active, made - int(present.sum()))
    picks = continue_blend(rule, present.astype(np.float64), count, segment_limit=_SEGMENTS).dataset_index
    return picks if len(active) == len(counts) else active.astype(np.int16)[picks]


def _first_cap(picks: Picks, left: Int64s) -> int | None:
    """How many picks there are until a source has given all that it may; None if that is not in these."""
    places = [_place(picks, source, int(left[source]) - 1) for source in np.flatnonzero(left > 0).tolist()]
    return min((place + 1 for place in places if place is not None), default=None)


def _until_over(start: BlendStart, taken: Int64s, picks: Picks) -> tuple[int, int] | None:
    """(picks, source) until this source would have to give more than it may; None where it is more than these."""
    left = start.least_left - taken
    reached = [(_place(picks, source, int(left[source])), source) for source in range(len(left))]
    return min(((place, source) for place, source in reached if place is not None), default=None)


def _until_all_exhausted(options: BlendOptions, start: BlendStart, taken: Int64s, picks: Picks) -> int | None:
    """How many picks remain until every source has given all; None if that is not known from these.

    They may be more than these: the last step is filled up by going on. A source at its cap has given all it will.
    """
    left = start.most_left - taken
    left[[source for source, _ in start.capped]] = 0
    reached = [_place(picks, source, int(left[source]) - 1) for source in np.flatnonzero(left > 0).tolist()]
    if None in reached:
        return None
    made, last = int(taken.sum()), max((place for place in reached if place is not None), default=-1)
    return -(-(made + last + 1) // options.batch_rows) * options.batch_rows - made


def _place(picks: Picks, source: int, number: int) -> int | None:
    """Where pick `number` (from 0) of a source stands in the block, None if it is not in it."""
    if number >= len(picks):
        return None
    places = np.flatnonzero(picks == source)
    return int(places[number]) if number < len(places) else None


def _cap_error(options: BlendOptions, source: int, made: int) -> ConfigError:
    limit = options.max_epochs[source] if options.max_epochs is not None else 1
    return ConfigError(
        f"Source {source} of the blend has given max_epochs={limit} passes by step {made // options.batch_rows}, and "
        'its weight asks for more. Lower its weight, raise max_epochs, or pass at_cap="stop" or "renormalise".'
    )
