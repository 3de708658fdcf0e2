"""Memory that is lent out, and the news that nobody looks at it any more."""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

K = TypeVar("K")

Bytes = npt.NDArray[np.uint8]


class Loans(Generic[K]):
    """Lends arrays under keys and says which came back.

    What is lent is an array over the same memory, and it comes back when that array dies. A tensor made of it
    (`torch.from_numpy`), and every tensor that shares its storage, keep it alive; numpy's views of it do not, because
    they refer to the memory's owner. An array may die in any thread and at any moment, so its callback does nothing but
    append to a deque.
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
        """The keys of arrays that are lent still, as far as `returned` has told."""
        return list(self._watched)

    def _when_dead(self, key: K) -> Callable[[Any], None]:
        returned = self._returned
        return lambda _: returned.append(key)
