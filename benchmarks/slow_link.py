"""Which part of a slow store's bandwidth does an epoch use, with and without a cache on the host's disk?

    python benchmarks/slow_link.py [--latency 0.1] [--connection-mb 50] [--link-mb 200] [--rounds 3]

The server is a process of its own. Each reply waits for the latency, then for its bytes on its own connection and on
the link that all connections share. The part is (bytes / bandwidth of the link) / seconds of the epoch.
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import print_machine, save
from tests.faults.s3_server import Reply, Request, Rule, S3Server, options_for

from torch_dataloader_utils import Decoding, HostCache, RemoteOptions, StructuredDataset

COLUMNS = 50
# Rows of a row group, row groups of a file, and files.
SHAPES = {"1 MB": (5_000, 20, 8), "4 MB": (20_000, 6, 8), "32 MB": (160_000, 6, 2)}


def serve(arguments: argparse.Namespace, port: Any) -> None:
    """Serve all shapes until this process is ended."""
    server, free, lock = S3Server(), [0.0], threading.Lock()

    def wait(_: S3Server, __: Request, reply: Reply) -> None:
        time.sleep(arguments.latency)
        size, now = len(reply.body) / 1e6, time.monotonic()
        with lock:
            free[0] = max(free[0], now) + size / arguments.link_mb
            done = max(free[0], now + size / arguments.connection_mb)
        time.sleep(max(0.0, done - time.monotonic()))

    for name, (rows, groups, files) in SHAPES.items():
        random = np.random.default_rng(0)
        for file in range(files):
            table = pa.table({f"c{i}": random.random(rows * groups).astype(np.float32) for i in range(COLUMNS)})
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, row_group_size=rows, use_dictionary=False, compression="none")
            server.put(f"{name}/{file}.parquet", sink.getvalue().to_pybytes())
    server.rules.append(Rule(wait, count=None))
    port.send(server.port)
    threading.Event().wait()


def part_used(port: int, name: str, arguments: argparse.Namespace, threads: int | None, *, cached: bool) -> float:
    """Return the part of the bandwidth of one epoch; footers are known, and a cache is empty."""
    with tempfile.TemporaryDirectory() as directory:
        loader, _ = StructuredDataset.create_dataloader(
            f"s3://bucket/{name}",
            batch_size=8192,
            num_workers=0,
            storage_options=options_for(port),
            decoding=Decoding(threads=threads),
            remote=RemoteOptions(cache=HostCache(directory, max_bytes="10GiB") if cached else None),
        )
        begin = time.perf_counter()
        for _ in loader:
            pass
        spent = time.perf_counter() - begin
        return loader.metrics().fetched_bytes / 1e6 / arguments.link_mb / spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--connection-mb", type=float, default=50)
    parser.add_argument("--link-mb", type=float, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print_machine()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(arguments, theirs), daemon=True)
    server.start()
    port, figures = ours.recv(), {}
    print(f"{'row groups':>10} {'16 threads':>10} {'default':>8} {'with cache':>10}")
    for name in SHAPES:
        ways: tuple[tuple[int | None, bool], ...] = ((16, False), (None, False), (None, True))
        found = [
            [part_used(port, name, arguments, each, cached=kept) for each, kept in ways]
            for _ in range(arguments.rounds)
        ]
        figures[name] = [statistics.median(parts) for parts in zip(*found, strict=True)]
        print(f"{name:>10} {figures[name][0]:10.2f} {figures[name][1]:8.2f} {figures[name][2]:10.2f}")
    server.kill()
    save("slow_link", **vars(arguments), parts=figures)


if __name__ == "__main__":
    main()
