"""Requests that fail in ways that deserve another try, and those that do not. Rows are what counts."""

import re
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.s3_server import Action, Request, Rule, S3Server, change, error
from tests.faults.tables import assert_rows, upload
from tests.faults.web_server import web_server
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe.counters import thread_counts
from torch_dataloader_utils._store import RemoteOptions, RetryPolicy, StoreAccess, open_store
from torch_dataloader_utils._store.diagnosis import Diagnosis, Kind
from torch_dataloader_utils._store.retry import Attempts
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import NoDataError, StoreError

LATER = {"key": r"^data/", "first": 3, "count": 3}  # after the three footers


def loader_of(access: StoreAccess, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=64, num_workers=0, storage_options=access, **options
    )[0]


def patience(access: StoreAccess, **policy: Any) -> StoreAccess:
    """The same client under another policy."""
    return replace(access, remote=replace(access.remote, retry=RetryPolicy(**policy)))


def resize(by: int) -> Action:
    """Another number of bytes than Content-Range says; Content-Length is right."""

    def act(server: S3Server, request: Any, reply: Any) -> None:
        reply.body = reply.body[:by] if by < 0 else reply.body + bytes(by)

    return act


PASSING = {
    "503": error(503, "SlowDown"),
    "500": error(500, "InternalError"),
    "502": error(502, "BadGateway"),
    "429": error(429, "TooManyRequests", Retry_After="0"),
    "400-timeout": error(400, "RequestTimeout"),
    "reset": change(cut_after=0),
    "cut": change(cut_after=10),
    "cut-later": change(cut_after=700),
    "stall": change(stall_after=20),
    "no-range": change(status=200, headers={}, body=b"another thing"),
    "wrong-range": change(headers={"Content-Range": "bytes 0-9/100"}, body=b"0123456789"),
    "too-short": resize(-5),
    "too-long": resize(5),
}


@pytest.mark.slow
@pytest.mark.parametrize("action", PASSING.values(), ids=PASSING.keys())
def test_a_failure_that_passes_costs_no_row(server: S3Server, impatient_access: StoreAccess, action: Any) -> None:
    total = upload(server, compression="none")
    server.rules.append(Rule(action, **LATER))
    loader = loader_of(impatient_access)
    assert_rows(loader, total)
    assert server.rules[0].seen > 6


@pytest.mark.parametrize("by", [-5, 5])
def test_a_body_of_another_length_than_its_range_is_asked_for_again(
    server: S3Server, access: StoreAccess, by: int
) -> None:
    url = server.put("a", bytes(range(100)))
    server.rules.append(Rule(resize(by)))
    (data,) = open_store(url, access).ranges(url, [(10, 50)])
    assert bytes(data) == bytes(range(10, 60))
    assert len(server.requests) == 2
    server.rules[0].count = None
    with pytest.raises(StoreError, match=r"the reply (ended after|is longer than)"):
        open_store(url, access).ranges(url, [(10, 50)])


def test_discovery_tries_again_too(server: S3Server, access: StoreAccess) -> None:
    total = upload(server)
    server.rules += [Rule(error(503, "SlowDown"), method, count=2) for method in ("GET", "HEAD")]
    server.rules += [Rule(error(500, "InternalError"), key=r"^$")]
    inventory = scan_files("s3://bucket/data", storage_options=access)
    assert inventory.num_rows == total


@pytest.mark.slow
def test_a_reply_that_stops_goes_on_where_it_stopped(server: S3Server, watchful_access: StoreAccess) -> None:
    url = server.put("big", bytes(range(256)) * 4096)
    server.rules.append(Rule(change(stall_after=600_000)))
    (data,) = open_store(url, watchful_access).ranges(url, [(0, 1 << 20)])
    assert bytes(data) == bytes(range(256)) * 4096
    second = server.requests[1]
    assert second.span is not None
    assert second.span == (600_000, 1 << 20)
    assert second.if_match == f'"{server.objects["big"][1]}"'


@pytest.mark.slow
def test_a_reply_that_stops_is_logged_with_what_had_come_before_and_since(
    server: S3Server, access: StoreAccess, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.put("big", bytes(100_000))
    server.rules.append(Rule(change(stall_after=70_000)))
    store = open_store(url, patience(access, progress_seconds=3, progress_bytes=60_000))
    (data,) = store.ranges(url, [(0, 100_000)])
    assert bytes(data) == bytes(100_000)
    (found,) = re.findall(r"StalledError: (\d+) bytes in 3 s, (\d+) of 100000 before that", caplog.text)
    assert int(found[0]) + int(found[1]) == 70_000
    assert int(found[1]) >= 60_000


def wait(server: S3Server, request: Any, reply: Any) -> None:
    """Answers only when the test is over, or after longer than any client should wait."""
    server.outlasted += not server.done.wait(10)


@pytest.mark.cases(2)
@pytest.mark.processes
@pytest.mark.parametrize("action", [wait, change(stall_after=20), change(drip=1)], ids=["silent", "stall", "drip"])
@pytest.mark.parametrize("backend", ["fsspec", "obstore"])
def test_the_cap_ends_the_attempt_under_way_too(server: S3Server, action: Action, backend: Any) -> None:
    if backend == "obstore":
        pytest.importorskip("obstore")
    # Each byte is progress, so that only the cap can end a slow body.
    policy = RetryPolicy(most_seconds=4, progress_seconds=30, progress_bytes=1, first_delay_seconds=0.01)
    remote = RemoteOptions(backend=backend, retry=policy, keep_footers=False)
    access = StoreAccess.of(server.storage_options, remote=remote)
    url = server.put("a", bytes(100_000))
    store = open_store(url, access)
    planned = store.stat(url).identity
    for method, ask in (("GET", lambda: store.ranges(url, [(0, 100_000)], planned)), ("HEAD", lambda: store.stat(url))):
        if method == "HEAD" and action is not wait:
            continue
        server.rules[:] = [Rule(error(503, "SlowDown"), method), Rule(action, method, first=1, count=None)]
        with pytest.raises(StoreError, match=r"HTTP 503.*2 attempts in"):
            ask()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fsspec", "obstore"])
def test_a_silent_reply_is_asked_for_a_second_time_whatever_the_cap(server: S3Server, backend: Any) -> None:
    if backend == "obstore":
        pytest.importorskip("obstore")
    remote = RemoteOptions(backend=backend, keep_footers=False)
    url = server.put("a", bytes(100_000))
    planned = open_store(url, StoreAccess.of(server.storage_options, remote=remote)).stat(url).identity

    def read(progress_seconds: float) -> list[Any]:
        policy = RetryPolicy(most_seconds=0.1, progress_seconds=progress_seconds, first_delay_seconds=0.01)
        access = StoreAccess.of(server.storage_options, remote=replace(remote, retry=policy))
        return open_store(url, access).ranges(url, [(0, 100_000)], planned)

    server.rules[:] = [Rule(wait, "GET")]
    assert read(progress_seconds=3) == [bytes(100_000)]  # the second reply comes in time on a busy machine too
    server.rules[:] = [Rule(wait, "GET", count=None)]
    with pytest.raises(StoreError, match=r"2 attempts in"):
        read(progress_seconds=0.5)


def test_the_time_to_open_a_client_is_left_out() -> None:
    attempts = Attempts(RetryPolicy(most_seconds=3, progress_seconds=1))
    attempts.leave_out(100)
    assert attempts.left_seconds > 100


def test_by_default_a_body_of_1500_bytes_a_second_is_asked_for_again_which_is_logged() -> None:
    policy = RetryPolicy()
    assert policy.progress_bytes / policy.progress_seconds > 1500


class PastAttempts(Attempts):
    """Attempts whose clock the test sets."""

    elapsed_seconds = 0.0


@pytest.mark.parametrize(
    ("num_bytes", "at_seconds", "cap"), [(32 << 20, 1, 121), (32 << 20, 300, 420), (180_000, 120, 122.7), (0, 50, 120)]
)
def test_bytes_that_come_in_extend_the_cap_by_no_more_than_they_took(
    num_bytes: int, at_seconds: float, cap: float
) -> None:
    attempts = PastAttempts(RetryPolicy())
    attempts.elapsed_seconds = at_seconds
    attempts.received(num_bytes)
    for elapsed, goes_on in ((cap - 11, True), (cap + 1, False)):
        attempts.elapsed_seconds = elapsed
        attempts.received(num_bytes)  # nothing new
        assert attempts.left_seconds == pytest.approx(cap - elapsed, abs=0.1)
        assert (attempts.failed(Diagnosis(kind=Kind.TRANSIENT), can_renew=False) is not None) == goes_on


NO_CONNECTION = Diagnosis(kind=Kind.TRANSIENT, unreached="server")


def test_a_server_that_never_answered_is_given_up_in_20_seconds_and_one_that_did_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for is_first, attempt_seconds, most in ((True, 0.0, 20.0), (True, 10.0, 20.0), (False, 0.0, 120.0)):
        now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: now)  # noqa: B023
        attempts = Attempts(RetryPolicy())
        wait: float | None = 0.0
        while wait is not None:
            now += wait + attempt_seconds
            wait = attempts.failed(NO_CONNECTION, can_renew=False, is_first_contact=is_first)
        assert now <= most
        assert now >= most / 3
        assert attempts.failed(Diagnosis(kind=Kind.TRANSIENT, status=503), can_renew=False) is not None or not is_first


def test_a_name_that_is_not_known_is_given_up_at_once_before_the_first_contact() -> None:
    unknown = replace(NO_CONNECTION, unreached="name")
    assert Attempts(RetryPolicy()).failed(unknown, can_renew=False, is_first_contact=True) is None
    assert Attempts(RetryPolicy()).failed(unknown, can_renew=False) is not None


@pytest.fixture
def unknown_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that no server of names knows; where there is none, the system would not say so."""

    def no_address(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", no_address)
    return "nowhere.invalid"


@pytest.mark.parametrize("url", ["http://{}/a.parquet", "http://{}/data/", "https://{}/*.parquet"])
def test_an_unknown_host_is_named_after_one_attempt(url: str, unknown_name: str) -> None:
    pytest.importorskip("aiohttp")
    with pytest.raises(
        StoreError, match=r"no connection to nowhere\.invalid, a name that is not known here \(1 attempt"
    ):
        open_store(url.format(unknown_name), StoreAccess.of()).list_files(url.format(unknown_name))


def test_a_planned_read_waits_for_a_server_that_is_gone_longer_than_a_first_contact(
    unknown_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp")
    failed = Attempts.failed

    def two_attempts(self: Attempts, *args: Any, **rest: Any) -> float | None:
        delay = failed(self, *args, **rest)
        return delay if self.count == 1 else None

    monkeypatch.setattr(Attempts, "failed", two_attempts)
    url = f"http://{unknown_name}/a.parquet"
    with pytest.raises(StoreError, match=r"\(2 attempts"):
        open_store(url, StoreAccess.of()).ranges(url, [(0, 10)], "etag")


def test_a_redirect_without_a_place_names_the_region(server: S3Server, access: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(error(301, "PermanentRedirect", x_amz_bucket_region="eu-west-3"), count=None))
    with pytest.raises(StoreError, match=r"the bucket is in region eu-west-3 .*'region_name': 'eu-west-3'"):
        open_store(url, access).ranges(url, [(0, 4)])


def test_a_plain_400_says_nothing_of_credentials() -> None:
    with web_server() as web:
        web.status = 400
        url = web.url("a")
        with pytest.raises(StoreError, match="HTTP 400") as caught:
            open_store(url, StoreAccess.of(remote=RemoteOptions(retry=RetryPolicy()))).ranges(url, [(0, 4)])
    assert "credentials" not in str(caught.value)


def test_an_archived_object_is_told_as_that_and_not_as_missing_rights(server: S3Server, access: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(error(403, "InvalidObjectState"), count=None))
    with pytest.raises(StoreError, match=r"s3://bucket/a: cannot read, the object is archived .*Restore it"):
        open_store(url, access).ranges(url, [(0, 4)])


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "InvalidRequest"), (501, "NotImplemented")])
def test_a_refusal_is_final_and_names_bucket_key_and_reason(
    server: S3Server, access: StoreAccess, status: int, code: str
) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(error(status, code), count=None))
    with pytest.raises(
        StoreError, match=rf"s3://bucket/a.*read.*HTTP {status} {code}, request REQUEST-ID; 1 attempt in"
    ):
        open_store(url, access).ranges(url, [(0, 4)])
    assert server.rules[0].seen == 1


def test_a_missing_object_is_asked_for_once(server: S3Server, access: StoreAccess) -> None:
    with pytest.raises(NoDataError, match="s3://bucket/nope"):
        open_store("s3://bucket/nope", access).ranges("s3://bucket/nope", [(0, 4)])
    assert len(server.requests) == 1


@pytest.mark.full
@pytest.mark.processes
def test_trying_ends_with_the_cap_and_says_how_long_it_tried(server: S3Server, access: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    store = open_store(url, patience(access, most_seconds=4, most_delay_seconds=0.05))
    store.stat(url)  # opens the client
    server.rules.append(Rule(error(503, "SlowDown"), count=None))
    before = thread_counts().retries
    with pytest.raises(StoreError, match=r"HTTP 503 SlowDown, request REQUEST-ID; \d+ attempts in \d+\.\d s"):
        store.ranges(url, [(0, 4)])
    attempts = thread_counts().retries - before + 1
    assert attempts - 1 <= server.rules[0].seen <= attempts  # the cap may cut the last attempt before it is sent
    assert attempts >= 2


def test_retry_after_is_waited_for_and_counts_against_the_cap(server: S3Server, access: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(error(429, "TooManyRequests", Retry_After="30"), count=None))
    with pytest.raises(StoreError, match="1 attempt in"):
        open_store(url, access).ranges(url, [(0, 4)])


def test_a_reply_that_always_lies_about_its_range_is_given_up(server: S3Server, access: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(change(headers={"Content-Range": "bytes 1-4/10"}, body=b"1234"), count=None))
    with pytest.raises(StoreError, match=r"asked for bytes 0-3, got bytes 1-4/10"):
        open_store(url, access).ranges(url, [(0, 4)])
    assert server.rules[0].seen == 4


@pytest.mark.processes
def test_a_server_that_is_gone_is_an_error_within_the_cap() -> None:
    gone = S3Server()
    gone.close()
    policy = RetryPolicy(most_seconds=4, most_delay_seconds=0.05)
    access = StoreAccess.of(gone.storage_options, remote=RemoteOptions(retry=policy))
    with pytest.raises(StoreError, match=r"s3://bucket/a: cannot read.* \(\d+ attempts? in"):
        open_store("s3://bucket/a", access).ranges("s3://bucket/a", [(0, 4)])


def test_one_bad_range_does_not_ask_again_for_the_good_ones(server: S3Server, access: StoreAccess) -> None:
    url = server.put("a", bytes(4 << 20))
    server.rules.append(Rule(error(503, "SlowDown"), first=1))
    spans = [(0, 10), (2 << 20, 10), ((4 << 20) - 10, 10)]
    assert [len(data) for data in open_store(url, access).ranges(url, spans)] == [10, 10, 10]
    assert len(server.requests) == 4


def failing(bad: dict[int, Action], waits: dict[int, threading.Event]) -> Action:
    """Fails requests by their first byte; some only once an event is set, the others set all of them."""

    def act(server: S3Server, request: Request, reply: Any) -> None:
        assert request.span is not None
        start = request.span[0]
        if start in bad:
            bad[start](server, request, reply)
        if start in waits:
            waits[start].wait(10)
        else:
            for event in waits.values():
                event.set()

    return act


SPANS = [(place << 20, 4) for place in (0, 4, 8)]  # too far apart to share a request


def test_of_parallel_requests_that_fail_for_good_the_first_in_order_of_bytes_is_told(
    server: S3Server, access: StoreAccess
) -> None:
    server.put("a", bytes(9 << 20))
    codes = {4 << 20: error(403, "AccessDenied"), 8 << 20: error(405, "MethodNotAllowed")}
    server.rules.append(Rule(failing(codes, {4 << 20: threading.Event()}), key="a", count=None))
    with pytest.raises(StoreError, match="AccessDenied"):
        open_store("s3://bucket/a", access).ranges("s3://bucket/a", SPANS)
    assert len(server.of("GET")) == 3


def test_a_parallel_request_that_fails_for_good_is_told_at_once_whatever_else_would_pass(
    server: S3Server, access: StoreAccess
) -> None:
    server.put("a", bytes(9 << 20))
    codes = {0: error(503, "SlowDown"), 8 << 20: error(403, "AccessDenied")}
    server.rules.append(Rule(failing(codes, {}), key="a", count=None))
    with pytest.raises(StoreError, match="AccessDenied"):
        open_store("s3://bucket/a", access).ranges("s3://bucket/a", SPANS)
    assert len(server.of("GET")) == 3
