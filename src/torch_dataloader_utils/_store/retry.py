"""Decides when a failed request is sent again or given up; no I/O."""

import random
import time
from dataclasses import dataclass
from typing import assert_never

from torch_dataloader_utils._core.arguments import hold_integers, hold_not_negative
from torch_dataloader_utils._store.diagnosis import Diagnosis, Kind
from torch_dataloader_utils.errors import ConfigError

# Jitter must differ between processes that failed at the same moment; it decides nothing about rows.
_random = random.SystemRandom()

# Slower than this on the whole, the bytes of a file do not come in before the cap.
_LEAST_BYTES_PER_SECOND = 64 << 10

# Retries for replies with other bytes than asked for: a server does that by accident, or always.
_MOST_WRONG_REPLIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The time for which a request is tried.

    Attributes:
        most_seconds: of one request, all its attempts and waits together. S3 takes minutes to scale a prefix that is
            throttled, a restarted proxy some ten seconds. Each 64 KiB of a file that come in add a second, but no more
            than they took: a large read over a slow line is not given up. The first attempt has progress_seconds at
            least.
        first_delay_seconds: before the second attempt; doubled each time up to most_delay_seconds, then multiplied by
            a random number between one half and one. A server's Retry-After counts where it is longer.
        progress_seconds: a reply that brings less than `progress_bytes` in this time is given up and asked for again.
    """

    most_seconds: float = 120.0
    first_delay_seconds: float = 0.1
    most_delay_seconds: float = 10.0
    progress_seconds: float = 15.0
    progress_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        # With 0 bytes a reply that has stopped would count as progress; with 0 seconds no reply would.
        hold_integers(self, "progress_bytes", least=1)
        seconds = ("most_seconds", "first_delay_seconds", "most_delay_seconds", "progress_seconds")
        hold_not_negative(self, *seconds, what="number of seconds")
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
        self.count = 0

    @property
    def elapsed_seconds(self) -> float:
        """Since the first attempt began."""
        return time.monotonic() - self._begin

    @property
    def most_seconds(self) -> float:
        """The `elapsed_seconds` at which the request is given up."""
        return self.policy.most_seconds + min(self._received_bytes / _LEAST_BYTES_PER_SECOND, self._received_seconds)

    @property
    def left_seconds(self) -> float:
        """The seconds left for the attempt under way."""
        least = 0.0 if self.count else self.policy.progress_seconds
        return max(least, self.most_seconds) - self.elapsed_seconds

    def received(self, num_bytes: int) -> None:
        """So many bytes of a file have come in by now, by all attempts."""
        if num_bytes > self._received_bytes:
            self._received_bytes, self._received_seconds = num_bytes, self.elapsed_seconds

    def failed(self, diagnosis: Diagnosis, *, can_renew: bool) -> float | None:
        """Seconds to wait before the next attempt; None if there is to be no other.

        can_renew: whether credentials can be renewed. That is tried once a request, without a wait.
        """
        self.count += 1
        match diagnosis.kind:
            case Kind.EXPIRED | Kind.MAYBE_EXPIRED:
                self._renewals += 1
                return 0.0 if can_renew and self._renewals == 1 else None
            case Kind.WRONG_REPLY:
                self._wrong_replies += 1
                return self._delay(diagnosis) if self._wrong_replies < _MOST_WRONG_REPLIES else None
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
        return delay if self.elapsed_seconds + delay < self.most_seconds else None
