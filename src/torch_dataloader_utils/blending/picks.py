"""Picks the source of each item of a blend by the greatest-error rule, from any counts on, until the epoch ends.

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
    check_choice,
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

# Number of items that a source without a cap may give: more than any blend takes.
UNLIMITED = 1 << 62

# A batch with more rows would have to be filled with rows that come again: picking them takes minutes, and then memory
# runs out.
_MOST_FILLED_ROWS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOptions:
    """Options of `blend`.

    batch_rows: Number of rows of a batch with per="sample"; 1 with per="batch", where an item is a whole batch.
    source_column: Left out of states, because it does not change the order.
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
        check_choice("per", self.per, get_args(ItemKind))
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
        """Raise ConfigError for caps without effect, and for an epoch without end."""
        check_choice("at_cap", self.at_cap, get_args(CapPolicy))
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
                f'stop="all_exhausted", but the last weight of source {source} is 0: the source might never give all '
                "of its items. Pass a number of steps."
            )

    @property
    def schedule(self) -> WeightSchedule:
        """Weights by step, also for weights that do not change."""
        return self.weights if isinstance(self.weights, WeightSchedule) else WeightSchedule({0: self.weights})

    def describe(self) -> dict[str, Any]:
        """Return the options that decide the order of a blend, for its state."""
        caps = {} if self.max_epochs is None else {"max_epochs": list(self.max_epochs), "at_cap": self.at_cap}
        return {
            "weights": self.schedule.describe(),
            "per": self.per,
            "stop": self.stop,
            "batch_size": self.batch_rows,
            "drop_last": self.drop_last,
            **caps,
        }


# Number of picks that are made at once: 5 to 10 ms of numpy, 128 KiB.
_BLOCK_PICKS = 1 << 16
_SEGMENTS = 256

Picks = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendStart:
    """Position from which picks go on. The arrays count items: batches, or rows with per="sample".

    counts: int64 [sources]: items taken since the epoch began. The rule depends on these counts.
    least_left: int64 [sources]: items that a source may still give on the rank with the fewest left: the rest of its
        pass, or of its `max_epochs` passes; UNLIMITED without a cap.
    most_left: int64 [sources]: items left of the source's first pass on the rank with the most left; 0 for a source
        that has been exhausted.
    steps: Number of steps taken since the epoch began.
    capped: Pairs (source, items) of sources that reached their cap, with the items of the blend until then. Making
        steps adds more pairs.
    errors: Errors to raise after the last step, with at_cap="error"; added when the last step is made.
    """

    counts: Int64s
    least_left: Int64s
    most_left: Int64s
    steps: int
    capped: list[tuple[int, int]] = field(default_factory=list)
    errors: list[ConfigError] = field(default_factory=list)

    def raise_errors(self) -> None:
        """Raise the error with which the steps ended, if there is an error."""
        if self.errors:
            raise self.errors[0]


def blend_steps(options: BlendOptions, start: BlendStart) -> Iterator[Int64s]:
    """Yield for each step the items that each source gives, int64 [sources]. Call `start.raise_errors` at the end."""
    num_sources, rows = len(start.counts), options.batch_rows
    amounts, made = np.zeros(num_sources, dtype=np.int64), 0  # of the step that is not complete
    at_once = rows * max(1, _BLOCK_PICKS // num_sources)  # so that a table of steps has no more cells than a block
    for block in _blocks(options, start):
        for first in range(0, len(block), at_once):
            picks = block[first : first + at_once]
            steps = (made + np.arange(len(picks))) // rows
            cells = np.bincount(steps * num_sources + picks, minlength=(int(steps[-1]) + 1) * num_sources)
            table = cells.reshape(-1, num_sources)
            table[0] += amounts
            whole, made = divmod(made + len(picks), rows)
            yield from table[:whole]
            amounts = table[whole] if made else np.zeros_like(amounts)
    if made and not options.drop_last and not start.errors:
        yield amounts


def count_steps(options: BlendOptions, start: BlendStart) -> int:
    """Return the number of steps that `blend_steps` yields.

    Raises:
        ConfigError: a source reaches its cap, with at_cap="error".
    """
    if isinstance(options.stop, int) and options.max_epochs is None:
        return max(0, options.stop - start.steps)
    start = replace(start, capped=[*start.capped], errors=[])
    whole, rest = divmod(sum(map(len, _blocks(options, start))), options.batch_rows)
    start.raise_errors()
    return whole + (rest > 0 and not options.drop_last)


def _blocks(options: BlendOptions, start: BlendStart) -> Iterator[Picks]:
    """Yield all picks until the blend stops, in blocks that ignore steps: large batches do not make large blocks."""
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
    """Return the next picks, up to `most` and in one piece of the schedule; None if no source has items left."""
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
    """Return the number of picks until a source has given its `left` items; None if no source does so in `picks`."""
    places = [_place(picks, source, int(left[source]) - 1) for source in np.flatnonzero(left > 0).tolist()]
    return min((place + 1 for place in places if place is not None), default=None)


def _until_over(start: BlendStart, taken: Int64s, picks: Picks) -> tuple[int, int] | None:
    """Return (picks, source) before the first pick of a source with no items left; None if `picks` has no such pick."""
    left = start.least_left - taken
    reached = [(_place(picks, source, int(left[source])), source) for source in range(len(left))]
    return min(((place, source) for place, source in reached if place is not None), default=None)


def _until_all_exhausted(options: BlendOptions, start: BlendStart, taken: Int64s, picks: Picks) -> int | None:
    """Return the number of picks until every source has given its first pass; None if `picks` does not reach it.

    The number may exceed `len(picks)`, because the last step is filled up. A source at its cap counts as done.
    """
    left = start.most_left - taken
    left[[source for source, _ in start.capped]] = 0
    reached = [_place(picks, source, int(left[source]) - 1) for source in np.flatnonzero(left > 0).tolist()]
    if None in reached:
        return None
    made, last = int(taken.sum()), max((place for place in reached if place is not None), default=-1)
    return -(-(made + last + 1) // options.batch_rows) * options.batch_rows - made


def _place(picks: Picks, source: int, number: int) -> int | None:
    """Return the index in `picks` of the pick `number` (from 0) of a source, or None if `picks` has fewer."""
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
