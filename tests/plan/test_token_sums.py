"""Batches limited by the sum of lengths: every row in one, none too full, few, of the same lengths in every epoch."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._core.token_budget import TokenBudget, fill_batches

MAX_TOKENS = 40

lengths_of_a_window = st.lists(st.one_of(st.integers(0, MAX_TOKENS), st.integers(0, 4)), max_size=120)


def falling(lengths):
    return -np.sort(-np.array(lengths, dtype=np.int64))


def lognormal(count, most, sigma=0.8):
    draws = np.random.default_rng(count).lognormal(6, sigma, count)
    return np.clip(draws.round().astype(np.int64), 1, most)


def fill_row_by_row(lengths, max_tokens, max_rows):
    """The rule in plain words."""
    count = max(-(-sum(lengths) // max_tokens), -(-len(lengths) // max_rows), 1)
    batches, sums, left = [[] for _ in range(count)], [0] * count, []
    for rank, length in enumerate(lengths):
        row, place = divmod(rank, count)
        batch = count - 1 - place if row % 2 else place
        sums[batch] += length
        if sums[batch] <= max_tokens and rank < len(lengths) - 2 * count:
            batches[batch].append(rank)
        else:
            left.append(rank)
    for rank in left:
        found = [
            (sum(lengths[each] for each in ranks), len(ranks), number)
            for number, ranks in enumerate(batches)
            if len(ranks) < max_rows
        ]
        tokens, _, number = min(found, default=(max_tokens + 1, 0, 0))
        if tokens + lengths[rank] <= max_tokens:
            batches[number].append(rank)
        else:
            batches.append([rank])
    return batches


@given(lengths_of_a_window, st.integers(1, 50))
@settings(max_examples=effort(300), deadline=None)
def test_rows_are_placed_as_a_loop_over_rows_would(lengths, max_rows):
    lengths = falling(lengths)
    batch = fill_batches(lengths, MAX_TOKENS, max_rows).tolist()
    found = [[rank for rank, each in enumerate(batch) if each == number] for number in range(max(batch, default=0) + 1)]
    expected = fill_row_by_row(lengths.tolist(), MAX_TOKENS, max_rows)
    assert found == [sorted(ranks) for ranks in expected]


@given(lengths_of_a_window.filter(len), st.integers(1, 50), st.randoms(use_true_random=False))
@settings(max_examples=effort(200), deadline=None)
def test_a_window_has_full_batches_of_the_same_lengths_in_every_order_and_epoch(lengths, max_rows, random):
    budget = TokenBudget(max_tokens=MAX_TOKENS, max_rows=max_rows, padding_free=True)
    seen = []
    for epoch in range(3):
        random.shuffle(lengths)
        key = {"seed": random.getrandbits(64), "epoch": epoch, "index": 7}
        order, sizes = budget.order(np.array(lengths), **key), budget.batch_rows(np.array(lengths), **key)
        assert sorted(order.tolist()) == list(range(len(lengths)))
        batches = [np.array(lengths)[part] for part in np.split(order, np.cumsum(sizes)[:-1])]
        assert sizes.min() > 0
        assert sizes.max() <= max_rows
        assert max(batch.sum() for batch in batches) <= MAX_TOKENS
        seen.append(Counter(tuple(sorted(batch.tolist())) for batch in batches))
    assert seen[0] == seen[1] == seen[2]


def test_floats_are_rounded_up_and_empty_rows_count_nothing():
    budget = TokenBudget(max_tokens=10, max_rows=6, padding_free=True)
    lengths = np.array([0.0, 4.5, 0.0, 4.25, 0.5, 0.0])
    assert budget.widths(lengths).tolist() == [0, 5, 0, 5, 1, 0]
    sizes = budget.batch_rows(lengths, seed=1, epoch=0, index=0)
    assert sorted(sizes.tolist()) == [2, 4]
    empty = np.zeros(20, dtype=np.int32)
    assert sorted(budget.batch_rows(empty, seed=1, epoch=0, index=0).tolist()) == [5, 5, 5, 5]
    assert budget.batch_rows(empty[:0], seed=1, epoch=0, index=0).tolist() == []
    assert budget.order(empty[:0], seed=1, epoch=0, index=0).tolist() == []


@pytest.mark.parametrize(("rows", "fullest"), [(512, 0.97), (2_048, 0.98), (8_192, 0.99), (65_536, 0.995)])
def test_batches_are_full_and_mix_lengths(rows, fullest):
    lengths = falling(lognormal(rows, 16_384))
    batch = fill_batches(lengths, 16_384, 1 << 20)
    tokens, counts = np.bincount(batch, lengths), np.bincount(batch)
    fewest = -(-int(lengths.sum()) // 16_384)
    assert len(counts) <= fewest / fullest
    # Most batches have a row of each eighth of the lengths; only the longest row is alone with less than an eighth.
    eighths = np.zeros((len(counts), 8), dtype=bool)
    eighths[batch, np.arange(rows) * 8 // rows] = True
    assert np.mean(eighths.sum(1) >= 7) > 0.8
    assert np.median(tokens) > 0.97 * 16_384


def test_sums_beyond_what_floats_and_int64_count_are_within_the_limit():
    for most in (2**53 + 1, 2**60, 2**62, 2**63 - 1):
        lengths = falling([most, most - 1, most // 2 + 1, most // 2, most // 3, 1, 1, 0])
        batch = fill_batches(lengths, most, 5)
        sums = Counter()
        for number, length in zip(batch.tolist(), lengths.tolist(), strict=True):
            sums[number] += length
        assert max(sums.values()) <= most
        assert len(sums) <= 5


def test_the_order_of_a_window_is_pinned():
    budget = TokenBudget(max_tokens=12, max_rows=8, padding_free=True)
    lengths = np.array([5, 1, 4, 2, 9, 9, 0, 4, 4])
    key = {"seed": 42, "epoch": 1, "index": 7}
    assert budget.batch_rows(lengths, **key).tolist() == [2, 2, 2, 3]
    assert budget.order(lengths, **key).tolist() == [6, 5, 1, 4, 0, 8, 2, 3, 7]
