"""Credentials that expire, and secrets that must show nowhere."""

import json
import logging
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem

from tests.faults.conftest import QUICK
from tests.faults.s3_server import Rule, S3Server, error
from tests.faults.tables import assert_rows, upload
from torch_dataloader_utils import Decoding, StructuredDataset
from torch_dataloader_utils._store import RemoteOptions, StoreAccess, open_store
from torch_dataloader_utils.discover import load_inventory, save_inventory, scan_files
from torch_dataloader_utils.errors import ConfigTypeError, StoreError

REMOTE = RemoteOptions(retry=QUICK, keep_footers=False)


@dataclass(frozen=True)
class TokenFile:
    """Credentials as a daemon leaves them in a file; asked for again by any process that needs them."""

    path: str

    def __call__(self) -> dict[str, str]:
        return {"key": "test-key", "secret": "test-secret", "token": Path(self.path).read_text()}


@pytest.fixture
def tokens(tmp_path: Path, server: S3Server) -> TokenFile:
    (tmp_path / "token").write_text("token-one")
    server.accepted_tokens = {"token-one"}
    return TokenFile(str(tmp_path / "token"))


def endpoint(server: S3Server) -> dict[str, Any]:
    return {"client_kwargs": server.storage_options["client_kwargs"]}


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_expired_credentials_are_asked_for_again_wherever_rows_are_read(
    server: S3Server, tokens: TokenFile, workers: int
) -> None:
    total = upload(server)
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data",
        batch_size=50,
        num_workers=workers,
        storage_options=endpoint(server),
        credentials=tokens,
        remote=REMOTE,
        decoding=Decoding(ahead_bytes=1),
    )

    def rotate(server: S3Server, request: Any, reply: Any) -> None:
        Path(tokens.path).write_text("token-two")
        server.accepted_tokens = {"token-two"}

    server.rules.append(Rule(rotate, key="data/1"))
    assert_rows(loader, total)
    assert {request.token for request in server.requests} == {"token-one", "token-two"}


def test_without_a_function_expired_credentials_are_an_error_that_names_it(server: S3Server) -> None:
    url = server.put("a", b"0123456789")
    server.accepted_tokens = {"another"}
    access = StoreAccess.of(server.storage_options, remote=REMOTE)
    with pytest.raises(StoreError, match=r"credentials have expired \(HTTP 400 ExpiredToken.*1 attempt.*credentials="):
        open_store(url, access).ranges(url, [(0, 4)])


def test_a_function_that_gives_expired_credentials_is_asked_once_more(server: S3Server, tokens: TokenFile) -> None:
    url = server.put("a", b"0123456789")
    server.accepted_tokens = {"another"}
    access = StoreAccess.of(endpoint(server), tokens, REMOTE)
    with pytest.raises(StoreError, match=r"credentials have expired.*2 attempts"):
        open_store(url, access).ranges(url, [(0, 4)])
    assert len(server.requests) == 2


@pytest.mark.parametrize("backend", ["fsspec", "obstore"])
def test_what_the_server_repeats_of_a_token_shows_nowhere(
    server: S3Server, tokens: TokenFile, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if backend == "obstore":
        pytest.importorskip("obstore")
    url = server.put("a", b"0123456789")
    server.accepted_tokens = {"another"}
    access = StoreAccess.of(endpoint(server), tokens, RemoteOptions(backend=backend, retry=QUICK, keep_footers=False))
    ours = caplog.at_level(logging.DEBUG, "torch_dataloader_utils")
    with ours, pytest.raises(StoreError, match="ExpiredToken") as caught:
        open_store(url, access).ranges(url, [(0, 4)])
    assert {request.token for request in server.requests} == {"token-one"}
    texts = [*traceback.format_exception(caught.value), repr(caught.value), caplog.text, *map(str, caplog.records)]
    error: BaseException | None = caught.value
    while error is not None:
        texts += [repr(error), str(error.args), str(vars(error)), repr(pickle.dumps(error.args))]
        error = error.__cause__ or error.__context__
    assert "token-one" not in "".join(texts)
    assert "asking for new credentials" in caplog.text


@pytest.mark.slow
def test_keys_that_were_rotated_are_asked_for_again(server: S3Server, tokens: TokenFile) -> None:
    url = server.put("a", b"0123456789")
    rotated = Rule(error(403, "InvalidAccessKeyId"), count=None)
    server.rules.append(rotated)
    with pytest.raises(StoreError, match=r"or the credentials have expired \(HTTP 403 InvalidAccessKeyId.*2 attempts"):
        open_store(url, StoreAccess.of(endpoint(server), tokens, REMOTE)).ranges(url, [(0, 4)])
    rotated.count, rotated.seen = 1, 0
    (data,) = open_store(url, StoreAccess.of(endpoint(server), tokens, REMOTE)).ranges(url, [(0, 4)])
    assert bytes(data) == b"0123"


def test_a_look_up_with_expired_credentials_has_no_reason_to_tell_and_is_tried_again(
    server: S3Server, tokens: TokenFile
) -> None:
    url = server.put("a", b"0123456789")
    store = open_store(url, StoreAccess.of(endpoint(server), tokens, REMOTE))
    assert store.stat(url).size == 10
    Path(tokens.path).write_text("token-two")
    server.accepted_tokens = {"token-two"}
    assert store.stat(url).size == 10


class ExpiredTokenError(Exception):
    """The error of a client."""

    status = 401


HICCUP = "<Error><Message>hiccup</Message><Token>canary</Token></Error>"


class UnsteadyStore(AbstractFileSystem):
    """A store that clients with a new token reach after some failures to connect."""

    protocol = "unsteady"
    cachable = False
    failures_left = 0

    def __init__(self, token: str, **options: Any) -> None:
        super().__init__(**options)
        self.token = token
        if token == "token-two" and UnsteadyStore.failures_left:
            UnsteadyStore.failures_left -= 1
            raise ConnectionResetError(HICCUP)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        if self.token != "token-two":
            raise ExpiredTokenError("expired")
        return {"name": path, "size": 7, "type": "file"}


def unsteady_store(failures: int, seconds: float) -> Any:
    fsspec.register_implementation("unsteady", UnsteadyStore, clobber=True)
    UnsteadyStore.failures_left = failures
    tokens = iter(["token-one"])
    remote = replace(REMOTE, retry=replace(QUICK, most_seconds=seconds))
    access = StoreAccess.of(credentials=lambda: {"token": next(tokens, "token-two")}, remote=remote)
    return open_store("unsteady://bucket/a", access)


def test_new_credentials_that_do_not_reach_the_store_at_once_are_tried_again() -> None:
    assert unsteady_store(failures=2, seconds=20).stat("unsteady://bucket/a").size == 7
    assert UnsteadyStore.failures_left == 0


def test_new_credentials_that_never_reach_the_store_are_an_error_without_what_the_server_repeats() -> None:
    store = unsteady_store(failures=1000, seconds=0.001)
    with pytest.raises(StoreError, match=r"/a: cannot look up .*ConnectionResetError: hiccup") as caught:
        store.stat("unsteady://bucket/a")
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_a_function_that_fails_is_named_and_what_it_says_is_not_repeated(server: S3Server) -> None:
    def broken() -> dict[str, str]:
        raise RuntimeError("canary-5c1f")

    with pytest.raises(StoreError, match=r"credentials function .*broken failed \(RuntimeError") as caught:
        scan_files("s3://bucket/data", storage_options=StoreAccess.of(endpoint(server), broken, REMOTE))
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigTypeError, match="credentials is a dict"):
        StructuredDataset("s3://bucket/data", credentials={"key": "k"})  # type: ignore[arg-type]


def test_a_store_that_has_been_used_pickles_without_what_the_function_gave(server: S3Server, tokens: TokenFile) -> None:
    url = server.put("a", b"0123456789")
    store = open_store(url, StoreAccess.of(endpoint(server), tokens, REMOTE))
    store.stat(url)
    copy = pickle.dumps(store)
    assert b"token-one" not in copy
    assert pickle.loads(copy).stat(url).size == 10


CANARIES = {"key": "canary-key-8d21", "secret": "canary-secret-77aa", "token": "canary-token-b3f0"}


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """All that this library logs, at any level, and what others log above debugging."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(logging.Formatter().format(record))  # type: ignore[method-assign]
    ours, root = logging.getLogger("torch_dataloader_utils"), logging.getLogger()
    before = ours.level
    ours.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield lines
    root.removeHandler(handler)
    ours.setLevel(before)


@pytest.mark.processes
def test_no_secret_is_found_in_anything_that_is_shown_or_stored(
    server: S3Server, tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "cache"))
    upload(server)
    options = {**endpoint(server), **CANARIES}
    access = StoreAccess.of(options, remote=RemoteOptions(retry=QUICK))
    inventory = scan_files("s3://bucket/data", storage_options=access)
    save_inventory(inventory, tmp_path / "inventory.parquet")
    loader, dataset = StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=50, num_workers=2, storage_options=options, inventory=inventory, shuffle=True
    )
    plan = dataset.plan
    next(iter(loader))
    shown = [repr(access), repr(loader), repr(dataset), str(vars(dataset)), repr(inventory), repr(dataset.pipeline)]
    shown += [json.dumps(loader.state_dict()), repr(plan), plan.explain(), str(plan.to_arrow().to_pylist())]
    shown += [repr(loader.metrics()), repr(load_inventory(tmp_path / "inventory.parquet"))]
    shown += [repr(pickle.dumps(inventory)), repr(pickle.dumps(plan))]
    for action in (error(403, "AccessDenied"), error(403, "SignatureDoesNotMatch"), error(400, "ExpiredToken")):
        server.rules[:] = [Rule(action, method, count=None) for method in ("GET", "HEAD")]
        with pytest.raises(StoreError) as caught:
            open_store("s3://bucket/data", access).ranges("s3://bucket/data/0.parquet", [(0, 4)])
        shown.append("".join(traceback.format_exception(caught.value)))
        with pytest.raises(StoreError) as caught:
            scan_files("s3://bucket/data", storage_options=access)
        shown.append("".join(traceback.format_exception(caught.value)))
    stored = [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(stored) == 5  # the inventory, three footers and the journal of the cache
    for text in [*shown, *stored, *logged]:
        assert "canary" not in text
    assert {request.token for request in server.requests} == {CANARIES["token"]}  # they were in use
