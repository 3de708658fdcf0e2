"""Send a second request for a reply that does not begin, and take the reply that begins first.

    request    ├─────── silent ────────┊────────────────────────────x  cancelled
                                       ┊ limit, from the times seen
    second                             ├── begins ──── bytes ──────►

The other request is cancelled before it has given a byte, so that bytes are received and counted once.
Source: Dean and Barroso, "The Tail at Scale", Communications of the ACM 56 (2013): a second request after the 95th
percentile of replies costs few requests and removes most of the tail.
"""

import asyncio
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from torch_dataloader_utils._store.diagnosis import StalledError

# The last replies of a client that count, and how many of them a limit needs.
_MOST_REPLIES = 128
_LEAST_REPLIES = 16
# A limit is three times the 95th percentile, but never so short that a busy machine alone would pass it.
_TIMES = 3
_LEAST_SECONDS = 1.0
_UNKNOWN_SECONDS = 3.0
# A client's first requests may all meet the same dead server.
_FREE_HEDGES = 2

_REPLY_TIMES = "torch_dataloader_utils_reply_times"


class ReplyTimes:
    """Times until replies of one client began, and the second requests that it has sent. Used on the client's loop."""

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []
        self._num_requests = 0
        self._num_hedges = 0

    @classmethod
    def of(cls, filesystem: Any) -> "ReplyTimes":
        """Return the times of a client, which are empty when the client is new."""
        found: ReplyTimes = filesystem.__dict__.setdefault(_REPLY_TIMES, cls())
        return found

    @property
    def limit_seconds(self) -> float:
        """Time after which a reply that has not begun is later than nearly all replies were."""
        if len(self._sorted) < _LEAST_REPLIES:
            return _UNKNOWN_SECONDS
        return max(_LEAST_SECONDS, _TIMES * self._sorted[len(self._sorted) * 95 // 100])

    def began(self, seconds: float) -> None:
        """Note the time until a reply began."""
        self._last.append(seconds)
        insort(self._sorted, seconds)
        if len(self._last) > _MOST_REPLIES:
            self._sorted.remove(self._last.popleft())

    def sent(self) -> None:
        """Note a request, which is no second request."""
        self._num_requests += 1

    def allows_hedge(self, share: float) -> bool:
        """Take one second request, if fewer than `share` of all requests (and two) were second requests."""
        allowed = share > 0 and self._num_hedges < _FREE_HEDGES + share * self._num_requests
        self._num_hedges += allowed
        return allowed


class Race:
    """Requests for the same bytes. The request that is answered first wins.

    fetch: Function that sends one request, calls `begun` when its reply begins, and only then takes bytes.
    """

    def __init__(self, times: ReplyTimes, fetch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._times = times
        self._fetch = fetch
        self._started: dict[asyncio.Task[None], float] = {}
        self.winner: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> Collection[asyncio.Task[None]]:
        """The requests so far."""
        return self._started.keys()

    @property
    def is_silent(self) -> bool:
        """Whether no reply has begun and no request has ended."""
        return self.winner is None and not any(task.done() for task in self._started)

    def start(self) -> None:
        """Begin a request."""
        self._started[asyncio.ensure_future(self._fetch())] = time.monotonic()

    def begun(self) -> None:
        """Note that the reply of the calling task begins; cancel all others.

        Raises:
            StalledError: another reply has begun already.
        """
        task = asyncio.current_task()
        if self.winner is not None or task not in self._started:
            raise StalledError("the reply to another request for the same bytes began before")
        self.winner = task
        self._times.began(time.monotonic() - self._started[task])
        for other in self._started.keys() - {task}:
            other.cancel()

    def end(self) -> None:
        """Cancel the requests that have not ended; asyncio logs errors that nobody has looked at, so look at all."""
        for task in self._started:
            if task.cancel():
                task.add_done_callback(_error)
            else:
                _error(task)

    def error(self) -> BaseException | None:
        """Return the error of the winner, or the most telling error of all if no reply has begun."""
        ended = [_error(task) for task in self._started if self.winner in (None, task)]
        return min(ended, key=lambda error: isinstance(error, StalledError))


async def run_races(
    races: Sequence[Race], times: ReplyTimes, share: float, note_hedge: Callable[[], None]
) -> list[BaseException | None]:
    """Run all races at once, and return their errors. A request is sent again if its reply does not begin.

    times: Times of the client that all requests are for. share: Most second requests, as a share of all requests of the
    client. note_hedge: Function to call for a second request.
    """
    try:
        for race in races:
            times.sent()
            race.start()
        _, late = await asyncio.wait([task for race in races for task in race.tasks], timeout=times.limit_seconds)
        for race in races if late else ():
            if race.is_silent and times.allows_hedge(share):
                note_hedge()
                race.start()
        if late:
            await asyncio.wait([task for race in races for task in race.tasks])
    finally:
        for race in races:
            race.end()
    return [race.error() for race in races]


def _error(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
