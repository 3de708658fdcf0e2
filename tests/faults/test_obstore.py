"""obstore as the backend: the same rows, and a clear refusal in a process that was forked after its use."""

import importlib.util
import multiprocessing
from typing import Any

import pytest

from tests.faults.conftest import QUICK
from tests.faults.s3_server import Rule, S3Server, error, replace_object
from tests.faults.tables import assert_rows, upload
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._store import RemoteOptions, StoreAccess, open_store
from torch_dataloader_utils._store import obstore as backend
from torch_dataloader_utils.errors import ConfigError, FileChangedError, LoaderError, NoDataError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("obstore") is None, reason="obstore is not installed")


@pytest.fixture
def fast(server: S3Server) -> StoreAccess:
    remote = RemoteOptions(backend="obstore", retry=QUICK, keep_footers=False)
    return StoreAccess.of(server.storage_options, remote=remote)


def test_rows_are_the_same_and_failures_pass(server: S3Server, fast: StoreAccess) -> None:
    total = upload(server)
    server.rules.append(Rule(error(503, "SlowDown"), key="data/1"))
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=64, num_workers=0, storage_options=fast
    )
    assert_rows(loader, total)


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
