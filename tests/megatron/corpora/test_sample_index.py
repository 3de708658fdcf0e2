"""The document, sample and shuffle index of Megatron-Core, and the split string."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.megatron.corpora.corpora import walk_samples
from torch_dataloader_utils._core.blend_index import normalize_weights
from torch_dataloader_utils.errors import ConfigError, InternalError
from torch_dataloader_utils.megatron.corpora import parse_split, sample_index
from torch_dataloader_utils.megatron.corpora.sample_index import build_indices, build_sample_index, plan_epochs
from torch_dataloader_utils.megatron.corpora.split import split_range


@pytest.mark.parametrize(
    ("extra_tokens", "drops_partial", "rows"),
    [
        (1, True, [[0, 0], [0, 4], [2, 0]]),
        (1, False, [[0, 0], [0, 4], [2, 0], [2, 3]]),
        (0, True, [[0, 0], [0, 4], [1, 3], [2, 4]]),
    ],
)
def test_rows_of_the_small_corpus(extra_tokens: int, drops_partial: bool, rows: list[list[int]]) -> None:
    plan = plan_epochs(12, sequence_length=4, extra_tokens=extra_tokens, num_samples=None, drops_partial=drops_partial)
    index = build_sample_index(
        np.array([5, 3, 4], np.int32),
        np.arange(3, dtype=np.int32),
        sequence_length=4,
        extra_tokens=extra_tokens,
        sample_count=plan.sample_count,
    )
    assert (index.tolist(), index.dtype) == (rows, np.int32)


@pytest.mark.parametrize(
    ("num_samples", "epochs", "documents", "shuffle"),
    [
        (9, 1, [0, 1, 2], [7, 8, 3, 2, 5, 6, 1, 0, 4]),
        (16, 2, [2, 1, 2, 0, 1, 0], [7, 13, 2, 3, 1, 16, 5, 4, 0, 8, 6, 18, 12, 11, 14, 10, 9, 17, 15]),
    ],
)
def test_orders_of_the_original(num_samples: int, epochs: int, documents: list[int], shuffle: list[int]) -> None:
    plan = plan_epochs(100, sequence_length=10, extra_tokens=1, num_samples=num_samples)
    assert (plan.epoch_count, plan.separates_final_epoch) == (epochs, False)
    lengths = np.array([40, 35, 25], np.int32)
    built = build_indices(lengths, range(3), plan, sequence_length=10, extra_tokens=1, seed=1234)
    assert built.document_index.tolist() == documents
    assert built.shuffle_index.tolist() == shuffle
    assert (built.document_index.dtype, built.shuffle_index.dtype) == (np.int32, np.uint32)


def test_final_epoch_is_shuffled_apart_when_little_of_it_is_used() -> None:
    plan = plan_epochs(100, sequence_length=10, extra_tokens=1, num_samples=12)
    assert (plan.epoch_count, plan.samples_before_final, plan.separates_final_epoch) == (2, 9, True)
    lengths = np.array([40, 35, 25], np.int32)
    built = build_indices(lengths, range(3), plan, sequence_length=10, extra_tokens=1, seed=7)
    assert sorted(built.document_index[:3]) == sorted(built.document_index[3:]) == [0, 1, 2]
    assert sorted(built.shuffle_index[:9]) == list(range(9))
    assert sorted(built.shuffle_index[9:]) == list(range(9, 19))


@settings(max_examples=effort(100))
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    length=st.integers(1, 7),
    extra_tokens=st.integers(0, 1),
    drops_partial=st.booleans(),
    num_samples=st.none() | st.integers(0, 40),
    seed=st.integers(0, 2**32 - 1),
    block=st.integers(1, 5),
)
@example(
    lengths=[3, 1, 0, 0], length=2, extra_tokens=1, drops_partial=False, num_samples=None, seed=0, block=1
)  # ends with empty documents
def test_rows_equal_walking_token_by_token(
    lengths: list[int],
    length: int,
    extra_tokens: int,
    drops_partial: bool,
    num_samples: int | None,
    seed: int,
    block: int,
) -> None:
    plan = plan_epochs(
        sum(lengths),
        sequence_length=length,
        extra_tokens=extra_tokens,
        num_samples=num_samples,
        drops_partial=drops_partial,
    )
    assert plan.sample_count >= (num_samples or 0)
    if plan.epoch_count > 1:
        assert (plan.epoch_count - 1) * sum(lengths) < (num_samples or 0) * length + extra_tokens
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sample_index, "_BLOCK_DOCUMENTS", block)
        built = build_indices(
            np.array(lengths, np.int32),
            range(len(lengths)),
            plan,
            sequence_length=length,
            extra_tokens=extra_tokens,
            seed=seed,
        )
    order = built.document_index.tolist()
    assert sorted(order) == sorted(list(range(len(lengths))) * plan.epoch_count)
    assert built.sample_index.tolist() == walk_samples(lengths, order, length, extra_tokens, not drops_partial)
    assert sorted(built.shuffle_index) == list(range(plan.sample_count))


def test_last_partial_sample_is_counted_exactly_where_float32_is_not() -> None:
    plan = plan_epochs(16_777_218, sequence_length=2, extra_tokens=1, num_samples=None, drops_partial=False)
    assert plan.sample_count == 8_388_609


def test_samples_from_no_tokens() -> None:
    assert plan_epochs(0, sequence_length=4, extra_tokens=1, num_samples=None).sample_count == 0
    with pytest.raises(ConfigError, match="without tokens"):
        plan_epochs(0, sequence_length=4, extra_tokens=1, num_samples=1)
    with pytest.raises(ConfigError, match="at least one token"):
        plan_epochs(10, sequence_length=0, extra_tokens=1, num_samples=1)
    with pytest.raises(InternalError, match="5 samples were planned"):
        build_sample_index(np.array([3], np.int32), np.array([0]), sequence_length=2, extra_tokens=0, sample_count=5)


@pytest.mark.parametrize(
    ("split", "matrix"),
    [
        ("99,1,0", ((0, 0.99), (0.99, 1.0), None)),
        ("1", ((0, 1.0), None, None)),
        ("0, 5 , 5", (None, (0.0, 0.5), (0.5, 1.0))),
    ],
)
def test_split_string(split: str, matrix: object) -> None:
    assert parse_split(split) == matrix


@pytest.mark.parametrize(
    ("split", "ranges"),
    [
        ("969,30,1", [(0, 969), (969, 999), (999, 1000)]),
        ("1,1,1", [(0, 333), (333, 667), (667, 1000)]),
    ],
)
def test_split_borders(split: str, ranges: list[tuple[int, int]]) -> None:
    bookends = [each for each in parse_split(split) if each is not None]
    assert [(part.start, part.stop) for part in (split_range(each, 1000) for each in bookends)] == ranges


@pytest.mark.parametrize("split", ["", "0,0", "1,2,3,4", "1.2.3"])
def test_split_strings_that_mean_nothing(split: str) -> None:
    with pytest.raises(ConfigError):
        parse_split(split)


@settings(max_examples=effort(50))
@given(weights=st.lists(st.integers(0, 1000), min_size=1, max_size=3).filter(any), count=st.integers(0, 10_000))
def test_splits_cover_every_element_once(weights: list[int], count: int) -> None:
    matrix = parse_split(",".join(map(str, weights)))
    elements = [element for bookends in matrix if bookends for element in split_range(bookends, count)]
    assert elements == list(range(count))


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0], [float("nan")], [float("inf"), 1.0], [1e308, 1e308]])
def test_weights_that_cannot_be_normalised(weights: list[float]) -> None:
    with pytest.raises(ConfigError):
        normalize_weights(weights)
