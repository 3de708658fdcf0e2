"""A few values that were found out of late, so that what comes again is not found out again."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FifoCache(Generic[K, V]):
    """A few values by key; the oldest goes when another one comes.

    For all threads, without a lock: entries are read, set where there is none, and deleted, each at once.

    most: how many there are at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value of a key; None if it is not here, or no more."""
        return self._entries.get(key)

    def values(self) -> list[V]:
        """All of them, the oldest first."""
        return list(self._entries.values())

    def keep(self, key: K, value: V) -> V:
        """The value that is kept for a key: this one, or that of a thread that was first."""
        value = self._entries.setdefault(key, value)
        while len(self._entries) > self._most:
            self._entries.pop(next(iter(self._entries)), None)
        return value
