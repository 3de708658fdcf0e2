"""Log of the requests that are sent again."""

import logging

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._store.diagnosis import Diagnosis, Kind
from torch_dataloader_utils._store.retry import Attempts
from torch_dataloader_utils._store.store_errors import failure_text

_log = logging.getLogger("torch_dataloader_utils.retries")

_FIRST_INTERVAL_SECONDS = 5.0


class RetryLog:
    """Log lines of one request: a warning at its first retry, then 5, 10, 20, 40, ... seconds after it began.

    Structured handlers find event="storage_retry", bucket, key, action, attempt, status, code, request_id,
    elapsed_seconds and wait_seconds on the record. A renewal of credentials is routine, and has level INFO.
    """

    def __init__(self, path: str, action: str) -> None:
        self._path = path
        self._action = action
        self._due_seconds = 0.0

    def failed(self, error: BaseException, diagnosis: Diagnosis, attempts: Attempts, wait_seconds: float) -> None:
        """Log that attempt number `attempts.count` failed, and that the next begins after `wait_seconds`."""
        elapsed = attempts.elapsed_seconds
        renews = diagnosis.kind in (Kind.EXPIRED, Kind.MAYBE_EXPIRED)
        if elapsed < self._due_seconds and not renews:
            return
        while self._due_seconds <= elapsed and not renews:
            self._due_seconds = max(_FIRST_INTERVAL_SECONDS, 2 * self._due_seconds)
        path = redact(self._path)
        bucket, _, key = path.partition("://")[2].partition("/")
        _log.log(
            logging.INFO if renews else logging.WARNING,
            "%s: cannot %s yet (%s); %s",
            path,
            self._action,
            failure_text(error, self._path, diagnosis, attempts),
            "asking for new credentials"
            if renews
            else f"trying again in {wait_seconds:.1f} s, given up after {attempts.most_seconds:g} s",
            extra={
                "event": "storage_retry",
                "bucket": bucket,
                "key": key,
                "action": self._action,
                "attempt": attempts.count,
                "status": diagnosis.status,
                "code": diagnosis.code,
                "request_id": diagnosis.request_id,
                "elapsed_seconds": round(elapsed, 3),
                "wait_seconds": round(wait_seconds, 3),
            },
        )
