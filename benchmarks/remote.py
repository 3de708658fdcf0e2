"""How fast do rows come from an S3 server with 50 and 100 ms in every request? Limit: pyarrow.dataset, as it is.

    python benchmarks/remote.py [--files 8] [--rows 100000] [--rounds 3]

Server and readers share the machine, and the server is Python in this very process: whatever else is Python here
(s3fs) waits for it. A ratio says something, a number of rows a second does not.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from measure import print_machine, save, seconds
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


def ours(server: S3Server, columns: list[str] | None, backend: str) -> Callable[[], int]:
    """One epoch; footers are known by then, as in any epoch but the very first."""
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data",
        columns=columns,
        batch_size=8192,
        num_workers=0,
        storage_options=server.storage_options,
        remote=RemoteOptions(backend=backend),
    )
    return lambda: sum(batch.num_rows for batch in loader)


def theirs(server: S3Server, columns: list[str] | None) -> Callable[[], int]:
    """One pass of pyarrow.dataset, as fast as its defaults are; it ends in record batches, ours in tensors."""
    files = pafs.S3FileSystem(
        access_key="test-key",
        secret_key="test-secret",
        endpoint_override=f"127.0.0.1:{server.port}",
        scheme="http",
        region="us-east-1",
    )
    dataset = ds.dataset("bucket/data", filesystem=files, format="parquet")
    return lambda: sum(batch.num_rows for batch in dataset.to_batches(columns=columns, batch_size=8192))


def checked(run: Callable[[], int], rows: int) -> Callable[[], None]:
    """The same pass; one with other rows ends the script."""

    def check() -> None:
        if (seen := run()) != rows:
            raise SystemExit(f"a pass gave {seen} of {rows} rows")

    return check


def measure(server: S3Server, readers: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, Any]]:
    """Seconds of each reader, alternating, after a round that does not count, and the requests of its last pass."""
    found: dict[str, dict[str, Any]] = {reader: {"seconds": []} for reader in readers}
    for counted in [False] + [True] * rounds:
        for reader, run in readers.items():
            server.forget()
            spent = seconds(run)
            if counted:
                found[reader]["seconds"].append(round(spent, 4))
            found[reader]["requests"] = len(server.requests)
            found[reader]["sent_mb"] = sum(each.sent for each in server.requests if each.method == "GET") / 1e6
            found[reader]["in_flight"] = server.most_in_flight
    return found


def main() -> None:
    """One line a case: medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print_machine()
    print(f"{arguments.files} files x {arguments.rows} rows x 50 float32")
    server = S3Server()
    upload(server, arguments.files, arguments.rows)
    print(
        f"{'columns':>12} {'delay':>6} {'reader':>16} {'seconds':>8} {'ratio':>6} {'requests':>9} {'MB':>7} "
        f"{'in flight':>9}"
    )
    rows: list[dict[str, Any]] = []
    for name, columns in COLUMNS.items():
        for delay in (0.05, 0.1):
            server.latency_seconds = 0.0
            total = arguments.files * arguments.rows
            readers = {"pyarrow.dataset": checked(theirs(server, columns), total)}
            for backend in ("fsspec", "obstore"):
                readers[f"ours, {backend}"] = checked(ours(server, columns, backend), total)
            server.latency_seconds = delay
            found = measure(server, readers, arguments.rounds)
            limit = statistics.median(found["pyarrow.dataset"]["seconds"])
            for reader, row in found.items():
                taken = statistics.median(row["seconds"])
                print(
                    f"{name:>12} {delay * 1000:4.0f}ms {reader:>16} {taken:8.2f} {limit / taken:6.2f} "
                    f"{row['requests']:9} {row['sent_mb']:7.1f} {row['in_flight']:9}"
                )
                rows.append({"columns": name, "delay_seconds": delay, "reader": reader, **row, "ratio": limit / taken})
    server.close()
    save("remote", **vars(arguments), cases=rows)


if __name__ == "__main__":
    main()
