"""Epochs from a host's cache: the same rows without requests, and again with them whatever happened to the disk."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import QUICK
from tests.faults.s3_server import BUCKET, S3Server
from torch_dataloader_utils import Decoding, HostCache, RemoteOptions, StructuredDataset
from torch_dataloader_utils._store import FsspecStore, StoreAccess
from torch_dataloader_utils.errors import StoreError
from torch_dataloader_utils.plan.explain import host_reads
from torch_dataloader_utils.plan.upcoming import CacheForecast

pytestmark = pytest.mark.slow

ROWS = 1200
WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "parquet": partial(pq.write_table, row_group_size=100),
    "orc": orc.write_table,
    "arrow": feather.write_feather,
    "csv": pa_csv.write_csv,
}


def upload(server: S3Server, tmp_path: Path, file_format: str = "parquet", seed: int = 0) -> None:
    """Four files; those of Parquet have several row groups, of more bytes than what is fetched whole."""
    random = np.random.default_rng(seed)
    table = pa.table({"row": np.arange(ROWS), **{f"c{i}": random.random(ROWS) for i in range(30)}})
    for number in range(4):
        part = table.slice(number * ROWS // 4, ROWS // 4)
        path = tmp_path / f"{number}-{seed}"
        WRITERS[file_format](part, path)
        server.put(f"data/{number}.{file_format}", path.read_bytes())


def make(server: S3Server, cache: HostCache | None, **options: Any) -> Any:
    remote = RemoteOptions(cache=cache, retry=QUICK, backend=options.pop("backend", "fsspec"))
    loader, _ = StructuredDataset.create_dataloader(
        f"s3://{BUCKET}/data",
        **{"columns": ["row", "c1", "c7"], "batch_size": 64, "shuffle": True} | options,
        storage_options=options.pop("storage_options", server.storage_options),
        remote=remote,
    )
    return loader


def rows(loader: Any, epoch: int = 0) -> list[int]:
    return sorted(unsorted_rows(loader, epoch))


def unsorted_rows(loader: Any, epoch: int) -> list[int]:
    loader.set_epoch(epoch)
    return [row for batch in loader for row in batch["row"].tolist()]


def data_requests(server: S3Server) -> int:
    return len([request for request in server.requests if request.span is not None])


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("backend", ["fsspec", "obstore"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_warm_epoch_makes_no_request(server: S3Server, tmp_path: Path, backend: Any, num_workers: int) -> None:
    upload(server, tmp_path)
    cache = HostCache(tmp_path / "cache", max_bytes="1GiB")
    loader = make(server, cache, backend=backend, num_workers=num_workers)
    assert rows(loader) == list(range(ROWS))
    cold = loader.metrics()
    assert cold.cache_events["misses"] > 0
    server.forget()
    assert rows(loader, 1) == list(range(ROWS))
    assert server.requests == []
    warm = loader.metrics() - cold
    assert (warm.requests, warm.fetched_bytes) == (0, 0)
    assert warm.cache_events["hits"] > 0
    assert sum(warm.cache_events.values()) == warm.cache_events["hits"]
    assert warm.cached_bytes == pytest.approx(cold.fetched_bytes, rel=0.2)
    # The next job lists the objects and reads no byte of them.
    again = make(server, cache, backend=backend, num_workers=num_workers)
    assert rows(again) == list(range(ROWS))
    assert data_requests(server) == 0


@pytest.mark.parametrize("file_format", WRITERS)
def test_every_format_is_cached(server: S3Server, tmp_path: Path, file_format: str) -> None:
    upload(server, tmp_path, file_format)
    loader = make(server, HostCache(tmp_path / "cache", max_bytes="1GiB"), format=file_format)
    assert rows(loader) == list(range(ROWS))
    server.forget()
    assert rows(loader, 1) == list(range(ROWS))
    assert data_requests(server) == 0


@pytest.mark.processes
def test_batches_are_those_without_a_cache(server: S3Server, tmp_path: Path) -> None:
    upload(server, tmp_path)
    small = HostCache(tmp_path / "cache", max_bytes=20_000)
    for options in ({}, {"shuffle_rows": 300, "num_workers": 2}, {"lanes": 4}):
        cached, plain = make(server, small, **options), make(server, None, **options)
        for epoch in range(3):
            cached.set_epoch(epoch)
            plain.set_epoch(epoch)
            for one, other in zip(cached, plain, strict=True):
                assert one["row"].equal(other["row"])
                assert one["c7"].equal(other["c7"])
    events = cached.metrics().cache_events
    assert 0 < events["hits"] < events["misses"] * 100


def test_a_replaced_object_is_never_served_from_the_cache(server: S3Server, tmp_path: Path) -> None:
    cache = HostCache(tmp_path / "cache", max_bytes="1GiB")
    seen = []
    for seed in range(2):
        upload(server, tmp_path, seed=seed)
        loader = make(server, cache, shuffle=False)
        seen.append(np.concatenate([batch["c1"].numpy() for batch in loader]))
    assert not np.isin(seen[0], seen[1]).any()


def test_credentials_that_may_not_read_get_nothing_from_the_cache(server: S3Server, tmp_path: Path) -> None:
    upload(server, tmp_path)
    cache = HostCache(tmp_path / "cache", max_bytes="1GiB")
    loader = make(server, cache)
    assert rows(loader) == list(range(ROWS))
    files = loader.dataset.planner.inventory.files
    other = StoreAccess.of(server.storage_options | {"key": "other"}, remote=RemoteOptions(cache=cache, retry=QUICK))
    server.accepted_tokens = {"none"}
    with pytest.raises(StoreError):
        FsspecStore(access=other).ranges(files.paths[0], [(0, 100)], files.identities[0], 0)


def test_two_jobs_with_different_plans_share_a_directory(server: S3Server, tmp_path: Path) -> None:
    upload(server, tmp_path)
    cache = HostCache(tmp_path / "cache", max_bytes=40_000)
    jobs = [
        make(server, cache, shuffle_seed=1),
        make(server, cache, shuffle_seed=2, columns=["row", "c2"], batch_size=50),
    ]
    for epoch in range(3):
        for job in jobs:
            job.set_epoch(epoch)
        passes = [iter(job) for job in jobs]
        found: list[list[int]] = [[], []]
        for index, one in enumerate(passes):
            found[index] += next(one)["row"].tolist()
        for index, one in enumerate(passes):
            found[index] += [row for batch in one for row in batch["row"].tolist()]
        assert all(sorted(each) == list(range(ROWS)) for each in found)


PLAIN_BYTES = 20_150  # more than the footers, the schedule and the journal together


def plain_files(server: S3Server) -> None:
    """Four files of 20 row groups, all of as many bytes."""
    for number in range(4):
        table = pa.table({"row": np.arange(number * 50_000, number * 50_000 + 50_000)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=2500, use_dictionary=False, compression="none")
        server.put(f"data/{number}.parquet", bytes(sink.getvalue()))


@pytest.mark.cases(1)
@pytest.mark.parametrize("groups", [8, 30, 70])
def test_a_plan_says_what_its_cache_will_give(server: S3Server, tmp_path: Path, groups: int) -> None:
    plain_files(server)
    cache = HostCache(tmp_path / "cache", max_bytes=round((groups + 0.9) * PLAIN_BYTES))
    # Row groups one after the other, as the forecast takes them: a window of shuffled rows opens several at a time.
    options = {"shuffle": "chunks", "columns": None, "split_rows": 2500, "num_ranks": 2, "num_workers": 0}
    options["decoding"] = Decoding(threads=1)
    loader = make(server, cache, **options)
    parts = CacheForecast(host_reads(loader.plan, 1, 9), np.full(80, PLAIN_BYTES), groups * PLAIN_BYTES).parts()
    found = []
    for epoch in range(5):
        before = loader.metrics()
        loader.set_epoch(epoch)
        for _ in loader:
            pass
        events = (loader.metrics() - before).cache_events
        found.append(events["hits"] / (events["hits"] + events["misses"]))
    assert found == pytest.approx([part.cached_bytes / part.read_bytes for part in parts])
    assert 0 < found[-1] < 1


def test_hosts_with_room_for_their_shares_make_no_request_after_the_first_epoch(
    server: S3Server, tmp_path: Path
) -> None:
    plain_files(server)
    caches = [HostCache(tmp_path / f"host{host}", max_bytes=42 * PLAIN_BYTES) for host in range(2)]
    shares = {"columns": None, "split_rows": 2500, "num_ranks": 4, "num_workers": 0, "host_shares": 2}
    loaders = [make(server, caches[rank // 2], rank=rank, **shares) for rank in range(4)]
    orders = []
    for epoch in range(3):
        server.forget()
        orders.append([row for loader in loaders for row in unsorted_rows(loader, epoch)])
        assert sorted(orders[-1]) == list(range(200_000))
        assert epoch == 0 or data_requests(server) == 0
    assert orders[0] != orders[1] != orders[2]
    # Without shares both hosts meet row groups that they have not seen.
    apart = [make(server, caches[rank // 2], rank=rank, **shares | {"host_shares": None}) for rank in range(4)]
    assert sorted(row for loader in apart for row in rows(loader, 3)) == list(range(200_000))
    assert data_requests(server) > 0


@pytest.mark.parametrize("columns", [["row"], ["row", "c1", "c2", "c29"]])
def test_damaged_entries_are_read_again_into_the_same_memory(
    server: S3Server, tmp_path: Path, columns: list[str]
) -> None:
    upload(server, tmp_path)
    cached = make(server, HostCache(tmp_path / "cache", max_bytes="1GiB"), columns=columns)
    plain = make(server, None, columns=columns)
    rows(cached)
    for number, entry in enumerate(sorted(tmp_path.glob("cache/*/entries/*/*"))):
        whole = entry.read_bytes()
        entry.write_bytes([whole[:-9], whole[:-9] + bytes(9), whole[:200] + b"!" + whole[201:]][number % 3])
    for epoch in range(1, 3):
        server.forget()
        cached.set_epoch(epoch)
        plain.set_epoch(epoch)
        for one, other in zip(list(cached), list(plain), strict=True):
            assert all(one[name].equal(other[name]) for name in columns)
    assert cached.metrics().cache_events["damaged"] >= 12
    server.forget()
    rows(cached, 3)
    assert server.requests == []


def test_a_directory_deleted_in_the_middle_costs_requests_only(server: S3Server, tmp_path: Path) -> None:
    upload(server, tmp_path)
    loader = make(server, HostCache(tmp_path / "cache", max_bytes="1GiB"))
    for epoch in range(3):
        loader.set_epoch(epoch)
        found = []
        for batch in loader:
            found += batch["row"].tolist()
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        assert sorted(found) == list(range(ROWS))


def test_a_schedule_is_there_as_long_as_its_loader(server: S3Server, tmp_path: Path) -> None:
    upload(server, tmp_path)
    loader = make(server, HostCache(tmp_path / "cache", max_bytes="1GiB"))
    rows(loader)
    assert len(list(tmp_path.glob("cache/*/schedules/*"))) == 1
    del loader
    assert list(tmp_path.glob("cache/*/schedules/*")) == []
