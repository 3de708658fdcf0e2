"""Which data set gives sample i of a blend: always the one that is furthest behind its share.

The rule itself is in `blend_rule`; here it runs from the first sample on, and picks get their samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.tokens.split import (
    DEFAULT_SEGMENTS,
    BlendRule,
    Counts,
    as_weights,
    continue_blend,
    normalize_weights,
)

# The data set index is int16 in the format.
MAX_DATASETS = 2**15 - 1

_BLOCK_SAMPLES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlendIndex:
    """Sample i of the blend is sample `dataset_sample_index[i]` (int64) of data set `dataset_index[i]` (int16)."""

    dataset_index: npt.NDArray[np.int16]
    dataset_sample_index: npt.NDArray[np.int64]


def blend_by_weight(weights: Sequence[float], size: int, *, normalizes: bool = True) -> BlendIndex:
    """The first `size` samples of a blend; weights are divided by their float64 sum unless `normalizes` is False.

        weights .5 .25 .25, size 8    data sets 0 1 2 0 0 1 2 0    samples 0 0 0 1 2 1 1 3

    Raises:
        ConfigTypeError: weights that are no list of numbers, or a size that is no whole number.
        ConfigError: no data sets or too many, a weight that is not positive, or a negative size.
    """
    given, size = as_weights(weights), check_integer("size", size)
    _check(given, size)
    shares = np.array(normalize_weights(weights)) if normalizes else given
    return _blend(BlendRule(shares=shares, limits=None), size)


def blend_exhaustively(sizes: Sequence[int]) -> BlendIndex:
    """Every sample of every data set once, in proportion to the sizes throughout; a data set that is used up rests.

        sizes 3 1 2    data sets 0 2 1 0 2 0    samples 0 0 0 1 1 2

    Raises:
        ConfigTypeError: sizes that are no list of whole numbers.
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
        picks = continue_blend(rule, counts, stop - first, segment_limit=segment_limit)
        dataset_index[first:stop] = picks
        dataset_sample_index[first:stop] = _number_picks(picks, counts)
        counts += np.bincount(picks, minlength=len(counts))
    return BlendIndex(dataset_index=dataset_index, dataset_sample_index=dataset_sample_index)


def _number_picks(picks: npt.NDArray[np.int16], counts: Counts) -> npt.NDArray[np.int64]:
    """Which sample of its data set each pick is, int64: `counts[k]` of data set k were taken before.

    picks 0 1 0, counts 5 2      5 2 6
    """
    order = np.argsort(picks, kind="stable")
    sizes = np.bincount(picks, minlength=len(counts))
    group_starts = np.cumsum(sizes) - sizes
    grouped = picks[order]
    numbers = np.empty(len(picks), dtype=np.int64)
    numbers[order] = np.arange(len(picks)) - group_starts[grouped] + counts.astype(np.int64)[grouped]
    return numbers
