"""A job that waits for its storage says so."""

import logging
from typing import Any

import pytest

from tests.cli.shell import tdu
from tests.faults.s3_server import Rule, S3Server, error
from tests.faults.tables import assert_rows, upload
from tests.faults.test_retries import LATER, loader_of, patience
from torch_dataloader_utils._store import RetryPolicy, StoreAccess, open_store
from torch_dataloader_utils._store.diagnosis import Diagnosis, Kind
from torch_dataloader_utils._store.retry import Attempts
from torch_dataloader_utils._store.retry_log import RetryLog
from torch_dataloader_utils.errors import StoreError


def retries(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if getattr(record, "event", "") == "storage_retry"]


def test_the_first_retry_of_a_request_is_a_warning_that_says_what_why_and_how_long(
    server: S3Server, access: StoreAccess, caplog: pytest.LogCaptureFixture
) -> None:
    total = upload(server, compression="none")
    server.rules.append(Rule(error(503, "SlowDown"), **LATER | {"count": 1}))
    assert_rows(loader_of(access), total)
    (record,) = retries(caplog)
    assert record.levelno == logging.WARNING
    assert record.bucket == "bucket"
    assert record.key.startswith("data/")
    assert (record.action, record.attempt, record.status, record.code) == ("read", 1, 503, "SlowDown")
    assert record.request_id == "REQUEST-ID"
    assert 0 < record.wait_seconds <= 0.01
    text = record.getMessage()
    assert text.startswith(
        f"s3://bucket/{record.key}: cannot read yet (HTTP 503 SlowDown, request REQUEST-ID; 1 attempt"
    )
    assert text.endswith("trying again in 0.0 s, given up after 20 s")


@pytest.mark.slow
def test_many_retries_in_a_short_time_are_one_line(
    server: S3Server, access: StoreAccess, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(error(503, "SlowDown"), count=None))
    with pytest.raises(StoreError, match=r"\d+ attempts"):
        open_store(url, patience(access, most_seconds=4, most_delay_seconds=0.05)).ranges(url, [(0, 4)])
    assert server.rules[0].seen > 2
    assert len(retries(caplog)) == 1


class PastAttempts(Attempts):
    """Attempts whose elapsed time is given."""

    elapsed_seconds = 0.0


def test_lines_come_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    attempts, log = PastAttempts(RetryPolicy()), RetryLog("s3://bucket/key", "read")
    for second in range(120):
        attempts.elapsed_seconds = float(second)
        attempts.count = second + 1
        log.failed(TimeoutError("slow"), Diagnosis(kind=Kind.TRANSIENT), attempts, 1.0)
    assert [record.elapsed_seconds for record in retries(caplog)] == [0, 5, 10, 20, 40, 80]


def test_urls_with_signatures_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    attempts = Attempts(RetryPolicy())
    path = "https://host/a.parquet?sig=canary"
    RetryLog(path, "read").failed(OSError(f"no {path}"), Diagnosis(kind=Kind.TRANSIENT), attempts, 1.0)
    (record,) = retries(caplog)
    assert "canary" not in str(vars(record))


@pytest.mark.slow
def test_the_shell_shows_it(server: S3Server) -> None:
    upload(server)
    server.rules.append(Rule(error(503, "SlowDown")))
    options = [f"key={server.storage_options['key']}", f"secret={server.storage_options['secret']}"]
    options.append(f"client_kwargs.endpoint_url={server.storage_options['client_kwargs']['endpoint_url']}")
    answer = tdu("scan", "s3://bucket/data", *(part for each in options for part in ("--option", each)))
    assert answer.exit_code == 0
    assert "warning: s3://bucket" in answer.stderr
    assert "cannot read yet (HTTP 503 SlowDown" in answer.stderr
