"""`Recent`: a small cache of the last few values."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The last few values by key; drops the oldest when there are more than `most`.

    Thread-safe without a lock, which a fork might copy while it is held: each step is one atomic operation of a dict.
    At worst two threads compute the same value. Pickles without its values.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[Key, Value] = {}

    def __reduce__(self) -> "tuple[type[Recent[Key, Value]], tuple[int]]":
        return type(self), (self._most,)

    def find(self, key: Key) -> Value | None:
        """Return the value of a key, or None."""
        return self._entries.get(key)

    def keep(self, key: Key, value: Value) -> Value:
        """Keep a value unless another thread kept a value first; return the kept value."""
        value = self._entries.setdefault(key, value)
        for old in list(self._entries)[: -self._most]:
            self._entries.pop(old, None)
        return value

    def get(self, key: Key, compute: Callable[[Key], Value]) -> Value:
        """Return the value of a key, computed if it is missing; the key becomes the newest."""
        value = self._entries.pop(key, None)
        return self.keep(key, compute(key) if value is None else value)
