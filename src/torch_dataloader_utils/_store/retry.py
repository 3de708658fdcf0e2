"""Decide when a failed request is sent again or given up; no I/O."""

import math
import random
import time
from dataclasses import dataclass
from typing import assert_never

from torch_dataloader_utils._core.arguments import hold_integers, hold_not_negative
from torch_dataloader_utils._store.diagnosis import Diagnosis, Kind
from torch_dataloader_utils.errors import ConfigError

# Jitter must differ between processes that failed at the same moment; rows do not depend on it.
_random = random.SystemRandom()

# A download slower than this on the whole reaches the limit before it ends.
_LEAST_BYTES_PER_SECOND = 64 << 10

# Limit for the first connection to a server, which may be misspelled, or closed to this machine.
_MOST_FIRST_CONTACT_SECONDS = 20.0

# Retries for replies with other bytes than requested: a server sends such replies by accident, or always.
_MOST_WRONG_REPLIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits for the time in which a request is tried.

    Attributes:
        most_seconds: Limit for one request, all its attempts and waits together. S3 takes minutes to scale a prefix
            that is throttled, a restarted proxy some ten seconds. Each received 64 KiB of a file add a second, but no
            more than they took: a large read over a slow line is not given up. The first attempt has at least
            progress_seconds, and so has a second one if the first used them up. Opening a client does not count.
        first_delay_seconds: Wait before the second attempt; doubled each time up to most_delay_seconds, then multiplied
            by a random number between one half and one. A longer Retry-After of the server wins.
        progress_seconds: A reply that brings less than `progress_bytes` in this time is given up and requested again.
            A reply that does not begin has this time too, then two times and four times as long.
        hedge_share: Most second requests, as a share of all requests of a client. A second request is sent when a reply
            begins later than nearly all replies did, a second at least, and the reply that begins first is taken. 0 for
            none.
    """

    most_seconds: float = 120.0
    first_delay_seconds: float = 0.1
    most_delay_seconds: float = 10.0
    progress_seconds: float = 15.0
    progress_bytes: int = 256 << 10
    hedge_share: float = 0.05

    def __post_init__(self) -> None:
        # With 0 bytes a reply that has stopped would count as progress; with 0 seconds no reply would.
        hold_integers(self, "progress_bytes", least=1)
        seconds = ("most_seconds", "first_delay_seconds", "most_delay_seconds", "progress_seconds")
        hold_not_negative(self, *seconds, what="number of seconds")
        hold_not_negative(self, "hedge_share")
        if self.progress_seconds == 0:
            raise ConfigError("progress_seconds=0 gives up every reply at once: pass more than 0.")


class Attempts:
    """The attempts of one request."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self._begin = time.monotonic()
        self._received_bytes = 0
        self._received_seconds = 0.0
        self._wrong_replies = 0
        self._renewals = 0
        self._grace_seconds = 0.0
        self._most_seconds = math.inf
        self.count = 0

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the first attempt began."""
        return time.monotonic() - self._begin

    @property
    def most_seconds(self) -> float:
        """Value of `elapsed_seconds` at which the request is given up."""
        received_seconds = min(self._received_bytes / _LEAST_BYTES_PER_SECOND, self._received_seconds)
        return min(self._most_seconds, self.policy.most_seconds + received_seconds)

    @property
    def left_seconds(self) -> float:
        """Seconds left for the present attempt."""
        least = self._grace_seconds if self.count else self.policy.progress_seconds
        return max(least, self.most_seconds) - self.elapsed_seconds

    @property
    def most_silent_seconds(self) -> float:
        """Limit for a look-up, which has no progress to watch: as for a reply that does not begin."""
        return self.policy.progress_seconds * 2.0 ** min(2, self.count)

    def leave_out(self, seconds: float) -> None:
        """Leave out time in which nothing was requested: to open a client is no fault of the storage."""
        self._begin += seconds

    def received(self, num_bytes: int) -> None:
        """Note that all attempts together have received `num_bytes` bytes of a file."""
        if num_bytes > self._received_bytes:
            self._received_bytes, self._received_seconds = num_bytes, self.elapsed_seconds

    def failed(self, diagnosis: Diagnosis, *, can_renew: bool, is_first_contact: bool = False) -> float | None:
        """Return the seconds to wait before the next attempt; None if no attempt follows.

        can_renew: Whether credentials can be renewed. A renewal is tried once a request, without a wait.
        is_first_contact: Whether the server has never answered. Then an unknown name is given up at once, and a
            connection that cannot be made in 20 seconds: to wait longer is for servers that were there before.
        """
        self.count += 1
        took, self._most_seconds = self.elapsed_seconds, math.inf
        if self.count == 1 and self.policy.progress_seconds <= took >= self.most_seconds:
            # The first attempt stalled, which a second one, on another connection, need not.
            self._grace_seconds = took + self.policy.progress_seconds
        match diagnosis.kind:
            case Kind.EXPIRED | Kind.MAYBE_EXPIRED:
                self._renewals += 1
                return 0.0 if can_renew and self._renewals == 1 else None
            case Kind.WRONG_REPLY:
                self._wrong_replies += 1
                return self._delay(diagnosis) if self._wrong_replies < _MOST_WRONG_REPLIES else None
            case Kind.TRANSIENT if is_first_contact and diagnosis.unreached:
                self._most_seconds = _MOST_FIRST_CONTACT_SECONDS
                delay = None if diagnosis.unreached == "name" else self._delay(diagnosis)
                # The next attempt may take as long as each of these.
                is_late = delay is None or took + delay + took / self.count > self.most_seconds
                return None if is_late else delay
            case Kind.TRANSIENT:
                return self._delay(diagnosis)
            case Kind.CHANGED | Kind.FINAL:
                return None
            case _ as unreachable:
                assert_never(unreachable)

    def _delay(self, diagnosis: Diagnosis) -> float | None:
        policy = self.policy
        ceiling = min(policy.most_delay_seconds, policy.first_delay_seconds * 2 ** min(self.count - 1, 20))
        delay = max(ceiling * _random.uniform(0.5, 1.0), diagnosis.retry_after_seconds)
        limit = max(self._grace_seconds if self.count == 1 else 0.0, self.most_seconds)
        return delay if self.elapsed_seconds + delay < limit else None
