"""Schedules against the plain loop, from the start and from the middle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.blending.rule import blend_picks
from tests.effort import effort
from torch_dataloader_utils.blending import picks
from torch_dataloader_utils.blending.picks import BlendOptions, BlendStart, blend_steps, count_steps
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.corpora import blend_by_weight

sources = st.lists(st.tuples(st.floats(0.05, 20), st.integers(1, 60)), min_size=1, max_size=5)
stops = st.one_of(st.sampled_from(["first_exhausted", "all_exhausted"]), st.integers(1, 80))


def start_at(counts, lengths, steps=0):
    left = np.maximum(np.array(lengths) - counts, 0)
    return BlendStart(counts=np.array(counts, dtype=np.int64), least_left=left, most_left=left, steps=steps)


@pytest.fixture(params=[7, 1 << 16])
def block_picks(request, monkeypatch):
    """Small blocks, so that a schedule has many."""
    monkeypatch.setattr(picks, "_BLOCK_PICKS", request.param)


@pytest.mark.slow
@pytest.mark.usefixtures("block_picks")
@given(sources=sources, stop=stops, rows=st.integers(1, 9), resume=st.integers(0, 30))
@settings(max_examples=effort(30), deadline=None)
def test_steps_are_those_of_the_plain_loop(sources, stop, rows, resume):
    weights, lengths = zip(*sources, strict=True)
    options = BlendOptions(weights=weights, per="sample", stop=stop, batch_rows=rows)
    picks = blend_picks(weights, lengths, stop, rows)
    expected = [np.bincount(picks[i : i + rows], minlength=len(weights)).tolist() for i in range(0, len(picks), rows)]
    start = start_at([0] * len(weights), lengths)
    assert [step.tolist() for step in blend_steps(options, start)] == expected
    assert count_steps(options, start) == len(expected)
    resume = min(resume, len(expected))
    counts = np.sum(expected[:resume], axis=0, dtype=np.int64) if resume else np.zeros(len(weights), np.int64)
    rest = blend_steps(options, start_at(counts, lengths, resume))
    assert [step.tolist() for step in rest] == expected[resume:]


def test_the_order_is_that_of_map_style_blends():
    weights = [0.3, 0.5, 0.2]
    options = BlendOptions(weights=tuple(weights), per="batch", stop=5_000, batch_rows=1)
    steps = np.array(list(blend_steps(options, start_at([0, 0, 0], [1, 1, 1]))))
    assert steps.argmax(axis=1).tolist() == blend_by_weight(weights, 5_000).dataset_index.tolist()


def test_drop_last_leaves_out_a_short_step():
    options = BlendOptions(weights=(1, 1), per="sample", stop="first_exhausted", batch_rows=4, drop_last=True)
    assert [step.tolist() for step in blend_steps(options, start_at([0, 0], [5, 5]))] == [[2, 2], [2, 2]]


@pytest.mark.parametrize("rows", [10**12, 2**63 - 1])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_larger_than_all_rows_is_one_short_step(rows, drop_last):
    options = BlendOptions(weights=(1, 1), per="sample", stop="first_exhausted", batch_rows=rows, drop_last=drop_last)
    start = start_at([0, 0], [5, 5])
    steps = [step.tolist() for step in blend_steps(options, start)]
    assert steps == ([] if drop_last else [[5, 5]])
    assert count_steps(options, start) == len(steps)


@pytest.mark.parametrize("stop", ["all_exhausted", 3])
def test_a_batch_that_nothing_could_fill_is_refused(stop):
    with pytest.raises(ConfigError, match=r'batch_size=2147483648 with stop=.*at most 2147483647, or stop="first'):
        BlendOptions(weights=(1, 1), per="sample", stop=stop, batch_rows=2**31)


@pytest.mark.parametrize(
    "wrong", [{"weights": (0.0,)}, {"per": "row"}, {"stop": 0}, {"stop": "never"}, {"batch_rows": 0}]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ConfigError):
        BlendOptions(**{"weights": (1.0,), "per": "batch", "stop": 3, "batch_rows": 1, **wrong})
