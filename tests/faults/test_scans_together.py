"""Footers that are requested together give what they give one by one, in rows, requests and errors."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.faults.conftest import QUICK
from tests.faults.s3_server import Rule, S3Server, change, error
from tests.faults.tables import parquet_bytes, table, upload
from torch_dataloader_utils import scan_files
from torch_dataloader_utils._observe.counters import Counts, count_thread_in
from torch_dataloader_utils._store import TAIL_BYTES, RemoteOptions, StoreAccess, hedge
from torch_dataloader_utils.cache.host_cache import HostCache, OpenCache
from torch_dataloader_utils.cache.kept_values import KeptValues, once_each
from torch_dataloader_utils.discover.paths import find_files
from torch_dataloader_utils.errors import CorruptFileError, FileChangedError, NoDataError, StoreError
from torch_dataloader_utils.formats import registry

BACKENDS = ["fsspec", "obstore"] if importlib.util.find_spec("obstore") else ["fsspec"]
FILES = 12
URL = "s3://bucket/data"


@pytest.fixture(params=BACKENDS)
def reading(request: pytest.FixtureRequest, server: S3Server) -> StoreAccess:
    remote = RemoteOptions(backend=request.param, retry=QUICK, keep_footers=False)
    return StoreAccess.of(server.storage_options, remote=remote)


def footers_asked(server: S3Server) -> list[str]:
    return sorted(request.key for request in server.of("GET") if request.key)


def test_a_scan_lists_each_directory_once(server: S3Server, reading: StoreAccess) -> None:
    for day in range(3):
        server.put(f"trips/day={day}/0.parquet", parquet_bytes(table(0, 10)))
    assert scan_files("s3://bucket/trips", storage_options=reading).num_rows == 30
    listings = [request for request in server.requests if not request.key]
    directories = 4 if reading.remote.backend == "obstore" else 2  # s3fs lists all at once, after a look for one object
    assert len(listings) == directories
    with pytest.raises(NoDataError, match="does not exist"):
        scan_files("s3://bucket/trip", storage_options=reading)


def test_what_fails_is_asked_for_again_and_nothing_else(server: S3Server, reading: StoreAccess) -> None:
    total = upload(server, FILES, rows=10)
    server.rules += [
        Rule(error(503, "SlowDown"), key="data/3", count=2),
        Rule(change(cut_after=100), key="data/5"),
        Rule(error(500, "InternalError"), key="data/11"),
    ]
    inventory = scan_files(URL, storage_options=reading)
    assert inventory.num_rows == total
    again = ["data/3.parquet"] * 2 + ["data/5.parquet", "data/11.parquet"]
    assert footers_asked(server) == sorted([*server.objects, *again])


def test_a_refusal_is_told_after_one_request_by_the_name_of_its_file(server: S3Server, reading: StoreAccess) -> None:
    upload(server, FILES, rows=10)
    server.rules.append(Rule(error(403, "AccessDenied"), key="data/7", count=None))
    with pytest.raises(StoreError, match=r"data/7\.parquet.*no permission to read"):
        scan_files(URL, storage_options=reading)
    assert footers_asked(server).count("data/7.parquet") == 1


def test_a_file_that_was_replaced_after_the_listing_is_named(server: S3Server, reading: StoreAccess) -> None:
    upload(server, FILES, rows=10)

    def replace_another(server: S3Server, request: Any, reply: Any) -> None:
        server.put("data/4.parquet", parquet_bytes(table(0, 20)))

    server.rules.append(Rule(replace_another, key="data/0"))
    with pytest.raises(FileChangedError, match=r"data/4\.parquet"):
        scan_files(URL, storage_options=reading)


def test_damaged_and_large_footers_cost_what_they_cost_alone(server: S3Server, reading: StoreAccess) -> None:
    upload(server, FILES, rows=10)
    server.put("data/2.parquet", b"no footer here" * 9)
    large = parquet_bytes(table(0, 2_000), group_rows=2)
    server.put("data/8.parquet", large)
    with pytest.raises(CorruptFileError, match=r"data/2\.parquet"):
        scan_files(URL, storage_options=reading)
    server.forget()
    with pytest.warns(UserWarning, match="left out 1 of 12 files"):
        inventory = scan_files(URL, storage_options=reading, on_error="skip")
    assert inventory.num_rows == 10 * (FILES - 2) + 2_000
    assert footers_asked(server) == sorted([*server.objects, "data/8.parquet"])


def test_large_footers_of_several_files_are_requested_at_once(server: S3Server, reading: StoreAccess) -> None:
    large = parquet_bytes(table(0, 2_000), group_rows=2)
    for number in range(FILES):
        server.put(f"data/{number:02}.parquet", large)
    others = Barrier(FILES - 1)

    def wait_for_others(server: S3Server, request: Any, reply: Any) -> None:
        if request.span[1] - request.span[0] > TAIL_BYTES:
            others.wait(20)

    server.rules.append(Rule(wait_for_others, key="data/(?!00)", count=None))  # the first file is scanned alone
    assert scan_files(URL, storage_options=reading).num_rows == 2_000 * FILES
    assert footers_asked(server) == sorted([*server.objects] * 2)


def test_silent_replies_of_several_files_are_overtaken(
    server: S3Server, reading: StoreAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = upload(server, FILES, rows=10)
    monkeypatch.setattr(hedge, "_UNKNOWN_SECONDS", 0.01)

    def silence(server: S3Server, request: Any, reply: Any) -> None:
        server.outlasted += not server.done.wait(10)
        raise ConnectionAbortedError  # a later test would count this request

    server.rules += [Rule(silence, key="data/3"), Rule(silence, key="data/9")]
    hedging = replace(reading, remote=replace(reading.remote, retry=replace(QUICK, hedge_share=1)))
    assert scan_files(URL, storage_options=hedging).num_rows == total


@pytest.mark.parametrize("together", [1, 5, 16])
def test_footers_are_kept_once_and_found_by_the_next_job(
    server: S3Server, reading: StoreAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "_SCANS_TOGETHER", together)
    total = upload(server, FILES, rows=10)
    keeping = replace(reading, remote=replace(reading.remote, keep_footers=True))
    server.rules.append(Rule(error(503, "SlowDown"), key="data/3"))
    inventories = [scan_files(URL, storage_options=keeping) for _ in range(2)]
    assert [inventory.num_rows for inventory in inventories] == [total, total]
    assert inventories[0].fingerprint() == inventories[1].fingerprint()
    assert footers_asked(server) == sorted([*server.objects, "data/3.parquet"])
    assert len([path for path in tmp_path.rglob("k*") if path.is_file()]) == FILES


def test_values_that_cannot_be_made_are_left_out_and_others_are_kept(tmp_path: Path) -> None:
    cache = OpenCache(HostCache(tmp_path, max_bytes=1 << 20))
    files = [KeptValues(cache=cache if place != 2 else None, path=str(place), scope="me") for place in range(5)]
    made: list[int] = []

    def make(places: Any) -> dict[int, bytes]:
        made.extend(places)
        return {place: bytes([place]) * 9 for place in places if place != 3}

    found = [once_each(files, "footer", make) for _ in range(2)]
    assert [{place: bytes(value) for place, value in each.items()} for each in found] == [
        {place: bytes([place]) * 9 for place in (0, 1, 2, 4)}
    ] * 2
    assert sorted(made) == [0, 1, 2, 2, 3, 3, 4]
    assert list(tmp_path.glob("tdu-cache-*/pending/*")) == []


def test_requests_and_bytes_of_all_files_are_counted(server: S3Server, reading: StoreAccess) -> None:
    upload(server, FILES, rows=10)
    store, files = find_files(URL, reading)
    counts = Counts()
    before = count_thread_in(counts)
    try:
        tails = store.begin_tails(files.entries, [64] * FILES)
    finally:
        count_thread_in(before)
    wanted = [server.objects[key][0][-64:] for key in sorted(server.objects)]
    assert [bytes(tail.data or b"") for tail in tails] == wanted
    assert [bytes(tail.end().data) for tail in tails] == wanted
    assert (counts.requests, counts.fetched_bytes, counts.retries) == (FILES, 64 * FILES, 0)
