"""A few values that were found out of late, so that what comes again is not found out again."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The last few values by key; the oldest goes when another one comes.

    For all threads, without a lock, which a fork might copy while it is held: each step of a call is one of the
    dictionary's own. At worst two threads find out the same.

    most: how many there are at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[Key, Value] = {}

    def find(self, key: Key) -> Value | None:
        """The value of a key; None if it is not here, or no more."""
        return self._entries.get(key)

    def values(self) -> list[Value]:
        """All of them, the oldest first."""
        return list(self._entries.values())

    def keep(self, key: Key, value: Value) -> Value:
        """The value that is kept for a key: this one, or that of a thread that was first."""
        value = self._entries.setdefault(key, value)
        for old in list(self._entries)[: -self._most]:
            self._entries.pop(old, None)
        return value

    def get(self, key: Key, compute: Callable[[Key], Value]) -> Value:
        """The value of a key, computed if it is not here; now it is the youngest."""
        value = self._entries.pop(key, None)
        return self.keep(key, compute(key) if value is None else value)
