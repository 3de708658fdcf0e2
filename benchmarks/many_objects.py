"""What does a scan of many objects of a store that answers at once cost, in processor time and memory?

    python benchmarks/many_objects.py [--objects 20000] [--rounds 3]

The server is a process of its own, and its time is not counted. It has one object under many names and etags. Each scan
is a process of its own too: the first finds no footer on this host, the second finds all of them.
"""

import argparse
import asyncio
import io
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import print_machine, save
from tests.faults.s3_server import options_for

PAGE = 1000
WAYS = {
    "obstore": ("obstore", True),
    "obstore, footers kept": ("obstore", True),
    "obstore, none kept": ("obstore", False),
    "s3fs, none kept": ("fsspec", False),
}


class Connection(asyncio.Protocol):
    """A connection to the store: listings and ranges, and no check of anything."""

    def __init__(self, data: bytes, objects: int) -> None:
        self.data, self.objects, self.rest = data, objects, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self.rest = (self.rest + data).split(b"\r\n\r\n")
        for request in requests:
            self.answer(request)

    def answer(self, request: bytes) -> None:
        first, *lines = request.split(b"\r\n")
        method, target, _ = first.split(b" ")
        path, _, query = target.partition(b"?")
        number = path.rpartition(b"/")[2].partition(b".")[0]
        if not number.isdigit():
            self.reply(b"404 Not Found", b"", b"") if method == b"HEAD" else self.list(query)
            return
        headers = b'ETag: "%032d"\r\nLast-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n' % int(number)
        if method == b"HEAD":
            self.transport.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (headers, len(self.data)))
            return
        span = next((line for line in lines if line[:6].lower() == b"range:"), b"")
        start, _, stop = span.partition(b"=")[2].partition(b"-")
        headers += b"Content-Range: bytes %s-%s/%d\r\n" % (start, stop, len(self.data))
        self.reply(b"206 Partial Content", headers, self.data[int(start) : int(stop) + 1])

    def list(self, query: bytes) -> None:
        named = dict(each.partition(b"=")[::2] for each in query.split(b"&"))
        start = int(named.get(b"continuation-token", b"0"))
        stop = min(start + PAGE, self.objects)
        contents = "".join(
            f"<Contents><Key>data/{number:07}.parquet</Key><LastModified>2026-10-21T07:28:00.000Z</LastModified>"
            f'<ETag>"{number:032}"</ETag><Size>{len(self.data)}</Size></Contents>'
            for number in range(start, stop)
        )
        is_cut = stop < self.objects
        more = f"<NextContinuationToken>{stop}</NextContinuationToken>" if is_cut else ""
        body = (
            f"<?xml version='1.0'?><ListBucketResult><Name>bucket</Name><Prefix>data/</Prefix><KeyCount>{stop - start}"
            f"</KeyCount><MaxKeys>{PAGE}</MaxKeys><IsTruncated>{str(is_cut).lower()}</IsTruncated>{more}{contents}"
            "</ListBucketResult>"
        )
        self.reply(b"200 OK", b"Content-Type: application/xml\r\n", body.encode())

    def reply(self, status: bytes, headers: bytes, body: bytes) -> None:
        self.transport.write(b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, headers, len(body), body))


def serve(arguments: argparse.Namespace, port: Any) -> None:
    """Serve until this process is ended."""
    random, sink = np.random.default_rng(0), io.BytesIO()
    table = pa.table({f"c{i}": random.random(arguments.rows).astype(np.float32) for i in range(arguments.columns)})
    pq.write_table(table, sink, use_dictionary=False, compression="none")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(sink.getvalue(), arguments.objects), "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def scan(port: int, backend: str, kept: bool, cache: str, result: Any) -> None:
    """Send processor seconds, seconds, and megabytes beyond the memory of a process that has scanned nothing."""
    os.environ["TORCH_DATALOADER_UTILS_CACHE"] = cache
    from torch_dataloader_utils import RemoteOptions, scan_files

    options = {"storage_options": options_for(port), "remote": RemoteOptions(backend=backend, keep_footers=kept)}
    scan_files("s3://bucket/data/0000000.parquet", **options)
    memory, begin, busy = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter(), time.process_time()
    inventory = scan_files("s3://bucket/data", **options)
    busy, spent = time.process_time() - busy, time.perf_counter() - begin
    result.send((busy, spent, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1e3, inventory.num_files))


def main() -> None:
    """One line a way: medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    arguments = parser.parse_args()
    print_machine()
    spawn, (ours, theirs) = multiprocessing.get_context("spawn"), multiprocessing.Pipe()
    server = spawn.Process(target=serve, args=(arguments, theirs), daemon=True)
    server.start()
    port, found = ours.recv(), {way: [] for way in arguments.ways}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for way in arguments.ways:
                process = spawn.Process(target=scan, args=(port, *WAYS[way], cache, theirs))
                process.start()
                *figures, files = ours.recv()
                process.join()
                if files != arguments.objects:
                    raise SystemExit(f"{way}: {files} files of {arguments.objects}")
                found[way].append(figures)
    server.kill()
    print(f"{'':>24} {'processor ms/object':>20} {'objects/s':>10} {'KB/object':>10}")
    for way, rounds in found.items():
        busy, spent, memory = (statistics.median(each) for each in zip(*rounds, strict=True))
        count = arguments.objects
        print(f"{way:>24} {busy / count * 1e3:20.3f} {count / spent:10.0f} {memory / count * 1e3:10.2f}")
    save("many_objects", **vars(arguments), rounds_of=found)


if __name__ == "__main__":
    main()
