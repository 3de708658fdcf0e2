"""Permutations: the order that is promised for ever, however it is sorted."""

import numpy as np
import pytest

from torch_dataloader_utils._core.permute import Purpose, permutation, random_words, stable_order


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 65_536])
def test_a_permutation_is_the_stable_argsort_of_its_words(count):
    words = random_words(count, seed=3, epoch=1, purpose=Purpose.WINDOW, index=7)
    expected = np.argsort(words, kind="stable")
    assert np.array_equal(permutation(count, seed=3, epoch=1, purpose=Purpose.WINDOW, index=7), expected)


def test_equal_words_keep_their_order():
    words = np.random.default_rng(0).integers(0, 50, 10_000).astype(np.uint64)
    assert np.array_equal(stable_order(words), np.argsort(words, kind="stable"))


def test_words_that_differ_in_their_last_bit_are_told_apart():
    words = np.array([2**64 - 1, 2**64 - 2, 0, 1], dtype=np.uint64)
    assert stable_order(words).tolist() == [2, 3, 1, 0]
