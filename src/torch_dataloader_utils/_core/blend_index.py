"""Choose the data set that gives sample i of a blend: always the data set that is furthest behind its share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils import _engine
from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


def as_weights(weights: object) -> npt.NDArray[np.float64]:
    """Return the weights as an array, shape [n].

    Raises:
        ConfigTypeError: not a list of numbers.
    """
    try:
        array = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(())
    if array.ndim != 1:
        raise ConfigTypeError(f"weights={weights!r}: pass a list of numbers, one for each data set.")
    return array


def normalize_weights(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their float64 sum, as numpy adds it: the last bits decide ties in a blend.

    Raises:
        ConfigTypeError: not a list of numbers. ConfigError: no weights, a weight that is negative or not finite, or a
            sum that is 0 or not finite.
    """
    array = as_weights(weights)
    with np.errstate(over="ignore"):
        total = np.sum(array)
    if not np.isfinite(total) or (array < 0).any() or not total > 0:
        raise ConfigError(
            f"Weights must be finite, not negative and not all 0, and so must their sum: {list(weights)}."
        )
    normalized: list[float] = (array / total).tolist()
    return normalized


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendIndex:
    """Sample i of the blend is sample `dataset_sample_index[i]` (int64) of data set `dataset_index[i]` (int16)."""

    dataset_index: npt.NDArray[np.int16]
    dataset_sample_index: npt.NDArray[np.int64]


Counts = npt.NDArray[np.float64]

DEFAULT_SEGMENTS = 1024
# Cells of one step: segments × data sets. This many stay in the processor's cache. More segments would be shorter than
# the run-up before each of them, which grows with the number of data sets.
_STEP_CELLS = 1 << 15
# Steps to run up before a segment: enough to heal a guess in most blends (measured up to 300 data sets).
_RUN_UP_STEPS = 64
_RUN_UP_STEPS_PER_DATASET = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendRule:
    """Shares per data set, and how many samples each data set has to give (None: no limit).

    By a step, d steps after `start`, a data set should have given base + d · (shares + half_slopes · d) samples. Steps
    before `least` count as `least`.
    """

    shares: npt.NDArray[np.float64]
    limits: npt.NDArray[np.float64] | None
    base: npt.NDArray[np.float64] | None = None
    half_slopes: npt.NDArray[np.float64] | None = None
    start: float = 0.0
    least: float = 1.0

    def advance(self, steps: npt.NDArray[np.float64], counts: Counts, step_count: int) -> BlendIndex:
        """Run every row of `counts` [M, K] for `step_count` steps from `steps` [M]; both arrays are [M, step_count].

        `counts` is changed in place.
        """
        picks = np.empty((len(counts), step_count), dtype=np.int16)
        numbers = np.empty(picks.shape, dtype=np.int64)
        # Arrays of one shape, no broadcasts: numpy's inner loops then run over whole arrays instead of over rows.
        rule, step = self._repeated(len(counts)), np.repeat(steps, counts.shape[1]).reshape(counts.shape)
        first_whole = max(0, self.least - steps.min(initial=np.inf))
        step -= self.start
        errors = np.empty_like(counts)
        flat_counts, rows = counts.reshape(-1), np.arange(len(counts)) * counts.shape[1]
        for number in range(step_count):
            places = step if number >= first_whole else np.maximum(step, self.least - self.start)
            rule._fill_targets(places, errors)
            errors -= counts
            if rule.limits is not None:
                np.copyto(errors, -np.inf, where=counts >= rule.limits)
            chosen = errors.argmax(axis=1)
            picks[:, number] = chosen
            chosen += rows
            numbers[:, number] = given = flat_counts[chosen]
            flat_counts[chosen] = given + 1
            step += 1
        return BlendIndex(dataset_index=picks, dataset_sample_index=numbers)

    def run(self, step: int, counts: Counts, step_count: int) -> BlendIndex:
        """Run `counts` [K] for `step_count` steps from `step`, as `advance` runs a row, by compiled code.

        `counts` is changed in place.
        """
        picks, numbers = np.empty(step_count, dtype=np.int16), np.empty(step_count, dtype=np.int64)
        rule = np.zeros((4, len(counts)))
        rule[3] = np.inf
        for row, array in zip(rule, (self.shares, self.half_slopes, self.base, self.limits), strict=True):
            if array is not None:
                row[:] = array
        _engine.pick(rule, counts, float(step - self.start), self.least - self.start, picks, numbers)
        return BlendIndex(dataset_index=picks, dataset_sample_index=numbers)

    def _repeated(self, count: int) -> "BlendRule":
        """Return the rule with arrays [count, K]."""
        arrays: dict[str, Any] = {
            name: np.tile(array, (count, 1))
            for name in ("shares", "limits", "base", "half_slopes")
            if (array := getattr(self, name)) is not None
        }
        return replace(self, **arrays)

    def _fill_targets(self, places: npt.NDArray[np.float64], out: Counts) -> None:
        """Write the samples each data set should have given, [M, K], `places` steps [M, 1] after `start`."""
        if self.half_slopes is None:
            np.multiply(self.shares, places, out=out)
        else:
            np.multiply(self.half_slopes, places, out=out)
            out += self.shares
            out *= places
        if self.base is not None:
            out += self.base

    def guess_counts(self, steps: npt.NDArray[np.float64]) -> Counts:
        """Return likely counts [M, K] at these steps: shares rounded to add up, largest remainder first."""
        exact = np.empty((len(steps), len(self.shares)))
        self._fill_targets((steps - self.start)[:, None], exact)
        if self.base is not None:  # data sets that give nothing now may be behind or ahead; spread the difference
            exact += (steps - exact.sum(axis=1))[:, None] / len(self.shares)
        counts = np.floor(exact)
        missing = steps - counts.sum(axis=1)
        ranks = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1, kind="stable")
        counts += ranks < missing[:, None]
        return counts if self.limits is None else np.minimum(counts, self.limits)


def continue_blend(rule: BlendRule, counts: Counts, count: int, *, segment_limit: int = DEFAULT_SEGMENTS) -> BlendIndex:
    """Return the next `count` samples of a blend. Data set k has given `counts[k]` samples (float64 [K]) before.

        shares .5 .25 .25    counts 0 0 0, count 4: data sets 0 1 2 0    counts 2 1 1, count 2: data sets 0 1

    A rule with limits must have `count` samples left. segment_limit: Number of segments that run side by side.
    """
    first, dataset_count = int(counts.sum()), len(counts)
    if _engine.IS_BUILT:
        return rule.run(first, counts.copy(), count)
    segments = max(1, min(segment_limit, _STEP_CELLS // dataset_count, count))
    length = -(-count // segments)
    starts = np.arange(first, first + count, length, dtype=np.float64)
    run_up = min(_RUN_UP_STEPS + _RUN_UP_STEPS_PER_DATASET * dataset_count, length)
    entries = rule.guess_counts(starts - run_up)
    rule.advance(starts[1:] - run_up, entries[1:], run_up)
    entries[0] = counts
    exits = np.empty_like(entries)
    picks = np.empty((len(starts), length), dtype=np.int16)
    numbers = np.empty(picks.shape, dtype=np.int64)
    # Segments run side by side, each from a guess of the counts at its start. A segment runs again until it starts with
    # the counts with which the segment before ends. Segment 0 starts with the true counts, so each round makes at least
    # one more segment final, and the result is that of one long run.
    pending = np.arange(len(starts))
    while pending.size:
        advanced = entries[pending]
        found = rule.advance(starts[pending], advanced, length)
        picks[pending], numbers[pending] = found.dataset_index, found.dataset_sample_index
        exits[pending] = advanced
        pending = np.flatnonzero((exits[:-1] != entries[1:]).any(axis=1)) + 1
        entries[pending] = exits[pending - 1]
    return BlendIndex(dataset_index=picks.reshape(-1)[:count], dataset_sample_index=numbers.reshape(-1)[:count])


# The data set index is int16 in the format.
MAX_DATASETS = 2**15 - 1

_BLOCK_SAMPLES = 1 << 20


def blend_by_weight(weights: Sequence[float], size: int, *, normalize: bool = True) -> BlendIndex:
    """Return the first `size` samples of a blend; weights are divided by their float64 sum if `normalize`.

        weights .5 .25 .25, size 8    data sets 0 1 2 0 0 1 2 0    samples 0 0 0 1 2 1 1 3

    Raises:
        ConfigTypeError: weights that are not a list of numbers, or a size that is not a whole number.
        ConfigError: no data sets or too many, a weight that is not positive, or a negative size.
    """
    given, size = as_weights(weights), check_integer("size", size)
    _check(given, size)
    shares = np.array(normalize_weights(weights)) if normalize else given
    return _blend(BlendRule(shares=shares, limits=None), size)


def blend_exhaustively(sizes: Sequence[int]) -> BlendIndex:
    """Return every sample of every data set once, in proportion to the sizes throughout; a used-up data set rests.

        sizes 3 1 2    data sets 0 2 1 0 2 0    samples 0 0 0 1 1 2

    Raises:
        ConfigTypeError: sizes that are not a list of whole numbers.
        ConfigError: no data sets or too many, or a size that is not positive.
    """
    limits = as_weights(sizes)
    if not np.isfinite(limits).all() or (limits % 1).any():
        raise ConfigTypeError(f"sizes={sizes!r}: pass whole numbers, the samples of each data set.")
    total = int(limits.sum())
    _check(limits, total)
    return _blend(BlendRule(shares=limits / total, limits=limits), total)


def _check(weights: npt.NDArray[np.float64], size: int) -> None:
    if not 0 < weights.size <= MAX_DATASETS:
        raise ConfigError(f"A blend takes 1 to {MAX_DATASETS} data sets; {weights.size} were given.")
    if not (weights > 0).all() or not np.isfinite(weights).all():
        wrong = int(np.argmin((weights > 0) & np.isfinite(weights)))
        raise ConfigError(f"Data set {wrong} of the blend has the weight {weights[wrong]}. Leave it out.")
    if size < 0:
        raise ConfigError(f"A blend cannot have {size} samples.")


def _blend(
    rule: BlendRule, size: int, *, block_samples: int = _BLOCK_SAMPLES, segment_limit: int = DEFAULT_SEGMENTS
) -> BlendIndex:
    dataset_index = np.empty(size, dtype=np.int16)
    dataset_sample_index = np.empty(size, dtype=np.int64)
    counts = np.zeros(len(rule.shares))
    for first in range(0, size, block_samples):
        stop = min(first + block_samples, size)
        found = continue_blend(rule, counts, stop - first, segment_limit=segment_limit)
        dataset_index[first:stop], dataset_sample_index[first:stop] = found.dataset_index, found.dataset_sample_index
        counts += np.bincount(found.dataset_index, minlength=len(counts))
    return BlendIndex(dataset_index=dataset_index, dataset_sample_index=dataset_sample_index)
