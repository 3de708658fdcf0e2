"""Discovery at scale: a cluster that the user brings, listings of many pages, and 100,000 objects."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.discover.datasets import write_parquet
from tests.faults.conftest import access, lasting_server, server
from tests.faults.s3_server import S3Server
from torch_dataloader_utils._store import StoreAccess, open_store
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import CorruptFileError

__all__ = ["access", "lasting_server", "server"]  # fixtures


@pytest.fixture(scope="module")
def dask_client() -> Iterator[Any]:
    """A local dask cluster of one worker process."""
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=True, dashboard_address=None, scheduler_port=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dask_cluster_scans_files_as_threads_do(dask_client: Any, tmp_path: Path) -> None:
    for index in range(12):
        write_parquet(tmp_path / f"k={index % 3}" / f"{index}.parquet", index, [3, 9])
    options: dict[str, Any] = {"partitioning": "hive", "filters": (pc.field("row") >= 3) & (pc.field("k") != 1)}
    inventory = scan_files(tmp_path, executor=dask_client, **options)
    assert inventory.fingerprint() == scan_files(tmp_path, **options).fingerprint()
    assert inventory.num_rows == 8 * 9
    (tmp_path / "k=2" / "5.parquet").write_bytes(b"no parquet here")
    with pytest.raises(CorruptFileError, match=r"5\.parquet"):
        scan_files(tmp_path, executor=dask_client, **options)
    with pytest.warns(UserWarning, match="left out 1 of 8 files"):
        inventory = scan_files(tmp_path, executor=dask_client, on_error="skip", **options)
    assert inventory.num_rows == 7 * 9


@pytest.mark.slow
def test_a_listing_asks_for_each_page_once(server: S3Server, access: StoreAccess) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    for number in range(600):
        server.objects[f"data/{number:04}"] = (b"x", f"etag-{number}")
    requests = []
    for page_keys in (300, 50):
        server.page_keys = page_keys
        server.forget()
        listing = open_store("s3://bucket/data", access).list_files("s3://bucket/data")
        assert [entry.path for entry in listing.entries] == [f"s3://bucket/data/{n:04}" for n in range(600)]
        requests.append(len(server.requests))
    assert requests[1] - requests[0] == 600 // 50 - 600 // 300


FILES = 100_000

CHILD = f"""
import io, resource, time
import fsspec
import pyarrow as pa, pyarrow.parquet as pq
from torch_dataloader_utils import plan_epoch, scan_files

sink = io.BytesIO()
pq.write_table(pa.table({{"row": list(range(20))}}), sink, row_group_size=10)
DATA = sink.getvalue()

class Many(fsspec.AbstractFileSystem):
    protocol = "many"

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        if not path.endswith(".parquet"):
            return {{"name": path, "size": 0, "type": "directory"}}
        return {{"name": path, "size": len(DATA), "type": "file", "ETag": path}}

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path).strip("/")
        if path == "many":
            return [self.info(f"many/{{folder:02}}") for folder in range(100)]
        folder = int(path[-2:])
        return [self.info(f"{{path}}/{{number:06}}.parquet") for number in range(folder, {FILES}, 100)]

    def cat_file(self, path, start=None, end=None, **kwargs):
        return DATA[start:end]

fsspec.register_implementation("many", Many)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.monotonic()
inventory = scan_files("many://many")
scanned = time.monotonic()
steps = plan_epoch(inventory, num_ranks=64, num_workers=4, batch_size=16, shuffle=True).steps
planned = time.monotonic()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(inventory.num_files, inventory.num_rows, steps, (after - before) // 1024, scanned - begin, planned - scanned)
"""


@pytest.mark.full
def test_a_hundred_thousand_objects_are_listed_and_planned_in_bounded_memory(tmp_path: Path) -> None:
    environment = os.environ | {"TORCH_DATALOADER_UTILS_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=900, check=True, env=environment
    )
    files, rows, steps, grown_mib, *_ = done.stdout.split()
    assert (int(files), int(rows)) == (FILES, 20 * FILES)
    assert int(steps) == -(-20 * FILES // 64 // 16)
    assert int(grown_mib) < 400
