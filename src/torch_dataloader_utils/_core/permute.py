"""Permutations that never change: pure functions of (seed, epoch, purpose, index).

A permutation of n is the stable argsort of n raw words of Philox 4x64. numpy guarantees the raw words of a
bit generator forever; it does not guarantee `Generator.permutation`. The epoch is part of the key, not added
to the seed, so that (seed 1, epoch 0) and (seed 0, epoch 1) have nothing in common.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils import _engine

_WORD = 0xFFFF_FFFF_FFFF_FFFF


class Purpose(IntEnum):
    """Purpose of a permutation; two purposes never have the same random words. A part of the state format."""

    CHUNKS = 1
    WINDOW = 2
    BUCKETS = 3
    SORT_TIES = 4
    PACKS = 5
    WORKERS = 6
    HOST_SHARES = 7
    DOCUMENTS = 8
    HOLDOUT = 9
    PLACES = 10
    ROWS = 11


def random_words(
    count: int, *, seed: int, epoch: int, purpose: Purpose, index: int = 0, first: int = 0
) -> npt.NDArray[np.uint64]:
    """Return `count` raw 64-bit words keyed by (seed, epoch, purpose, index), from word number `first` on.

    seed, epoch and index are taken modulo 2^64, so a negative seed is valid. Layout of the Philox state:
    key = (seed, epoch), counter = (0, 0, index, purpose); the low counter words count the blocks of four words.
    """
    block, left_out = divmod(first, 4)
    counter = np.array([block, 0, index & _WORD, int(purpose)], dtype=np.uint64)
    key = np.array([seed & _WORD, epoch & _WORD], dtype=np.uint64)
    words: npt.NDArray[np.uint64] = np.random.Philox(counter=counter, key=key).random_raw(left_out + count)
    return words[left_out:]


def permutation(count: int, *, seed: int, epoch: int, purpose: Purpose, index: int = 0) -> npt.NDArray[np.int64]:
    """Return a permutation of range(count), int64, shape [count].

    Source: argsort (stable, so equal words keep their order) of `random_words`. Compiled code gives the same in less
    than half of the time, without the interpreter's lock.
    """
    if _engine.IS_BUILT:
        order = np.empty(count, np.int64)
        _engine.permute(order, seed & _WORD, epoch & _WORD, int(purpose), index & _WORD)
        return order
    return stable_order(random_words(count, seed=seed, epoch=epoch, purpose=purpose, index=index))


class EpochKey(NamedTuple):
    """Key of the permutations inside one row group in one epoch. first_row: First plan row of the row group."""

    seed: int
    epoch: int
    first_row: int

    def permutation(self, count: int, purpose: Purpose) -> npt.NDArray[np.int64]:
        """Return a permutation of range(count), int64."""
        return permutation(count, seed=self.seed, epoch=self.epoch, purpose=purpose, index=self.first_row)

    def random_words(self, count: int, purpose: Purpose) -> npt.NDArray[np.uint64]:
        """Return `count` raw 64-bit words."""
        return random_words(count, seed=self.seed, epoch=self.epoch, purpose=purpose, index=self.first_row)


def stable_order(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the stable argsort of `words`, int64, same shape.

    numpy's unstable sort is five times as fast, and gives the same result if no two words are equal. Among 65,536
    random words two are equal once in 2^33 times.
    """
    order = np.argsort(words)
    ascending = words[order]
    if (ascending[1:] == ascending[:-1]).any():
        order = np.argsort(words, kind="stable")
    return order.astype(np.int64, copy=False)
