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
from collections.abc import Awaitable, Callable
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
    """Requests for the same bytes, of which the first that begins wins."""

    def __init__(self, times: ReplyTimes) -> None:
        self._times = times
        self._tasks: dict[asyncio.Task[None], float] = {}
        self.winner: asyncio.Task[None] | None = None

    def start(self, fetch: Callable[[], Awaitable[None]]) -> None:
        """Begin a request."""
        task = asyncio.ensure_future(_awaited(fetch))
        task.add_done_callback(_look_at_error)
        self._tasks[task] = time.monotonic()

    def begun(self) -> None:
        """Note that the reply of the calling task begins; cancel all others.

        Raises:
            StalledError: another reply has begun already.
        """
        task = asyncio.current_task()
        if self.winner is not None or task not in self._tasks:
            raise StalledError("the reply to another request for the same bytes began before")
        self.winner = task
        self._times.began(time.monotonic() - self._tasks[task])
        for other in self._tasks.keys() - {task}:
            other.cancel()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until all requests have ended, or for some seconds; return whether one begins or ended."""
        done, _ = await asyncio.wait(self._tasks, timeout=seconds)
        return bool(done) or self.winner is not None

    def cancel(self) -> None:
        """Cancel all requests that have not ended."""
        for task in self._tasks:
            task.cancel()

    def result(self) -> None:
        """Raise the error of the winner, or the most telling error of all if no reply has begun."""
        if self.winner is not None:
            return self.winner.result()
        ended = sorted(self._tasks, key=lambda task: isinstance(task.exception(), StalledError))
        return ended[0].result()


async def fetch_hedged(
    fetch: Callable[[], Awaitable[None]],
    times: ReplyTimes,
    share: float,
    note_race: Callable[[Race], None],
    note_hedge: Callable[[], None],
) -> None:
    """Fetch; send the request a second time if its reply does not begin.

    fetch: Function that sends one request, calls `Race.begun` when its reply begins, and only then takes bytes.
    share: Most second requests, as a share of all requests of the client.
    note_race: Function that gets the race before it begins. note_hedge: Function to call for a second request.

    Raises:
        Any error of `fetch`.
    """
    race = Race(times)
    note_race(race)
    times.sent()
    try:
        race.start(fetch)
        if not await race.wait(times.limit_seconds) and times.allows_hedge(share):
            note_hedge()
            race.start(fetch)
        await race.wait()
    finally:
        race.cancel()
    race.result()


async def _awaited(fetch: Callable[[], Awaitable[None]]) -> None:
    await fetch()


def _look_at_error(task: asyncio.Task[None]) -> None:
    # asyncio logs errors that nobody has looked at, such as that of a request whose answer is no longer needed.
    if not task.cancelled():
        task.exception()
