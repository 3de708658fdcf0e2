"""Permutations: the order that is promised for ever, however it is sorted."""

import numpy as np
import pytest

from torch_dataloader_utils import _engine
from torch_dataloader_utils._core.permute import Purpose, permutation, random_words, stable_order


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 129, 1000, 65_536, 65_537, 300_000])
@pytest.mark.parametrize(("seed", "index"), [(3, 7), (-1, 2**64 - 1), (2**70 + 1, -5)])
def test_a_permutation_is_the_stable_argsort_of_its_words(count, seed, index, is_built, monkeypatch):
    monkeypatch.setattr(_engine, "IS_BUILT", is_built and _engine.IS_BUILT)
    key = {"seed": seed, "epoch": 1, "purpose": Purpose.WINDOW, "index": index}
    expected = np.argsort(random_words(count, **key), kind="stable")
    order = permutation(count, **key)
    assert np.array_equal(order, expected)
    assert order.dtype == np.int64


def test_equal_words_keep_their_order():
    words = np.random.default_rng(0).integers(0, 50, 10_000).astype(np.uint64)
    assert np.array_equal(stable_order(words), np.argsort(words, kind="stable"))


def test_words_that_differ_in_their_last_bit_are_told_apart():
    words = np.array([2**64 - 1, 2**64 - 2, 0, 1], dtype=np.uint64)
    assert stable_order(words).tolist() == [2, 3, 1, 0]
