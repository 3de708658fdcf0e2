"""Rows a second from an S3 server with 50 and 100 ms in every request, against pyarrow.dataset on the same server.

    python benchmarks/remote.py [--files 8] [--rows 100000]

Server and readers share the machine, and the server is Python in this very process: whatever else is Python here
(s3fs) waits for it. A ratio says something, a number of rows a second does not.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from tests.faults.s3_server import S3Server

from torch_dataloader_utils import RemoteOptions, StructuredDataset

COLUMNS = {"3 spread": ["c3", "c20", "c44"], "3 adjacent": ["c3", "c4", "c5"], "all 50": None}


def upload(server: S3Server, files: int, rows: int) -> None:
    """Files of 50 float32 columns in 4 row groups."""
    random = np.random.default_rng(0)
    for file in range(files):
        table = pa.table({f"c{i}": random.random(rows).astype(np.float32) for i in range(50)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=rows // 4, use_dictionary=False, compression="snappy")
        server.put(f"data/{file}.parquet", sink.getvalue().to_pybytes())


def ours(server: S3Server, columns: list[str] | None, backend: str) -> tuple[int, Callable[[], int]]:
    """Rows, and one epoch; footers are known by then, as in any epoch but the very first."""
    loader, dataset = StructuredDataset.create_dataloader(
        "s3://bucket/data",
        columns=columns,
        batch_size=8192,
        num_workers=0,
        storage_options=server.storage_options,
        remote=RemoteOptions(backend=backend),
    )
    return dataset.plan().inventory.num_rows, lambda: sum(batch.num_rows for batch in loader)


def theirs(server: S3Server, columns: list[str] | None) -> Callable[[], int]:
    """One pass of pyarrow.dataset, as fast as its defaults are."""
    files = pafs.S3FileSystem(
        access_key="test-key",
        secret_key="test-secret",
        endpoint_override=f"127.0.0.1:{server.port}",
        scheme="http",
        region="us-east-1",
    )
    dataset = ds.dataset("bucket/data", filesystem=files, format="parquet")
    return lambda: sum(batch.num_rows for batch in dataset.to_batches(columns=columns, batch_size=8192))


def seconds(run: Callable[[], int], rows: int, repeats: int = 3) -> float:
    """The best of some runs."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        if run() != rows:
            raise SystemExit("rows are missing")
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    """One line a case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cpus, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, pyarrow {pa.__version__}; "
        f"{arguments.files} files x {arguments.rows} rows x 50 float32"
    )
    server = S3Server()
    upload(server, arguments.files, arguments.rows)
    print(
        f"{'columns':>12} {'delay':>6} {'reader':>16} {'seconds':>8} {'ratio':>6} {'requests':>9} {'MB':>7} "
        f"{'in flight':>9}"
    )
    for name, columns in COLUMNS.items():
        for delay in (0.05, 0.1):
            server.latency_seconds = 0.0
            readers = {"pyarrow.dataset": theirs(server, columns)}
            for backend in ("fsspec", "obstore"):
                rows, readers[f"ours, {backend}"] = ours(server, columns, backend)
            server.latency_seconds = delay
            reference = 0.0
            for reader, run in readers.items():
                seconds(run, rows, repeats=1)
                server.forget()
                taken = seconds(run, rows)
                reference = reference or taken
                megabytes = sum(request.sent for request in server.requests if request.method == "GET") / 3e6
                print(
                    f"{name:>12} {delay * 1000:4.0f}ms {reader:>16} {taken:8.2f} {reference / taken:6.2f} "
                    f"{len(server.requests) // 3:9} {megabytes:7.1f} {server.most_in_flight:9}"
                )
    server.close()


if __name__ == "__main__":
    main()
