"""Train, validation and test as neighbouring ranges of one corpus; weights of blends, and who gives the next sample.

Source: the split string of Megatron-Core ("969,30,1"); borders are the same numbers for the same string, so a job
that moves here keeps its held-out data held out.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

# What may stand between the numbers of a split: brackets and quotes of a list too.
_BETWEEN_NUMBERS = re.compile(r"[\s,;:/|%()\[\]'\"]*")

Bookends = tuple[float, float]
SplitMatrix = tuple[Bookends | None, ...]


class Split(Enum):
    """The three uses of a corpus, in the order of a split string."""

    train = 0
    valid = 1
    test = 2


def as_weights(weights: Any) -> npt.NDArray[np.float64]:
    """The weights as an array, shape [n].

    Raises:
        ConfigTypeError: no list of numbers.
    """
    try:
        array = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(())
    if array.ndim != 1:
        raise ConfigTypeError(f"weights={weights!r}: pass a list of numbers, one for each data set.")
    return array


def normalize_weights(weights: Sequence[float]) -> list[float]:
    """The weights divided by their float64 sum, as numpy adds it: the last bits decide ties in a blend.

    Raises:
        ConfigTypeError: no list of numbers. ConfigError: no weights, a negative or not finite one, or such a sum, or
            one of 0.
    """
    array = as_weights(weights)
    with np.errstate(over="ignore"):
        total = np.sum(array)
    if not np.isfinite(total) or (array < 0).any() or not total > 0:
        raise ConfigError(f"Weights must be finite, not negative and not all 0, and so their sum: {list(weights)}.")
    normalized: list[float] = (array / total).tolist()
    return normalized


def parse_split(split: str) -> SplitMatrix:
    """Where train, valid and test begin and end, as fractions of the corpus; None for an empty one.

        "99,1,0"     (0, 0.99)  (0.99, 1.0)  None
        "1"          (0, 1.0)   None         None

    Any sign but a minus separates numbers, as in "[0.9, 0.05, 0.05]" or "90% / 10%".

    Raises:
        ConfigTypeError: no text.
        ConfigError: no numbers, more than three, or a sum of 0; letters or a minus, which Megatron-Core leaves out.
    """
    if not isinstance(split, str):
        raise ConfigTypeError(f"split={split!r}: pass a text of weights, such as '969,30,1'.")
    try:
        if not _BETWEEN_NUMBERS.fullmatch(re.sub(r"[.0-9]+", "", split)):
            raise ValueError(split)
        weights = [float(number) for number in re.findall(r"[.0-9]+", split)]
    except ValueError as error:
        raise ConfigError(f"The split {split!r} holds something that is no number. Write it as '969,30,1'.") from error
    if len(weights) > len(Split):
        raise ConfigError(f"The split {split!r} has {len(weights)} parts; train, valid and test are three.")
    shares = normalize_weights(weights + [0.0] * (len(Split) - len(weights)))
    bookends = itertools.pairwise(itertools.accumulate(shares, initial=0))
    return tuple((low, high) if high > low else None for low, high in bookends)


def split_range(bookends: Bookends, element_count: int) -> range:
    """The elements of one split: both borders rounded to the nearest element, halves to even.

    "969,30,1" of 1,000: 0 to 968, 969 to 998, 999. Neighbouring splits share a border, so none overlap.
    """
    low, high = bookends
    return range(round(low * element_count), round(high * element_count))


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
