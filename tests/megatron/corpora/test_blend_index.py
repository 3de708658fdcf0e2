"""Blends: the order of Megatron-Core, equal to the rule step by step, from any counts on."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.engine import needs_engine
from tests.megatron.corpora.corpora import pick_greatest_error
from torch_dataloader_utils import _engine
from torch_dataloader_utils._core.blend_index import BlendRule, _blend, continue_blend, normalize_weights
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.megatron.corpora import blend_by_weight, blend_exhaustively


@pytest.fixture(autouse=True, scope="module", params=[False, pytest.param(True, marks=needs_engine)])
def _is_built(request: pytest.FixtureRequest) -> Iterator[None]:
    with patch.object(_engine, "IS_BUILT", request.param):
        yield


@pytest.mark.parametrize(
    ("weights", "datasets", "samples"),
    [
        ([0.5, 0.25, 0.25], [0, 1, 2, 0, 0, 1, 2, 0], [0, 0, 0, 1, 2, 1, 1, 3]),
        ([1, 1], [0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2]),
    ],
)
def test_weighted_blends_of_the_original(weights: list[float], datasets: list[int], samples: list[int]) -> None:
    blend = blend_by_weight(weights, len(datasets))
    assert blend.dataset_index.tolist() == datasets
    assert blend.dataset_sample_index.tolist() == samples
    assert (blend.dataset_index.dtype, blend.dataset_sample_index.dtype) == (np.int16, np.int64)


def test_exhaustive_blend_of_the_original() -> None:
    blend = blend_exhaustively([3, 1, 2])
    assert blend.dataset_index.tolist() == [0, 2, 1, 0, 2, 0]
    assert blend.dataset_sample_index.tolist() == [0, 0, 0, 1, 1, 2]


_WEIGHTS = st.lists(
    st.one_of(st.integers(1, 10).map(float), st.floats(1e-6, 1.0), st.just(0.1)), min_size=1, max_size=6
)


@settings(max_examples=effort(100))
@given(weights=_WEIGHTS, size=st.integers(0, 300), block=st.integers(1, 120), segments=st.integers(1, 9))
@example(weights=[0.7, 0.2, 0.1], size=300, block=100, segments=7)
@example(weights=[1.0, 1e-6, 1e-6, 1e-6], size=300, block=120, segments=9)
def test_segments_side_by_side_equal_the_rule_step_by_step(
    weights: list[float], size: int, block: int, segments: int
) -> None:
    shares = normalize_weights(weights)
    rule = BlendRule(shares=np.array(shares), limits=None)
    blend = _blend(rule, size, block_samples=block, segment_limit=segments)
    assert blend.dataset_index.tolist() == pick_greatest_error(shares, size)
    _check_numbers(blend.dataset_index, blend.dataset_sample_index)


@settings(max_examples=effort(100))
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6), block=st.integers(1, 120), segments=st.integers(1, 9)
)
@example(sizes=[200, 1, 1], block=50, segments=5)
def test_exhaustive_segments_equal_the_rule_and_use_everything(sizes: list[int], block: int, segments: int) -> None:
    limits = np.array(sizes, dtype=np.float64)
    shares = limits / limits.sum()
    blend = _blend(BlendRule(shares=shares, limits=limits), sum(sizes), block_samples=block, segment_limit=segments)
    assert blend.dataset_index.tolist() == pick_greatest_error(shares.tolist(), sum(sizes), sizes)
    assert np.bincount(blend.dataset_index, minlength=len(sizes)).tolist() == sizes
    _check_numbers(blend.dataset_index, blend.dataset_sample_index)


def _check_numbers(datasets: np.ndarray, samples: np.ndarray) -> None:
    for dataset in np.unique(datasets):
        assert samples[datasets == dataset].tolist() == list(range((datasets == dataset).sum()))


_ARRAYS = st.sampled_from([{}, {"base"}, {"half_slopes"}, {"limits"}, {"base", "half_slopes", "limits"}])


@needs_engine
@settings(max_examples=effort(100))
@given(shares=_WEIGHTS, arrays=_ARRAYS, seed=st.integers(0, 99), start=st.integers(0, 9), least=st.integers(-3, 9))
def test_compiled_code_picks_as_numpy_does(
    shares: list[float], arrays: set[str], seed: int, start: int, least: int
) -> None:
    random = np.random.default_rng(seed)
    drawn: dict[str, Any] = {
        "base": random.uniform(0, 20, len(shares)),
        "half_slopes": random.uniform(-1e-3, 1e-3, len(shares)),
        "limits": random.integers(1, 300, len(shares)).astype(float),
    }
    given = {name: drawn[name] if name in arrays else None for name in drawn}
    rule = BlendRule(shares=np.array(shares), start=float(start), least=float(least), **given)
    counts = random.integers(0, 30, len(shares)).astype(float)
    compiled, numpy = counts.copy(), counts[None].copy()
    found, expected = rule.run(12, compiled, 200), rule.advance(np.array([12.0]), numpy, 200)
    assert found.dataset_index.tolist() == expected.dataset_index[0].tolist()
    assert found.dataset_sample_index.tolist() == expected.dataset_sample_index[0].tolist()
    assert compiled.tolist() == numpy[0].tolist()


@needs_engine
@pytest.mark.parametrize(("sources", "numbers"), [(0, 2), (2, 2), (3, 1)])
def test_arrays_that_do_not_fit_are_refused(sources: int, numbers: int) -> None:
    arrays = np.zeros(sources), 0.0, 0.0, np.zeros(2, np.int16), np.zeros(numbers, np.int64)
    with pytest.raises(ValueError, match="do not fit each other"):
        _engine.pick(np.zeros((4, 3)), *arrays)


@pytest.mark.parametrize("count", [2, 40])
def test_default_segments_equal_the_rule(count: int) -> None:
    weights = (1 / np.arange(1, count + 1)).tolist()
    shares = normalize_weights(weights)
    assert blend_by_weight(weights, 5_000).dataset_index.tolist() == pick_greatest_error(shares, 5_000)


@settings(max_examples=effort(50))
@given(weights=_WEIGHTS, before=st.integers(0, 200), count=st.integers(1, 100))
def test_a_blend_goes_on_from_the_counts_of_what_was_given(weights: list[float], before: int, count: int) -> None:
    shares = normalize_weights(weights)
    picks = pick_greatest_error(shares, before + count)
    counts = np.bincount(picks[:before], minlength=len(shares)).astype(np.float64)
    rule = BlendRule(shares=np.array(shares), limits=None)
    assert continue_blend(rule, counts, count).dataset_index.tolist() == picks[before:]
    assert counts.sum() == before


def test_many_data_sets_fit_the_index() -> None:
    assert blend_by_weight([1.0] * 32_767, 300).dataset_index.tolist() == list(range(300))
    with pytest.raises(ConfigError, match="1 to 32767"):
        blend_by_weight([1.0] * 32_768, 1)


def test_blends_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="Data set 1 of the blend has the weight 0"):
        blend_by_weight([1.0, 0.0], 4)
    with pytest.raises(ConfigError, match="Data set 0"):
        blend_exhaustively([0, 4])
    for sizes in ([1.5, 1.5], [3, float("inf")], [float("nan"), 2]):
        with pytest.raises(ConfigTypeError, match=r"sizes=\[.*\]: pass whole numbers, the samples of each data set"):
            blend_exhaustively(sizes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="-1 samples"):
        blend_by_weight([1.0], -1)
    with pytest.raises(ConfigError, match="0 were given"):
        blend_exhaustively([])
