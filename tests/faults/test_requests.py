"""How many requests and bytes an epoch costs, counted at moto, and how many are under way at once."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import QUICK
from tests.faults.s3_server import Rule, S3Server, once_in_flight, options_for
from tests.faults.tables import assert_rows, parquet_bytes, table, upload
from tests.store.moto_server import BUCKET, running_moto
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._store import RemoteOptions, StoreAccess, open_store
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.discover.paths import find_files

ROWS, GROUPS = 40_000, 4
COLUMNS = {
    "3 spread": ["c3", "c20", "c44"],
    "3 adjacent": ["c3", "c4", "c5"],
    "all of 50": [f"c{i}" for i in range(50)],
}


class Counted:
    """A WSGI application, with the requests that went through it."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner
        self.seen: list[tuple[str, str, str]] = []
        self.sent = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        self.seen.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_RANGE", "")))

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            if environ["REQUEST_METHOD"] == "GET":
                self.sent += int(dict(headers).get("Content-Length", 0))
            return start_response(status, headers, *rest)

        return self.inner(environ, start)

    def methods(self) -> dict[str, int]:
        """Requests by method, listings apart."""
        kinds = ["LIST" if path.strip("/").count("/") == 0 else method for method, path, _ in self.seen]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


@pytest.fixture(scope="module")
def access(lasting_server: S3Server) -> StoreAccess:
    """With the waits of users: on a busy machine a short one ends, and the request that is made again is counted."""
    return StoreAccess.of(lasting_server.storage_options, remote=RemoteOptions(retry=QUICK, keep_footers=False))


@pytest.fixture(scope="module")
def moto() -> Iterator[tuple[Counted, dict[str, Any]]]:
    with running_moto() as (server, client):
        counted = Counted(server.app)
        server.app = counted
        random = np.random.default_rng(0)
        wide = pa.table({f"c{i}": random.random(ROWS).astype(np.float32) for i in range(50)})
        for file in range(2):
            body = parquet_bytes(wide, ROWS // GROUPS, use_dictionary=False)
            client.put_object(Bucket=BUCKET, Key=f"wide/{file}.parquet", Body=body)
        yield counted, options_for(server.server_port)


@pytest.fixture(scope="module")
def wide_chunks(moto: Any) -> Any:
    """The footer of the files, which are equal."""
    access = StoreAccess.of(moto[1])
    url = "s3://bucket/wide/0.parquet"
    return access, pq.read_metadata(pa.BufferReader(open_store(url, access).tail(url, 1 << 20).data))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_one_tail_a_footer_and_the_column_chunks(
    moto: Any, wide_chunks: Any, cache: Path, columns: list[str], workers: int
) -> None:
    counted, _ = moto
    access, metadata = wide_chunks
    counted.seen.clear()
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/wide", columns=columns, batch_size=8192, num_workers=workers, storage_options=access
    )
    scan = counted.methods()
    assert scan == {"GET": 2, "HEAD": 1, "LIST": scan["LIST"]}  # the HEAD asks whether "wide" is a file
    assert scan["LIST"] <= 3
    counted.seen.clear()
    counted.sent = 0
    assert sum(batch.num_rows for batch in loader) == 2 * ROWS
    numbers = [int(name[1:]) for name in columns]
    chunks = [metadata.row_group(g).column(n).total_compressed_size for g in range(GROUPS) for n in numbers]
    # Where a row group is cut between two workers, both read it.
    shared_groups = 1 if workers == 2 else 0
    assert counted.sent <= 1.05 * (2 + shared_groups / GROUPS) * sum(chunks)
    reads = counted.methods()
    assert set(reads) == {"GET"}  # no HEAD, no listing, no footer
    assert all(span for _, _, span in counted.seen)


@pytest.mark.slow
def test_spread_columns_cost_their_chunks_only(server: S3Server, access: StoreAccess) -> None:
    # Chunks of 4 MB lie further apart than the holes that are read through.
    rows = 1_000_000
    random = np.random.default_rng(0)
    wide = pa.table({f"c{i}": random.random(rows).astype(np.float32) for i in range(8)})
    body = parquet_bytes(wide, rows // 2, use_dictionary=False, compression="none")
    server.put("data/0.parquet", body)
    metadata = pq.read_metadata(pa.BufferReader(body))
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data", columns=["c1", "c4", "c7"], batch_size=65536, num_workers=0, storage_options=access
    )
    server.forget()
    assert sum(batch.num_rows for batch in loader) == rows
    chunks = [metadata.row_group(g).column(n).total_compressed_size for g in range(2) for n in (1, 4, 7)]
    data = [request for request in server.requests if request.sent in chunks]
    assert len(data) == 6
    footer = sum(request.sent for request in server.requests) - sum(chunks)
    assert 0 < footer <= 64 << 10  # caches are off here
    assert server.of("HEAD") == []


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_at_least_eight_requests_are_in_flight(server: S3Server, access: StoreAccess, workers: int) -> None:
    total = upload(server, files=4, rows=1200)
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=64, num_workers=workers, storage_options=access
    )
    server.forget()
    # The first two are alone: they tell how much memory a row group takes.
    server.rules.append(Rule(once_in_flight(8), key="data/", first=2, count=None))
    assert_rows(loader, total)
    assert server.most_in_flight >= 8


@pytest.mark.slow
def test_small_row_groups_are_requested_more_at_once(server: S3Server, access: StoreAccess) -> None:
    total = upload(server, files=40, rows=10)
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=64, num_workers=0, storage_options=access
    )
    server.forget()
    # The first two tell how much memory a row group takes.
    server.rules.append(Rule(once_in_flight(20), key="data/", first=2, count=None))
    assert_rows(loader, total)
    assert 20 <= server.most_in_flight <= 32
    assert len({(request.key, request.span) for request in server.requests}) == len(server.requests)


@pytest.mark.slow
def test_files_that_are_named_one_by_one_are_looked_up_many_at_once(server: S3Server, access: StoreAccess) -> None:
    total = upload(server, files=40, rows=10)
    server.latency_seconds = 0.03
    server.rules.append(Rule(once_in_flight(8), method="HEAD", key="data/", count=None))
    paths = [f"s3://bucket/{key}" for key in server.objects]
    assert find_files(paths, access)[1].entries == find_files("s3://bucket/data", access)[1].entries
    assert len(server.of("HEAD")) == 41  # and one for the directory
    assert 8 <= server.most_in_flight <= 32
    assert scan_files(paths, storage_options=access).num_rows == total


@pytest.mark.slow
def test_footers_are_fetched_with_many_requests_at_once(server: S3Server, access: StoreAccess) -> None:
    total = upload(server, files=40, rows=10)
    server.latency_seconds = 0.03
    # The first is alone: it shows whether these are Parquet files.
    server.rules.append(Rule(once_in_flight(8), key="data/", first=1, count=None))
    assert scan_files("s3://bucket/data", storage_options=access).num_rows == total
    assert 8 <= server.most_in_flight <= 32
    assert len([request for request in server.of("GET") if request.key]) == 40


@pytest.mark.processes
def test_footers_are_read_once_a_host(server: S3Server, access: StoreAccess, cache: Path) -> None:
    total = upload(server)
    keeping = replace(access, remote=replace(access.remote, keep_footers=True))
    for job in range(2):
        server.forget()
        loader, _ = StructuredDataset.create_dataloader(
            "s3://bucket/data", batch_size=64, num_workers=2, storage_options=keeping
        )
        footers = [request for request in server.of("GET") if request.key]
        assert len(footers) == (3 if job == 0 else 0)
        server.forget()
        assert_rows(loader, total)
        # One a row group, whose columns are neighbours; and one more for the row group that both workers share.
        assert len(server.requests) <= 9 + 1
        assert all(request.span and request.span[0] < 4_000 for request in server.requests)
    kept = [path for path in cache.rglob("k*") if path.is_file()]
    assert len(kept) == 3
    assert {oct(path.stat().st_mode & 0o777) for path in kept} == {"0o600"}
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in {path.parent for path in kept})


def test_a_damaged_or_old_kept_footer_is_read_anew(server: S3Server, access: StoreAccess, cache: Path) -> None:
    keeping = replace(access, remote=replace(access.remote, keep_footers=True))
    upload(server, files=1)
    scan_files("s3://bucket/data", storage_options=keeping)
    (kept,) = [path for path in cache.rglob("k*") if path.is_file()]
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    assert scan_files("s3://bucket/data", storage_options=keeping).num_rows == 300
    server.put("data/0.parquet", parquet_bytes(table(0, 50)))
    assert scan_files("s3://bucket/data", storage_options=keeping).num_rows == 50


def test_a_cache_that_cannot_be_written_costs_requests_and_nothing_else(
    server: S3Server, access: StoreAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "file"))
    keeping = replace(access, remote=replace(access.remote, keep_footers=True))
    total = upload(server)
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=64, num_workers=0, storage_options=keeping
    )
    assert_rows(loader, total)


@pytest.mark.slow
def test_chunks_of_single_row_groups_cost_no_request_more_than_chunks_of_whole_files(
    server: S3Server, access: StoreAccess
) -> None:
    total = upload(server, files=3, rows=10_000, extra_columns=2, group_rows=2_000)
    requests = []
    for split_bytes in ("128MiB", None):
        options = {"shuffle": True, "split_bytes": split_bytes, "num_workers": 0, "storage_options": access}
        loader, dataset = StructuredDataset.create_dataloader("s3://bucket/data", **options)
        assert len(loader.plan.inputs.chunks) == (3 if split_bytes else 15)
        assert_rows(loader, total)  # fetches the footers, once in a process
        server.forget()
        dataset.set_epoch(1)
        assert_rows(loader, total)
        requests.append(len(server.of("GET")))
    assert requests == [15, 15]
