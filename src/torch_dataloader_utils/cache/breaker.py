"""`Breaker`: decides when a part of a host's cache that keeps failing is left alone for a while."""

import time

# A directory that somebody deletes or damages fails a few times; a full or stopped disk fails each time.
_MOST_FAILURES = 16
_MOST_LOST_SECONDS = 1.5
_PAUSE_SECONDS = 60.0


class Breaker:
    """Count of failures in a row, and of the seconds that they cost.

    Threads may use it without a lock: a lost count delays the pause by one failure.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._lost_seconds = 0.0
        self._open_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the part is left alone now."""
        return time.monotonic() < self._open_until

    def failed(self, lost_seconds: float) -> None:
        """Note a failure; too many failures or seconds begin a pause."""
        self._failures += 1
        self._lost_seconds += lost_seconds
        if self._failures >= _MOST_FAILURES or self._lost_seconds >= _MOST_LOST_SECONDS:
            self._open_until = time.monotonic() + _PAUSE_SECONDS
            self.succeeded()

    def succeeded(self) -> None:
        """Note that the part works."""
        self._failures, self._lost_seconds = 0, 0.0
