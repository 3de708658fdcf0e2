"""Lends memory, and tells when nothing uses it any more."""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

K = TypeVar("K")

Bytes = npt.NDArray[np.uint8]


class Loans(Generic[K]):
    """Lends arrays under keys and tells which came back.

    `lend` returns a new array over the same memory; the loan comes back when that array dies. A tensor made of it
    (`torch.from_numpy`) and all tensors that share its storage keep it alive; numpy views do not, because they refer to
    the memory's owner. The array may die in any thread at any time, so the callback only appends to a deque.
    """

    def __init__(self) -> None:
        self._watched: dict[K, weakref.ref[Any]] = {}
        self._returned: deque[K] = deque()

    def lend(self, key: K, array: Bytes) -> Bytes:
        """An array over all of `array`, to make a tensor of; `key` must not be lent already."""
        lent = array[:]
        self._watched[key] = weakref.ref(lent, self._when_dead(key))
        return lent

    def returned(self) -> list[K]:
        """The keys of arrays that came back since the last call."""
        keys = [self._returned.popleft() for _ in range(len(self._returned))]
        for key in keys:
            del self._watched[key]
        return keys

    def out(self) -> list[K]:
        """The keys of arrays that are still lent, as of the last call of `returned`."""
        return list(self._watched)

    def _when_dead(self, key: K) -> Callable[[Any], None]:
        returned = self._returned
        return lambda _: returned.append(key)
