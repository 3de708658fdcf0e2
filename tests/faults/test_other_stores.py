"""Reads pinned to the planned version on web servers, Google Cloud Storage and Azure."""

import base64
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import QUICK
from tests.faults.tables import assert_rows, parquet_bytes, table
from tests.faults.test_identity import OTHER_ROWS, PLANNED, receive
from tests.faults.web_server import WebServer, listening, web_server
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import Decoding, IcebergDataset, RowDataset, StructuredDataset
from torch_dataloader_utils._store import RemoteOptions, StoreAccess, open_store
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import FileChangedError, NoDataError, StoreError

pytestmark = pytest.mark.slow

REMOTE = RemoteOptions(retry=QUICK, keep_footers=False)
DATA = bytes(range(256)) * 40


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture(scope="module")
def access() -> StoreAccess:
    return StoreAccess.of(remote=REMOTE)


def loader_of(web: WebServer, access: StoreAccess, files: int = 3, **options: Any) -> Any:
    for file in range(files):
        web.files[f"{file}.parquet"] = parquet_bytes(table(file * 300, 300), compression="none")
    return StructuredDataset.create_dataloader(
        [web.url(name) for name in web.files],
        batch_size=50,
        num_workers=0,
        decoding=Decoding(ahead_bytes=1),
        storage_options=access,
        **options,
    )[0]


@pytest.mark.cases(3)
@pytest.mark.parametrize("etag", ["strong", "weak", "none", "head-only"])
@pytest.mark.parametrize("has_dates", [True, False])
def test_files_of_any_web_server_with_ranges_are_read(
    web: WebServer, access: StoreAccess, etag: str, has_dates: bool
) -> None:
    web.etag, web.has_dates = etag, has_dates
    assert_rows(loader_of(web, access), 900)
    conditions = {headers.get("If-Match", "")[:1] for headers in web.gets()}
    assert conditions == ({'"'} if etag in ("strong", "head-only") else {""})
    assert all(headers["Accept-Encoding"] == "identity" for headers in web.gets())


@pytest.mark.parametrize("honours_conditions", [True, False])
@pytest.mark.parametrize("etag", ["strong", "weak", "none", "head-only"])
def test_a_file_that_is_replaced_mid_epoch_is_noticed_with_whatever_the_server_says(
    web: WebServer, access: StoreAccess, etag: str, honours_conditions: bool
) -> None:
    web.etag, web.honours_conditions = etag, honours_conditions
    loader = loader_of(web, access)
    assert web.files["1.parquet"] == PLANNED

    def replace() -> None:
        web.files["1.parquet"] = OTHER_ROWS
        web.date_minutes = 1

    web.after[len(web.gets()) + 1] = replace
    seen: list[int] = []
    with pytest.raises(FileChangedError, match=r"parquet.*[Pp]lan the data set again"):
        receive(loader, seen)
    assert seen == list(range(len(seen)))
    assert len(seen) < 600


def test_the_planned_version_costs_no_look_up_where_replies_say_which_they_are(
    web: WebServer, access: StoreAccess
) -> None:
    url = web.url("a")
    web.files["a"] = DATA
    store = open_store(url, access)
    for web.etag, heads in (("strong", 0), ("weak", 0), ("none", 0), ("head-only", 1)):
        identity = store.stat(url).identity
        web.requests.clear()
        assert bytes(store.ranges(url, [(10, 20)], identity)[0]) == DATA[10:30]
        assert [method for method, _, _ in web.requests] == ["GET", *["HEAD"] * heads]


def test_failures_that_pass_cost_no_row(web: WebServer, access: StoreAccess) -> None:
    web.faults = {5: 503, 6: 500, 7: 429}
    assert_rows(loader_of(web, access), 900)
    assert len(web.gets()) > 7


@pytest.mark.parametrize(
    ("status", "message"), [(403, "no permission to"), (404, "does not exist"), (500, r"cannot .*HTTP 500")]
)
def test_a_signature_in_a_url_shows_in_no_error_or_log_and_each_refusal_is_told_as_what_it_is(
    web: WebServer, caplog: pytest.LogCaptureFixture, status: int, message: str
) -> None:
    caplog.set_level(logging.DEBUG, "torch_dataloader_utils")
    web.status = status
    url = web.url("a.parquet?v=1&sig=canary%2Fcanary")
    remote = replace(REMOTE, retry=replace(QUICK, most_seconds=0.2))
    access = StoreAccess.of({"headers": {"Authorization": "Bearer canary"}}, remote=remote)
    store = open_store(url, access)
    for request in (lambda: scan_files(url, storage_options=access), lambda: store.ranges(url, [(0, 4)])):
        with pytest.raises((StoreError, NoDataError), match=message) as caught:
            request()
        error: BaseException | None = caught.value
        while error is not None:
            assert "canary" not in f"{error} {error!r}"
            error = error.__cause__
        assert "canary" not in caplog.text


def test_a_web_server_that_cannot_be_reached_is_not_a_missing_file() -> None:
    remote = replace(REMOTE, retry=replace(QUICK, most_seconds=0.01))
    with pytest.raises(StoreError, match=r"cannot list, no connection to .*Cannot connect to host"):
        scan_files("http://127.0.0.1:9/a.parquet", remote=remote)


def test_a_server_without_ranges_or_sizes_says_so(web: WebServer, access: StoreAccess) -> None:
    web.files["a.parquet"] = PLANNED
    web.has_ranges = False
    url = web.url("a.parquet")
    with pytest.raises(StoreError, match=r"does not support range requests .*asked for bytes 100-109"):
        open_store(url, access).ranges(url, [(100, 10)])
    web.has_sizes = False
    with pytest.raises(StoreError, match="does not say how large"):
        scan_files(url, storage_options=access)


@pytest.mark.parametrize("has_dates", [True, False])
def test_text_is_counted_and_read_where_a_server_names_no_version(
    web: WebServer, access: StoreAccess, has_dates: bool
) -> None:
    web.etag, web.has_dates = "none", has_dates
    rows = [{"row": row, "check": row * 7 + 3} for row in range(500)]
    web.files["a.jsonl"] = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    web.files["b.csv"] = b"row,check\n" + b"".join(f"{r['row']},{r['check']}\n".encode() for r in rows)
    for name, kind in (("a.jsonl", "jsonl"), ("b.csv", "csv")):
        for _ in range(2):  # the second time nothing of the first must be in the way
            loader, dataset = StructuredDataset.create_dataloader(
                web.url(name), kind, batch_size=64, num_workers=0, storage_options=access
            )
            assert dataset.plan.is_exact
            assert_rows(loader, 500)


def test_a_footer_is_not_kept_where_a_server_names_no_version(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path))
    keeping = StoreAccess.of(remote=RemoteOptions(retry=QUICK))
    web.etag, web.has_dates = "none", False
    old = pc.field("row") < 600
    for content, rows in ((PLANNED, 300), (OTHER_ROWS, 0), (PLANNED, 300)):  # all of one size
        web.files["a.parquet"] = content
        inventory = scan_files(web.url("a.parquet"), storage_options=keeping, filters=old)
        assert inventory.groups.physical_rows.sum() == rows
    assert not any(tmp_path.iterdir())
    web.has_dates = True
    scan_files(web.url("a.parquet"), storage_options=keeping)
    assert any(tmp_path.iterdir())


def _csv(data: pa.Table) -> bytes:
    sink = io.BytesIO()
    pa_csv.write_csv(data, sink)
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_file_that_took_the_place_of_another_is_read_by_its_own_footer_or_header(
    web: WebServer, access: StoreAccess, kind: str
) -> None:
    web.etag, web.has_dates = "none", False
    old = table(0, 300).select(["row", "check"])
    new = old.select(["check", "row"])
    first, second = ((_unchecked if kind == "parquet" else _csv)(each) for each in (old, new))
    assert len(first) == len(second)
    for content in (first, second):
        web.files[f"a.{kind}"] = content
        inventory = scan_files(web.url(f"a.{kind}"), kind, storage_options=access)
        rows = RowDataset([], inventory=inventory, storage_options=access, output_format="arrow")
        assert rows.take(range(300))["row"].to_pylist() == list(range(300))


def _with_ids(a: list[int], b: list[int], ids: str = "12") -> bytes:
    """A file of columns a and b with these field ids."""
    fields = [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": number})
        for name, number in zip("ab", ids, strict=True)
    ]
    return _unchecked(pa.table([a, b], schema=pa.schema(fields)))


@pytest.mark.parametrize("replaced", ["data", "deletes"])
def test_of_a_table_nothing_is_kept_where_a_server_names_no_version(
    web: WebServer, access: StoreAccess, tmp_path: Path, replaced: str
) -> None:
    written = TableWriter(tmp_path, path_prefix=web.url("t"))
    written.evolve(field_of(1, "a", "long"), field_of(2, "b", "long"))
    files = {"data": written.append([{"a": row, "b": -row} for row in range(10)])}
    files["deletes"] = written.delete_equal([1], [{"a": 3}])
    web.files |= {f"t/{path.relative_to(tmp_path)}": path.read_bytes() for path in tmp_path.rglob("*.*")}
    up, down = list(range(10)), [-row for row in range(10)]
    contents = {
        # The columns have each other's ids: what is called b is the table's a.
        "data": [
            (_with_ids(up, down), [(row, -row) for row in up if row != 3]),
            (_with_ids(down, up, "21"), [(row, -row) for row in up if row != 3]),
        ],
        "deletes": [(_with_ids([gone], [0]), [(row, -row) for row in up if row != gone]) for gone in (3, 5)],
    }[replaced]
    web.etag, web.has_dates = "none", False
    assert len({len(content) for content, _ in contents}) == 1
    for content, rows in contents:
        web.files[files[replaced].removeprefix(web.url(""))] = content
        loader, _ = IcebergDataset.create_dataloader(
            web.url(f"t/metadata/{Path(written.metadata).name}"), storage_options=access, num_workers=0, batch_size=99
        )
        assert [pair for batch in loader for pair in zip(batch["a"].tolist(), batch["b"].tolist(), strict=True)] == rows


def _unchecked(data: pa.Table) -> bytes:
    """A file whose pages lie where they lie whatever the numbers are: nothing encodes or checks them."""
    sink = io.BytesIO()
    pq.write_table(data, sink, compression="none", use_dictionary=False)
    return sink.getvalue()


def test_lengths_are_not_kept_where_a_server_names_no_version(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path))
    keeping = StoreAccess.of(remote=RemoteOptions(retry=QUICK, keep_footers=False))
    web.etag, web.has_dates = "none", False
    old, new = (_unchecked(table(first, 300)) for first in (0, 300))
    assert len(old) == len(new)
    web.files["b.parquet"] = PLANNED
    for content, first in ((old, 0), (new, 300), (old, 0)):
        web.files["a.parquet"] = content
        files = scan_files([web.url("a.parquet"), web.url("b.parquet")], storage_options=keeping)
        rows = RowDataset([], inventory=files, storage_options=keeping, length_column="row")
        assert rows.lengths[0] == first
    assert not any(tmp_path.iterdir())
    web.has_dates = True
    dated = scan_files(web.url("a.parquet"), storage_options=keeping)
    assert len(RowDataset([], inventory=dated, storage_options=keeping, length_column="row").lengths) == 300
    assert any(tmp_path.iterdir())


@contextmanager
def serving(handle: Any) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """The server's address and its requests; `handle` gives (status, headers, body)."""
    requests: list[tuple[str, dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            requests.append((self.path, headers))
            status, reply, body = handle(self.path, headers)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | reply).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Quiet."""

    with listening(Handler) as port:
        yield f"http://127.0.0.1:{port}", requests


def span_of(text: str) -> tuple[int, int]:
    first, last = text.removeprefix("bytes=").split("-")
    return int(first), int(last) + 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_objects_of_google_cloud_storage_are_asked_for_by_generation() -> None:
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    generation = ["1760000000000001"]

    def handle(path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        if query.get("generation", generation) != generation:
            return 404, {}, b'{"error": {"code": 404, "message": "No such object"}}'
        if query.get("alt") == ["media"]:
            start, stop = span_of(headers["range"])
            return 206, {"Content-Range": f"bytes {start}-{stop - 1}/{len(DATA)}"}, DATA[start:stop]
        if unquote(parts.path).endswith("/o/a.bin"):
            known = {
                "name": "a.bin",
                "size": str(len(DATA)),
                "generation": generation[0],
                "etag": "changes-with-metadata",
            }
            return 200, {"Content-Type": "application/json"}, json.dumps(known).encode()
        return 200, {"Content-Type": "application/json"}, b'{"items": []}'

    with serving(handle) as (address, requests):
        options = {"endpoint_url": address, "token": "anon", "project": "p"}
        store = open_store("gs://bucket/a.bin", StoreAccess.of(options, remote=REMOTE))
        planned = store.stat("gs://bucket/a.bin")
        assert (planned.size, planned.identity) == (len(DATA), generation[0])
        requests.clear()
        assert bytes(store.ranges("gs://bucket/a.bin", [(5, 50)], planned.identity)[0]) == DATA[5:55]
        # gcsfs also lists the name as a folder while it looks it up, and may do so late.
        (read,) = [path for path, _ in requests if "alt=media" in path]
        assert f"generation={planned.identity}" in read
        generation[0] = "1760000000000002"
        with pytest.raises(FileChangedError, match=r"gs://bucket/a\.bin is gone"):
            store.ranges("gs://bucket/a.bin", [(5, 50)], planned.identity)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("honours_conditions", [True, False])
def test_azure_blobs_are_asked_for_on_condition_of_their_etag(honours_conditions: bool) -> None:
    pytest.importorskip("adlfs", reason="adlfs is not installed")
    etag = ["0x8D1"]

    def handle(path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if "a.bin" not in path:
            return 404, {"x-ms-error-code": "BlobNotFound"}, b""
        if honours_conditions and headers.get("if-match", f'"{etag[0]}"') != f'"{etag[0]}"':
            return 412, {"x-ms-error-code": "ConditionNotMet"}, b""
        start, stop = span_of(headers.get("x-ms-range") or headers.get("range") or f"bytes=0-{len(DATA) - 1}")
        known = {
            "ETag": f'"{etag[0]}"',
            "Last-Modified": "Wed, 21 Oct 2026 07:28:00 GMT",
            "x-ms-blob-type": "BlockBlob",
        }
        known["Content-Range"] = f"bytes {start}-{min(stop, len(DATA)) - 1}/{len(DATA)}"
        return 206, known, DATA[start:stop]

    with serving(handle) as (address, requests):
        key = base64.b64encode(b"canary").decode()
        options = {
            "connection_string": f"DefaultEndpointsProtocol=http;AccountName=acc;AccountKey={key};"
            f"BlobEndpoint={address}/acc;"
        }
        store = open_store("abfs://container/a.bin", StoreAccess.of(options, remote=REMOTE))
        assert bytes(store.ranges("abfs://container/a.bin", [(5, 50)], "0x8D1")[0]) == DATA[5:55]
        assert requests[-1][1]["if-match"] == '"0x8D1"'
        assert len(requests) == 1
        etag[0] = "0x8D2"
        with pytest.raises(FileChangedError, match=r"a\.bin is not the file that was planned") as caught:
            store.ranges("abfs://container/a.bin", [(5, 50)], "0x8D1")
        assert "canary" not in str(caught.value)
        with pytest.raises(NoDataError, match=r"nope\.dat does not exist"):
            store.ranges("abfs://container/nope.dat", [(5, 50)])
