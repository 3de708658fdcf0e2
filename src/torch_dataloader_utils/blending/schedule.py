"""Which source gives what in every step of a blend: the greatest-error rule, run on from any counts, until it stops.

    shares 1/2 1/4 1/4      picks 0 1 2 0 0 1 2 0 ...      per="sample", 4 rows a step: (2, 1, 1), (2, 1, 1), ...

Pure arithmetic on counts; the same on every rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.blending.options import BlendOptions
from torch_dataloader_utils.tokens.blend_rule import BlendRule, continue_blend
from torch_dataloader_utils.tokens.split import normalize_weights

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
    for picks in _blocks(options, start):
        for first in range(0, len(picks), rows):
            yield np.bincount(picks[first : first + rows], minlength=num_sources)


def count_steps(options: BlendOptions, start: BlendStart) -> int:
    """How many steps `blend_steps` gives."""
    if isinstance(options.stop, int):
        return max(0, options.stop - start.steps)
    return -(-sum(map(len, _blocks(options, start))) // options.batch_rows)


def _blocks(options: BlendOptions, start: BlendStart) -> Iterator[Picks]:
    """All picks until the blend stops; every block but the last is whole steps."""
    rule = BlendRule(shares=np.array(normalize_weights(options.weights)), limits=None)
    rows = options.batch_rows
    block = rows * max(1, _BLOCK_PICKS // rows)
    counts = start.counts.astype(np.float64)
    taken = np.zeros_like(start.counts)
    wanted = max(0, options.stop - start.steps) * rows if isinstance(options.stop, int) else None
    while wanted is None or wanted > 0:
        count = block if wanted is None else min(block, wanted)
        picks = continue_blend(rule, counts, count, segment_limit=_SEGMENTS)
        stop = _stop_in(options, start, taken, picks)
        if stop is not None:
            yield picks[:stop]
            return
        yield picks
        made = np.bincount(picks, minlength=len(counts))
        counts += made
        taken += made
        if wanted is not None:
            wanted -= count


def _stop_in(options: BlendOptions, start: BlendStart, taken: Int64s, picks: Picks) -> int | None:
    """How many of these picks are still to be made, None for all of them and more."""
    rows = options.batch_rows
    match options.stop:
        case int():
            return None
        case "first_exhausted":
            left = start.least_left - taken
            reached = [_place(picks, source, int(left[source])) for source in range(len(left))]
            stops = [place for place in reached if place is not None]
            if not stops:
                return None
            return min(stops) // rows * rows if options.drop_last else min(stops)
        case "all_exhausted":
            left = start.most_left - taken
            reached = [_place(picks, source, int(left[source]) - 1) for source in np.flatnonzero(left > 0).tolist()]
            if None in reached:
                return None
            # The last step is filled up by going on.
            return -(-(1 + max((place for place in reached if place is not None), default=-1)) // rows) * rows
        case _ as unreachable:
            assert_never(unreachable)


def _place(picks: Picks, source: int, number: int) -> int | None:
    """Where pick `number` (from 0) of a source stands in the block, None if it is not in it."""
    places = np.flatnonzero(picks == source)
    return int(places[number]) if number < len(places) else None
