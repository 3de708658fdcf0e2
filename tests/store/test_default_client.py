"""For S3, obstore is the default where it does what s3fs does: the same options, credentials, errors and rows."""

import logging
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import QUICK
from tests.faults.s3_server import Rule, S3Server, error
from tests.faults.tables import assert_rows, upload
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._store import FsspecStore, RemoteOptions, StoreAccess, open_store
from torch_dataloader_utils._store.client import open_client
from torch_dataloader_utils._store.default_client import is_for_s3fs
from torch_dataloader_utils._store.diagnosis import Diagnosis, Kind
from torch_dataloader_utils._store.obstore import PanicError, no_panic
from torch_dataloader_utils.errors import LoaderError

pytest.importorskip("obstore")
pytest.importorskip("s3fs")

KEYS = {"key": "test-key", "secret": "test-secret"}
REGION = {"client_kwargs": {"region_name": "eu-central-1"}}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "env-key", "AWS_SECRET_ACCESS_KEY": "env-secret"}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials or configuration of this machine."""
    for name in ("AWS_CA_BUNDLE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", *CREDENTIALS, "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    made = S3Server()
    yield made
    made.close()


def client_of(options: dict[str, Any]) -> str:
    """The package of the client that the default takes."""
    return type(open_client("s3://bucket/a", "s3", StoreAccess.of(options))).__module__.partition(".")[0]


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (KEYS | REGION, {}),
        (KEYS | {"token": "t"} | REGION, {}),
        (KEYS | {"endpoint_url": "http://host:9000"}, {}),
        (KEYS | {"client_kwargs": {"endpoint_url": "http://host:9000"}}, {"AWS_CA_BUNDLE": "/ca.pem"}),
        (KEYS, {"AWS_DEFAULT_REGION": "eu-central-1"}),
        (KEYS, {"AWS_ENDPOINT_URL": "http://host:9000"}),
        ({"anon": True} | REGION, {}),
        (REGION, CREDENTIALS),
    ],
)
def test_obstore_takes_what_it_does_as_s3fs_does(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert client_of(options) == "obstore"


@pytest.mark.parametrize(
    ("options", "environment", "says"),
    [
        (KEYS, {}, "name the region of the bucket"),
        (KEYS | REGION | {"requester_pays": True}, {}, "obstore does not know requester_pays of storage_options"),
        (KEYS | REGION | {"config_kwargs": {"connect_timeout": 1}}, {}, "config_kwargs"),
        (KEYS | {"client_kwargs": {"region_name": "x", "verify": False}}, {}, "verify"),
        (REGION, {}, "no complete credentials"),
        ({"key": "k"} | REGION, {}, "no complete credentials"),
        (KEYS | REGION, {"AWS_CA_BUNDLE": "/ca.pem"}, "AWS_CA_BUNDLE"),
        (KEYS | REGION, {"AWS_USE_FIPS_ENDPOINT": "true"}, "AWS_USE_FIPS_ENDPOINT"),
    ],
)
def test_s3fs_takes_the_rest_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    environment: dict[str, str],
    says: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, "torch_dataloader_utils.clients"):
        assert client_of(options) == "s3fs"
    assert says in caplog.text
    assert "test-secret" not in caplog.text


@pytest.mark.parametrize("url", ["s3://arn:aws:s3:eu-1:1:accesspoint/p/a", "s3://bucket/a?versionId=b"])
def test_a_url_with_more_than_a_key_is_read_by_s3fs(url: str) -> None:
    assert open_store(url, StoreAccess.of(KEYS | REGION))._access_for("read", url, ()).remote.backend == "fsspec"


def test_a_profile_names_region_and_credentials(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-central-1\n")
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    assert client_of({}) == "obstore"
    (tmp_path / "config").write_text("[default]\nregion = eu-central-1\ns3 =\n  addressing_style = virtual\n")
    assert client_of({}) == "s3fs"


def test_no_token_of_the_environment_joins_the_keys_of_the_user(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    s3.reset()
    url = s3.put("a", b"0123456789")
    open_store(url, StoreAccess.of(s3.storage_options)).ranges(url, [(0, 4)])
    options = {"endpoint_url": f"http://127.0.0.1:{s3.port}"}
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    open_store(url, StoreAccess.of(options)).ranges(url, [(0, 4)])
    assert [request.token for request in s3.requests] == ["", "env-token"]


def message(store: FsspecStore, action: str, url: str) -> tuple[type[Exception], str]:
    """Class and beginning of the error of an action."""
    actions = {
        "read": lambda: store.ranges(url, [(0, 4)], "planned"),
        "tail": lambda: store.tail(url, 4),
        "list": lambda: store.list_files("s3://bucket/"),
    }
    with pytest.raises(LoaderError) as caught:
        actions[action]()
    return type(caught.value), str(caught.value).partition(" (")[0]


@pytest.fixture(scope="module")
def accesses(s3: S3Server) -> list[StoreAccess]:
    """By s3fs, by obstore and by default."""
    remotes = [RemoteOptions(backend=each, retry=QUICK, keep_footers=False) for each in ("fsspec", "obstore", "auto")]
    return [StoreAccess.of(s3.storage_options, remote=remote) for remote in remotes]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "InvalidRequest"),
        (400, "ExpiredToken"),
        (401, "Unauthorized"),
        (403, "AccessDenied"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (403, "InvalidObjectState"),
        (404, "NoSuchKey"),
        (404, "NoSuchBucket"),
        (412, "PreconditionFailed"),
        (416, "InvalidRange"),
        (501, "NotImplemented"),
        (503, "SlowDown"),
    ],
)
def test_both_clients_have_one_error_for_each_answer(
    s3: S3Server, accesses: list[StoreAccess], status: int, code: str
) -> None:
    s3.reset()
    url = s3.put("a", b"0123456789")
    s3.rules[:] = [Rule(error(status, code), method, key="", count=None) for method in ("GET", "HEAD")]
    hasty = replace(QUICK, most_seconds=0.01)
    for action in ("read", "tail", "list"):
        hasty_accesses = [replace(each, remote=replace(each.remote, retry=hasty)) for each in accesses]
        seen = [message(open_store(url, access), action, url) for access in hasty_accesses]
        assert seen[0] == seen[1] == seen[2]


def test_a_bucket_elsewhere_is_read_by_s3fs_from_then_on(s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    s3.reset()
    url = s3.put("a", b"0123456789")
    store = open_store(url, StoreAccess.of(s3.storage_options, remote=RemoteOptions(keep_footers=False)))
    s3.rules[:] = [Rule(error(301, "PermanentRedirect"))]
    with caplog.at_level(logging.INFO, "torch_dataloader_utils.clients"):
        for _ in range(2):
            assert bytes(store.ranges(url, [(0, 4)])[0]) == b"0123"
    assert caplog.text.count("in another region") == 1


def test_names_that_obstore_does_not_take_are_read(s3: S3Server) -> None:
    s3.reset()
    urls = [s3.put(key, key.encode()) for key in ("d//a", "d/./a", "d/\x7fa", "d/a")]
    store = open_store(urls[0], StoreAccess.of(s3.storage_options, remote=RemoteOptions(keep_footers=False)))
    assert [entry.path for entry in store.list_files("s3://bucket/d").entries] == sorted(urls)
    for url in urls:
        assert bytes(store.tail(url, 1 << 20).data) == url.removeprefix("s3://bucket/").encode()


def test_objects_are_written_by_s3fs() -> None:
    url = "s3://bucket/a"
    store = open_store(url, StoreAccess.of(KEYS | REGION))
    assert store._access_for("write", url, ()).remote.backend == "fsspec"
    assert store._access_for("read", url, ()).remote.backend == "auto"


def test_a_panic_is_for_s3fs() -> None:
    class PanicException(BaseException):
        """As pyo3 names it; no Exception."""

    with pytest.raises(PanicError) as caught, no_panic():
        raise PanicException("called `Option::unwrap()` on a `None` value")
    assert is_for_s3fs(caught.value, Diagnosis(kind=Kind.FINAL)) == "obstore panicked"
    assert is_for_s3fs(OSError("else"), Diagnosis(kind=Kind.FINAL)) == ""


@pytest.mark.processes
@pytest.mark.slow
def test_a_loader_whose_workers_are_forked_reads_every_row(s3: S3Server) -> None:
    s3.reset()
    total = upload(s3)
    remote = RemoteOptions(retry=QUICK, keep_footers=False)
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data",
        batch_size=64,
        num_workers=2,
        multiprocessing_context="fork",
        storage_options=StoreAccess.of(s3.storage_options, remote=remote),
    )
    for _ in range(2):
        assert_rows(loader, total)


def read_in_child(store: FsspecStore, url: str, answers: Any) -> None:
    """Send what is read and by which client."""
    answers.put((bytes(store.ranges(url, [(0, 4)])[0]), type(open_client(url, "s3", store.access)).__module__))


@pytest.mark.processes
@pytest.mark.slow
def test_a_forked_process_reads_by_s3fs(s3: S3Server) -> None:
    s3.reset()
    url = s3.put("a", b"0123456789")
    store = open_store(url, StoreAccess.of(s3.storage_options, remote=RemoteOptions(keep_footers=False)))
    assert bytes(store.ranges(url, [(0, 4)])[0]) == b"0123"
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=read_in_child, args=(store, url, answers))
    child.start()
    assert answers.get() == (b"0123", "s3fs.core")
    child.join()
    assert child.exitcode == 0
