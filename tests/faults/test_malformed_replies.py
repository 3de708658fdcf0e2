"""Replies longer than they say: what follows is no HTTP, and may be rows, which must show in no message."""

import base64
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.faults.conftest import QUICK
from tests.faults.test_other_stores import serving, span_of
from torch_dataloader_utils._store import RemoteOptions, StoreAccess, open_store
from torch_dataloader_utils._store.censor import censor
from torch_dataloader_utils._store.diagnosis import Kind, diagnose
from torch_dataloader_utils._store.store_errors import store_error
from torch_dataloader_utils.errors import StoreError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DATA = bytes(range(256)) * 40
CANARY = b"canary,4711\n"
Reply = tuple[int, dict[str, str], bytes]


def _object(path: str, headers: dict[str, str]) -> Reply:
    span = headers.get("x-ms-range") or headers.get("range")
    start, stop = span_of(span) if span else (0, len(DATA))
    known = {
        "ETag": '"0x8D1"',
        "Last-Modified": "Wed, 21 Oct 2026 07:28:00 GMT",
        "x-ms-blob-type": "BlockBlob",
        "Content-Range": f"bytes {start}-{min(stop, len(DATA)) - 1}/{len(DATA)}",
    }
    return 206, known, DATA[start:stop]


def _gcs(path: str, headers: dict[str, str]) -> Reply:
    if parse_qs(urlsplit(path).query).get("alt") == ["media"]:
        return _object(path, headers)
    known = {"name": "a.bin", "size": str(len(DATA)), "generation": "17"}
    found = known if unquote(urlsplit(path).path).endswith("/o/a.bin") else {"items": []}
    return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()


@dataclass
class Overlong:
    """Sends `CANARY`s after the bodies of the first `count` of the replies that have a part of the data."""

    honest: Callable[[str, dict[str, str]], Reply]
    count: int = 0

    def __call__(self, path: str, headers: dict[str, str]) -> Reply:
        status, reply, body = self.honest(path, headers)
        if self.count and status == 206:
            self.count -= 1
            return status, {**reply, "Content-Length": str(len(body))}, body + CANARY * 4000
        return status, reply, body


def _options(kind: str, address: str) -> dict[str, Any]:
    key = base64.b64encode(b"key").decode()
    return {
        "s3": {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": address, "region_name": "us-east-1"}},
        "gs": {"endpoint_url": address, "token": "anon", "project": "p"},
        "abfs": {
            "connection_string": f"DefaultEndpointsProtocol=http;AccountName=acc;AccountKey={key};"
            f"BlobEndpoint={address}/acc;"
        },
        "http": {},
    }[kind]


@contextmanager
def store_of(client: str, **policy: Any) -> Iterator[tuple[Any, str, Overlong]]:
    kind = {"s3fs": "s3", "obstore": "s3", "gcsfs": "gs", "adlfs": "abfs"}.get(client, "http")
    handle = Overlong(_gcs if kind == "gs" else _object)
    with serving(handle) as (address, _):
        url = f"{address}/a.bin" if kind == "http" else f"{kind}://bucket/a.bin"
        backend: Any = "obstore" if client == "obstore" else "fsspec"
        remote = RemoteOptions(backend=backend, retry=replace(QUICK, **policy), keep_footers=False)
        yield open_store(url, StoreAccess.of(_options(kind, address), remote=remote)), url, handle


CLIENTS = ["s3fs", "gcsfs", "adlfs", "http", "obstore"]


@pytest.mark.cases(2)
@pytest.mark.processes
@pytest.mark.parametrize("client", CLIENTS)
def test_a_reply_with_more_after_it_costs_no_row_and_prints_none(client: str, caplog: pytest.LogCaptureFixture) -> None:
    if client != "http":
        pytest.importorskip(client, reason=f"{client} is not installed")
    caplog.set_level(logging.DEBUG, "torch_dataloader_utils")
    with store_of(client) as (store, url, handle):
        for first in range(0, 200 if client == "gcsfs" else 1000, 100):  # gcsfs waits a second by itself
            handle.count = 1
            assert bytes(store.ranges(url, [(first, 100)])[0]) == DATA[first : first + 100]
    assert "canary" not in caplog.text
    assert "credentials" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("client", [client for client in CLIENTS if client != "gcsfs"])
def test_a_server_that_never_sends_anything_else_is_told_in_few_words(client: str) -> None:
    if client != "http":
        pytest.importorskip(client, reason=f"{client} is not installed")
    with store_of(client, most_seconds=0.5, progress_seconds=0.5) as (store, url, handle):
        handle.count = 1_000_000
        # Some clients never look at what follows, and some see it only at the next request.
        for error in filter(None, [_failure(store, url) for _ in range(2)]):
            printed = "".join(traceback.format_exception(error))
            assert "canary" not in printed + repr(error.__cause__)
            assert "credentials" not in str(error)
            assert len(str(error)) < 700


def _failure(store: Any, url: str) -> StoreError | None:
    try:
        store.ranges(url, [(0, 100)])
    except StoreError as error:
        return error
    return None


def _raised(error: BaseException, cause: BaseException) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_errors_of_parsers_are_transient_and_keep_none_of_the_bytes_that_they_quote() -> None:
    import http.client

    from aiohttp import ClientResponseError, RequestInfo
    from aiohttp.http_exceptions import BadStatusLine, LineTooLong, TransferEncodingError
    from botocore.parsers import ResponseParserError
    from multidict import CIMultiDict, CIMultiDictProxy
    from yarl import URL

    body = "canary,4711 " * 20_000
    aiohttp_errors = [BadStatusLine(body), LineTooLong(body.encode()), TransferEncodingError(body)]
    others = [http.client.BadStatusLine(body), http.client.IncompleteRead(body.encode()), ResponseParserError(body)]
    info = RequestInfo(URL("http://host/a"), "GET", CIMultiDictProxy(CIMultiDict()))
    wrapped = [
        _raised(ClientResponseError(info, (), status=400, message=each.message), each) for each in aiohttp_errors
    ]
    for error in [*aiohttp_errors, *others, *wrapped]:
        diagnosis = diagnose(error)
        assert diagnosis.kind is Kind.TRANSIENT
        assert diagnosis.status == 0
        censor(error)
        wrapped = store_error(error, "s3://bucket/a", "read", diagnosis=diagnosis)
        assert "canary" not in f"{wrapped} {error!r} {error.args} {vars(error)} {error.__cause__} {error.__cause__!r}"
        assert len(str(wrapped)) < 400


def test_what_a_client_says_is_cut() -> None:
    assert len(str(store_error(RuntimeError("x" * 100_000), "s3://bucket/a", "read"))) < 600
