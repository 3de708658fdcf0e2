"""How many requests does a cache on the host's disk save, and how near is that to the best possible?

    python benchmarks/host_cache.py [--epochs 6] [--latency 0.05] [--host-shares 2]

Two hosts are two directories, with two ranks each, in four processes that wait for each other after every step (gloo).
The bound is computed by brute force: Belady's rule, with all accesses of all epochs known. LRU is simulated on the same
accesses. At last, the same rows of one process: from a warm cache, from local files, from fsspec's filecache.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import print_machine, save
from tests.faults.s3_server import BUCKET, S3Server, options_for

from torch_dataloader_utils import Decoding, HostCache, RemoteOptions, StructuredDataset
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Position, Segment

COLUMNS = ["c1", "c2"]
FILES, GROUPS, ROWS, BATCH = 8, 10, 4096, 1024
RANKS, HOSTS = 4, 2
# Little is decoded ahead, as of data that is much larger than memory.
DECODING = Decoding(threads=2, ahead_bytes="200KiB")


def encoded(file: int) -> bytes:
    """A file of 4 columns of random numbers, two of which are read."""
    random = np.random.default_rng(file)
    table = pa.table({f"c{i}": random.random(GROUPS * ROWS) for i in range(4)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=ROWS, use_dictionary=False, compression="none")
    return bytes(sink.getvalue())


def make_loader(path: str, port: int, rank: int, cache: HostCache | None, **options: Any) -> Any:
    """A loader of one rank."""
    loader, _ = StructuredDataset.create_dataloader(
        path,
        columns=COLUMNS,
        batch_size=BATCH,
        shuffle="chunks",
        split_rows=ROWS,
        rank=rank,
        num_ranks=options.pop("num_ranks", RANKS),
        num_workers=0,
        decoding=options.pop("decoding", DECODING),
        storage_options=options_for(port) if path.startswith("s3") else options.pop("storage_options", None),
        remote=RemoteOptions(cache=cache),
        **options,
    )
    return loader


def run_rank(rank: int, port: int, directory: str, max_bytes: int, epochs: int, host_shares: int | None) -> None:
    """One rank: prints requests and bytes of each epoch."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank, world_size=RANKS)
    cache = HostCache(f"{directory}/host{rank * HOSTS // RANKS}", max_bytes=max_bytes)
    loader = make_loader(f"s3://{BUCKET}/data", port, rank, cache, host_shares=host_shares)
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        before = loader.metrics()
        for _ in loader:
            dist.barrier()
        now = loader.metrics() - before
        found.append([now.requests, now.fetched_bytes, now.cache_events["hits"], now.cache_events["evictions"]])
    Path(f"{directory}/rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def accesses(port: int, epochs: int, host_shares: int | None) -> list[list[tuple[int, int]]]:
    """Of every host, (row group, epoch) of every read of its ranks, in order."""
    loader = make_loader(f"s3://{BUCKET}/data", port, 0, None, host_shares=host_shares)
    planner = loader.dataset.planner
    hosts = []
    for host in range(HOSTS):
        trace = []
        for epoch in range(epochs):
            position = Position(epoch=epoch, segment=Segment(topology=Topology(num_ranks=RANKS, batch_size=BATCH)))
            reads = []
            for rank in range(host * RANKS // HOSTS, (host + 1) * RANKS // HOSTS):
                found, count = planner.upcoming(position, rank)
                reads += list(zip(found.at_bytes[:count].tolist(), found.group[:count].tolist(), strict=True))
            trace += [(group, epoch) for _, group in sorted(reads)]
        hosts.append(trace)
    return hosts


def misses_by_belady(trace: list[tuple[int, int]], room: int, epochs: int) -> list[int]:
    """Misses of each epoch: what is read again last goes first, or is not kept."""
    cached: set[int] = set()
    missed = [0] * epochs
    later: dict[int, list[int]] = {}
    for index, (group, _) in reversed(list(enumerate(trace))):
        later.setdefault(group, []).append(index)
    for group, epoch in trace:
        later[group].pop()
        missed[epoch] += group not in cached
        cached.add(group)
        if len(cached) > room:
            cached.remove(max(cached, key=lambda each: later[each][-1] if later[each] else len(trace)))
    return missed


def misses_by_lru(trace: list[tuple[int, int]], room: int, epochs: int) -> list[int]:
    """Misses of each epoch: what was read longest ago goes first."""
    cached: dict[int, None] = {}
    missed = [0] * epochs
    for group, epoch in trace:
        missed[epoch] += group not in cached
        cached.pop(group, None)
        cached[group] = None
        if len(cached) > room:
            del cached[next(iter(cached))]
    return missed


def ours(server: S3Server, max_bytes: int, epochs: int, host_shares: int | None) -> list[list[int]]:
    """(requests, bytes, hits, evictions) of each epoch, of both hosts together."""
    with tempfile.TemporaryDirectory() as directory:
        common = ["--port", server.port, "--directory", directory, "--max-bytes", max_bytes, "--epochs", epochs]
        common += [] if host_shares is None else ["--host-shares", host_shares]
        ranks = [
            subprocess.Popen([sys.executable, __file__, "--rank", str(rank), *map(str, common)])
            for rank in range(RANKS)
        ]
        assert not any(process.wait() for process in ranks)
        found = [json.loads(Path(f"{directory}/rank{rank}.json").read_text()) for rank in range(RANKS)]
    return np.array(found).sum(axis=0).tolist()


def warm_epochs(server: S3Server, rounds: int) -> dict[str, float]:
    """Rows a second of one process: from a warm cache, local files and filecache; medians of alternating epochs."""
    with tempfile.TemporaryDirectory() as directory:
        local = Path(directory) / "local"
        local.mkdir()
        for file in range(FILES):
            (local / f"{file}.parquet").write_bytes(encoded(file))
        cache = HostCache(f"{directory}/cache", max_bytes="10GiB")
        remote, fast = f"s3://{BUCKET}/data", {"num_ranks": 1, "decoding": Decoding(threads=2)}
        kept = {"filecache": {"cache_storage": f"{directory}/filecache"}, "s3": options_for(server.port)}
        loaders = {
            "cache": make_loader(remote, server.port, 0, cache, **fast),
            "local": make_loader(str(local), server.port, 0, None, **fast),
            # One thread: of two, one reads what the other has only begun to write.
            "filecache": make_loader(
                f"filecache::{remote}",
                server.port,
                0,
                None,
                storage_options=kept,
                num_ranks=1,
                decoding=Decoding(threads=1),
            ),
        }
        times: dict[str, list[float]] = {name: [] for name in loaders}
        rows = 0
        for number in range(rounds + 2):
            for name, loader in loaders.items():
                server.forget()
                loader.set_epoch(number)
                start = time.perf_counter()
                rows = sum(batch.num_rows for batch in loader)
                times[name].append(time.perf_counter() - start)
                if number > 1:
                    assert name == "filecache" or not server.requests, server.requests[:3]
        return {name: rows / float(np.median(each[2:])) for name, each in times.items()}


def print_epochs(name: str, missed: Iterable[float]) -> None:
    print(f"{name:>28}  " + " ".join(f"{each:8,.0f}" for each in missed))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--directory")
    parser.add_argument("--max-bytes", type=int)
    parser.add_argument("--host-shares", type=int)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(
            arguments.rank,
            arguments.port,
            arguments.directory,
            arguments.max_bytes,
            arguments.epochs,
            arguments.host_shares,
        )
        return
    print_machine()
    server, epochs, shares = S3Server(), arguments.epochs, arguments.host_shares
    for file in range(FILES):
        server.put(f"data/{file}.parquet", encoded(file))
    figures: dict[str, Any] = {}
    traces = accesses(server.port, epochs, shares)
    server.latency_seconds = arguments.latency
    entry = len(COLUMNS) * 8 * ROWS + 1024
    for part in (1.0, 0.5, 0.2):
        room = round(part * FILES * GROUPS / HOSTS)
        max_bytes = room * entry * 16 // 15
        measured = ours(server, max_bytes, epochs, shares)
        best = np.sum([misses_by_belady(trace, room, epochs) for trace in traces], axis=0).tolist()
        lru = np.sum([misses_by_lru(trace, room, epochs) for trace in traces], axis=0).tolist()
        print(
            f"cache of {part:.0%} of what a host reads in an epoch ({room} of {FILES * GROUPS} row groups); by epoch:"
        )
        print_epochs("requests", [each[0] for each in measured])
        print_epochs("bound (Belady)", best)
        print_epochs("LRU", lru)
        print_epochs("MB fetched", [each[1] / 1e6 for each in measured])
        figures[f"{part:.0%}"] = {"measured": measured, "belady": best, "lru": lru}
        later = slice(1, None)
        ours_later, best_later, lru_later = sum(each[0] for each in measured[later]), sum(best[later]), sum(lru[later])
        print(f"    after the first: {ours_later} requests, bound {best_later}, LRU {lru_later}", end="")
        print(f": {ours_later / best_later:.3f} ×, {lru_later / best_later:.3f} ×" if best_later else "")
    server.latency_seconds = 0.0
    figures["rows_per_second"] = speeds = warm_epochs(server, 7)
    print(", ".join(f"{name} {each:,.0f} rows/s" for name, each in speeds.items()))
    print(f"warm cache: {speeds['cache'] / speeds['local']:.2f} × local files")
    server.close()
    save("host_cache", **figures)


if __name__ == "__main__":
    main()
