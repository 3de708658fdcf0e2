"""obstore as the backend: the same rows, and a clear refusal in a process that was forked after its use."""

import importlib.util
import multiprocessing
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.conftest import IMPATIENT, QUICK, WATCHFUL
from tests.faults.s3_server import Action, Rule, S3Server, change, error, replace_object
from tests.faults.tables import assert_rows, upload
from tests.faults.test_retries import LATER, PASSING, resize
from tests.faults.test_retry_log import retries
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe.counters import thread_counts
from torch_dataloader_utils._store import RemoteOptions, StoreAccess, open_store, pending_reads
from torch_dataloader_utils._store import obstore as backend
from torch_dataloader_utils.errors import ConfigError, FileChangedError, LoaderError, NoDataError, StoreError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("obstore") is None, reason="obstore is not installed")


@pytest.fixture
def fast(server: S3Server) -> StoreAccess:
    remote = RemoteOptions(backend="obstore", retry=QUICK, keep_footers=False)
    return StoreAccess.of(server.storage_options, remote=remote)


@pytest.mark.parametrize("action", PASSING.values(), ids=PASSING.keys())
def test_rows_are_the_same_and_failures_pass(
    server: S3Server, fast: StoreAccess, action: Action, caplog: pytest.LogCaptureFixture
) -> None:
    total = upload(server, compression="none")
    server.rules.append(Rule(action, **LATER))
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data",
        batch_size=64,
        num_workers=0,
        storage_options=replace(fast, remote=replace(fast.remote, retry=IMPATIENT)),
    )
    assert_rows(loader, total)
    assert server.rules[0].seen > 6
    assert retries(caplog)


def test_each_attempt_is_counted_logged_and_ours(
    server: S3Server, fast: StoreAccess, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(error(503, "SlowDown"), count=2))
    before = thread_counts().retries
    assert bytes(open_store(url, fast).ranges(url, [(0, 4)])[0]) == b"0123"
    assert server.rules[0].seen == 3
    assert thread_counts().retries - before == 2
    assert "cannot read yet (HTTP 503 SlowDown; 1 attempt" in retries(caplog)[0].getMessage()


@pytest.mark.slow
def test_a_body_that_breaks_off_goes_on_where_it_stopped(server: S3Server, fast: StoreAccess) -> None:
    data = bytes(range(256)) * 4096
    url = server.put("big", data)
    server.rules.append(Rule(change(stall_after=600_000)))
    store = open_store(url, replace(fast, remote=replace(fast.remote, retry=WATCHFUL)))
    assert bytes(store.ranges(url, [(0, 1 << 20)])[0]) == data
    span = server.requests[1].span
    assert span is not None
    assert 500_000 < span[0] <= 600_000


def test_a_short_body_is_a_fault_of_the_store(server: S3Server, fast: StoreAccess) -> None:
    url = server.put("a", bytes(100))
    server.rules.append(Rule(resize(-5), count=None))
    with pytest.raises(StoreError, match="the reply ended after 45 of 50 bytes"):
        open_store(url, fast).ranges(url, [(10, 50)], server.objects["a"][1])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (error(301, "PermanentRedirect"), "the bucket is in another region or at another address"),
        (error(400, "InvalidRequest"), r"HTTP 400 InvalidRequest; 1 attempt"),
        (error(403, "AccessDenied"), r"no permission to read .*HTTP 403 AccessDenied"),
        (error(501, "NotImplemented"), r"HTTP 501 NotImplemented; 1 attempt"),
    ],
)
def test_refusals_are_final_and_say_why(server: S3Server, fast: StoreAccess, action: Action, message: str) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(action, count=None))
    with pytest.raises(StoreError, match=message):
        open_store(url, fast).ranges(url, [(0, 4)])
    assert server.rules[0].seen == 1


def test_an_epoch_has_no_look_ups(server: S3Server, fast: StoreAccess) -> None:
    total = upload(server)
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=64, num_workers=0, storage_options=fast
    )
    server.forget()
    assert_rows(loader, total)
    assert server.of("HEAD") == []
    assert all(request.if_match for request in server.requests)


def test_a_changed_and_a_missing_object_are_the_errors_of_every_store(server: S3Server, fast: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    store = open_store(url, fast)
    planned = store.stat(url).identity
    assert planned == server.objects["a"][1]
    server.rules.append(Rule(replace_object("a", b"abcdefghij")))
    assert bytes(store.ranges(url, [(0, 4)], planned)[0]) == b"0123"
    with pytest.raises(FileChangedError, match="not the file that was planned") as caught:
        store.ranges(url, [(0, 4)], planned)
    assert "412" in str(caught.value)
    assert "Debug source" not in str(caught.value)
    with pytest.raises(NoDataError):
        store.ranges("s3://bucket/nope", [(0, 4)])


def _read(url: str, access: StoreAccess, answer: Any) -> None:
    try:
        open_store(url, access).ranges(url, [(0, 4)])
        answer.send("read")
    except LoaderError as error:
        answer.send(f"{type(error).__name__}: {error}")


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_forked_after_its_use_is_refused_and_the_parent_goes_on(server: S3Server, fast: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    store = open_store(url, fast)
    assert bytes(store.ranges(url, [(0, 4)])[0]) == b"0123"
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_read, args=(url, fast, theirs))
    child.start()
    assert ours.poll(60)
    assert "forkserver" in ours.recv()
    child.join(60)
    assert child.exitcode == 0
    assert bytes(store.ranges(url, [(4, 4)])[0]) == b"4567"


def test_a_process_that_inherited_obstore_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend._state, "was_inherited", True)
    with pytest.raises(ConfigError, match="forkserver"):
        backend.open_obstore("s3", {}, RemoteOptions(backend="obstore"))


@pytest.mark.parametrize("url", ["s3://b/x", "gs://b/x", "az://c/x", "https://localhost:1/x"])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"allow_http": True, "timeout": "1s"},
            r"allow_http, timeout of storage_options.*'client_options': {'allow_http'",
        ),
        ({"client_kwargs": {"allow_http": True}}, "allow_http of storage_options"),
        ({"nonsense": 1}, "does not take one of the storage_options nonsense "),
        ({"client_options": {"bogus": 1}}, "bogus"),
        ({"client_options": 5}, "client_options"),
        ({"config": {"allow_http": True}}, "does not take one of the storage_options config "),
    ],
)
def test_options_that_obstore_does_not_take_are_named(url: str, options: dict[str, Any], named: str) -> None:
    access = StoreAccess.of(options, remote=RemoteOptions(backend="obstore", retry=QUICK))
    with pytest.raises(ConfigError, match=named):
        open_store(url, access).stat(url)


class PanicException(BaseException):
    """As a module that pyo3 makes raises it."""


def test_a_panic_while_a_file_is_read_is_an_error_of_the_store(
    server: S3Server, fast: StoreAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.put("a", b"0123456789")
    store = open_store(url, fast)
    store.stat(url)

    async def panic(*_: Any) -> None:
        raise PanicException("index out of bounds")

    monkeypatch.setitem(pending_reads._FETCHES, "obstore", panic)
    with pytest.raises(StoreError, match=r"cannot read .*PanicError: index out of bounds"):
        store.ranges(url, [(0, 4)])
