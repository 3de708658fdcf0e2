"""A value for each process: made on first use, never pickled, never used by a forked child."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Storage clients own threads, which a fork does not copy, and sockets. Closing an inherited client would use the
# parent's sockets, so a child keeps the client alive and unused until it exits.
_inherited: list[object] = []


class ProcessLocal(Generic[T]):
    """One value per process, made by the `make` given to `get`."""

    __slots__ = ("__weakref__", "_slot")

    def __init__(self) -> None:
        self._slot: _Slot[T] = _Slot()
        _all.add(self)

    @property
    def present(self) -> T | None:
        """This process's value; None if it was not made yet."""
        return self._slot.value

    def get(self, make: Callable[[], T]) -> T:
        """Return this process's value; `make` runs once in a process, whatever the number of threads."""
        slot = self._slot
        with slot.lock:
            if slot.value is None:
                slot.value = make()
            return slot.value

    def renew(self, old: T, make: Callable[[], T]) -> T:
        """Return a new value in place of `old`; the present value if another thread has renewed it already."""
        slot = self._slot
        with slot.lock:
            if slot.value is old:
                slot.value = make()
            return slot.value if slot.value is not None else old

    def __reduce__(self) -> tuple[type["ProcessLocal[Any]"], tuple[()]]:
        return (ProcessLocal, ())


class _Slot(Generic[T]):
    # The lock belongs to the slot: if another thread held it during a fork, the child drops it with the slot.
    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: T | None = None


_all: weakref.WeakSet[ProcessLocal[Any]] = weakref.WeakSet()


def _begin_anew() -> None:
    # Right after the fork, when the child has one thread: later, two threads might each make a slot.
    for local in list(_all):
        _inherited.append(local._slot)
        local._slot = _Slot()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
