"""The results of the last few calls of a pure function."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The results of the last few calls of a pure function."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, compute: Callable[[Key], Value]) -> Value:
        """The result for `key`, computed if it is not among the last few."""
        if key not in self._results:
            self._results[key] = compute(key)
            if len(self._results) > self._most:
                self._results.popitem(last=False)
        self._results.move_to_end(key)
        return self._results[key]
