"""The greatest-error rule of blends: the data set that is furthest behind its share gives the next sample.

The rule, with weights w that sum to 1 and counts c of samples taken so far: at step i the data set with the largest
error w_k · max(i, 1) − c_k gives the next sample; ties go to the lowest k. All in float64, each operation rounded on
its own, so that the order is Megatron-Core's bit for bit.

The rule is sequential, one step looks at the counts of all steps before. It is run fast in segments side by side:

    block      |--- segment 0 ---|--- segment 1 ---|--- segment 2 ---|  …
    start      exact              guessed, then run up by some steps
    steps      one numpy call advances every segment by one step

A step depends on nothing but i and the counts, and wrong counts heal within some steps: what is behind is taken
next. So the guess for a segment's start is nearly always right, and it need not be believed: if the end of segment
m is not, count for count, the start of segment m + 1, then m + 1 is run again from that end, until all joints fit.
Segment 0 is exact, hence all are. The worst case is one segment after the other: the plain loop.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]

DEFAULT_SEGMENTS = 1024
# Cells of one step: segments × data sets. Keeps 30,000 data sets from costing gigabytes.
_STEP_CELLS = 1 << 21
# Steps to run up before a segment: enough to heal a guess in most blends (measured up to 300 data sets).
_RUN_UP_STEPS = 64
_RUN_UP_STEPS_PER_DATASET = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendRule:
    """Shares per data set, and how many samples each has to give (None: as many as are asked for)."""

    shares: npt.NDArray[np.float64]
    limits: npt.NDArray[np.float64] | None

    def advance(self, steps: npt.NDArray[np.float64], counts: Counts, step_count: int) -> npt.NDArray[np.int16]:
        """Run every row of `counts` [M, K] for `step_count` steps from `steps` [M]; picks int16 [step_count, M].

        `counts` is changed in place.
        """
        picks = np.empty((step_count, len(counts)), dtype=np.int16)
        errors = np.empty_like(counts)
        flat_counts, rows = counts.reshape(-1), np.arange(len(counts)) * counts.shape[1]
        step = steps[:, None].copy()
        for number in range(step_count):
            np.multiply(self.shares, np.maximum(step, 1.0), out=errors)
            errors -= counts
            if self.limits is not None:
                errors[counts >= self.limits] = -np.inf
            chosen = errors.argmax(axis=1)
            picks[number] = chosen
            flat_counts[rows + chosen] += 1
            step += 1
        return picks

    def guess_counts(self, steps: npt.NDArray[np.float64]) -> Counts:
        """Counts [M, K] that are likely at these steps: shares rounded so that they add up, largest remainder first."""
        exact = np.outer(steps, self.shares)
        counts = np.floor(exact)
        missing = steps - counts.sum(axis=1)
        ranks = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1, kind="stable")
        counts += ranks < missing[:, None]
        return counts if self.limits is None else np.minimum(counts, self.limits)


def continue_blend(
    rule: BlendRule, counts: Counts, count: int, *, segment_limit: int = DEFAULT_SEGMENTS
) -> npt.NDArray[np.int16]:
    """The next `count` picks of a blend in which data set k has given `counts[k]` samples (float64 [K]) before.

        shares .5 .25 .25    counts 0 0 0, count 4: picks 0 1 2 0    counts 2 1 1, count 2: picks 0 1

    A rule with limits must have `count` samples left. segment_limit: how many segments run side by side.
    """
    first, dataset_count = int(counts.sum()), len(counts)
    segments = max(1, min(segment_limit, _STEP_CELLS // dataset_count, count))
    length = -(-count // segments)
    starts = np.arange(first, first + count, length, dtype=np.float64)
    run_up = min(_RUN_UP_STEPS + _RUN_UP_STEPS_PER_DATASET * dataset_count, length)
    entries = rule.guess_counts(starts - run_up)
    rule.advance(starts[1:] - run_up, entries[1:], run_up)
    entries[0] = counts
    exits = np.empty_like(entries)
    picks = np.empty((length, len(starts)), dtype=np.int16)
    pending = np.arange(len(starts))
    while pending.size:
        advanced = entries[pending]
        picks[:, pending] = rule.advance(starts[pending], advanced, length)
        exits[pending] = advanced
        pending = np.flatnonzero((exits[:-1] != entries[1:]).any(axis=1)) + 1
        entries[pending] = exits[pending - 1]
    return picks.T.reshape(-1)[:count]
