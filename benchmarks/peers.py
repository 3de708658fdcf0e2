"""How fast do other loaders read the same table into tensors? Only those that are installed are measured.

python benchmarks/peers.py [GiB] [runs] [row groups of the part that slow peers read]

Two tables, each with its limit: readers of this process first, three times the runs, before anything else is started;
then slow ones and all that have processes, which wait idle while others run. A peer that is slow reads a part, from two
files; its seconds are scaled to all rows, what a pass costs once included, and its line says so.
"""

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import peer_conversions
import peer_readers
import pyarrow.parquet as pq
from bare import pyarrow_threads, table_limits
from data import STACK, tabular
from measure import alternate, fastest, report
from peer_readers import Pass
from tabular import passes

BATCHES = (1024, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A loader to hold beside ours.

    package: what is imported; without it the peer is skipped
    workers: the numbers of worker processes it can run with
    slow_with: those of them with which it reads a part of the data
    """

    name: str
    package: str
    build: Callable[[Path, int, int], Pass]
    workers: tuple[int, ...] = (0, 2)
    slow_with: tuple[int, ...] = ()


PEERS = (
    Peer(name="polars, sliced", package="polars", build=peer_readers.polars, slow_with=(2,)),
    Peer(name="torch-dataloader-utils", package="torch_dataloader_utils", build=peer_readers.namesake, slow_with=(2,)),
    Peer(name="ray", package="ray", build=peer_readers.ray, workers=(2,)),
    Peer(name="datasets", package="datasets", build=peer_readers.datasets, slow_with=(0, 2)),
    Peer(name="litdata, Parquet", package="litdata", build=peer_readers.litdata_parquet, slow_with=(0, 2)),
    Peer(name="litdata, converted", package="litdata", build=peer_conversions.litdata, slow_with=(0, 2)),
    Peer(name="mosaicml, converted", package="streaming", build=peer_conversions.mosaicml, slow_with=(0, 2)),
)


def part_of(folder: Path, groups: int) -> Path:
    """Two files of so many row groups each, copied out of the first two: what slow peers read."""
    part = folder.with_name(f"{folder.name}-part-{groups}")
    for path in sorted(folder.glob("*.parquet"))[:2]:
        if not (part / path.name).exists():
            part.mkdir(exist_ok=True)
            file = pq.ParquetFile(path)
            with pq.ParquetWriter(part / path.name, file.schema_arrow) as writer:
                for group in range(min(groups, file.num_row_groups)):
                    table = file.read_row_group(group)
                    writer.write_table(table, row_group_size=len(table))
    return part


def checked(run: Pass, rows: int) -> Pass:
    """The same pass; one that reads another number of rows is an error, not a figure."""

    def count() -> int:
        if (seen := run()) != rows:
            raise ValueError(f"a pass gave {seen} of {rows} rows")
        return seen

    return count


def cases_of(peers: list[Peer], folder: Path, part: Path, *, quick: bool) -> tuple[dict[str, Pass], dict[str, float]]:
    """The passes of one table, and by how much the seconds of those that read a part are scaled."""
    rows, part_rows = pyarrow_threads(folder), pyarrow_threads(part)
    cases: dict[str, Pass] = {}
    scales: dict[str, float] = {}
    for batch in BATCHES:
        cases |= {name: checked(run, rows) for name, run in ours(folder, batch, quick=quick).items()}
    for peer, workers, batch in itertools.product(peers, (0, 2), BATCHES):
        slow = workers in peer.slow_with
        if workers not in peer.workers or quick == (slow or workers > 0):
            continue
        name = f"{peer.name}, {workers} workers, batch {batch}"
        if slow:
            name += f" ({part_rows / rows:.0%})"
            scales[name] = rows / part_rows
        cases[name] = checked(peer.build(part if slow else folder, batch, workers), part_rows if slow else rows)
    return cases, scales


def ours(folder: Path, batch: int, *, quick: bool) -> dict[str, Pass]:
    """This library: threads, in both forms, among the quick ones, processes among the others."""
    if not quick:
        workers = {"num_workers": 2, "persistent_workers": True}
        return {f"this library, 2 workers, batch {batch}": passes(folder, **workers, batch_size=batch)}
    return {
        f"this library, threads, batch {batch}": passes(folder, num_workers=0, batch_size=batch),
        f"this library, threads, stacked, batch {batch}": passes(folder, num_workers=0, batch_size=batch, stack=STACK),
    }


def seconds_of(cases: dict[str, Pass], scales: dict[str, float], runs: int, before: Pass) -> dict[str, list[float]]:
    """Alternating runs, scaled. Every case follows a pass of `before` that is not counted.

    After a peer whose workers still tidy up, the limit took half as long again as after itself, or longer; so would
    the next peer.
    """
    pairs = [{f"before {name}": before, name: run} for name, run in cases.items()]
    times = alternate({name: run for pair in pairs for name, run in pair.items()}, runs=runs)
    return {name: [run * scales.get(name, 1.0) for run in times[name]] for name in cases}


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 0.25
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    groups = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    folder = tabular(gib)
    part = part_of(folder, groups)
    peers = [peer for peer in PEERS if peer_readers.available(peer.package)]
    for peer in PEERS:
        if peer not in peers:
            print(f"{peer.name}: {peer.package} is not installed, skipped")
    rows = pyarrow_threads(folder)
    facts = {"unit": "rows", "amount": rows, "gib": gib, "page_cache": "warm"}
    bare = table_limits(folder)
    before = next(iter(bare.values()))
    cases, scales = cases_of(peers, folder, part, quick=True)
    times = seconds_of(bare | cases, scales, 3 * runs, before)
    report("peers_quick", times, limit=fastest(times, bare), **facts)
    cases, scales = cases_of(peers, folder, part, quick=False)
    conversions = peer_conversions.seconds_of(part)
    times = seconds_of(bare | cases, scales, runs, before)
    report("peers_slow", times, limit=fastest(times, bare), conversion_seconds=conversions, **facts)
    print("(n %) read that part of the rows")
    for name, took in conversions.items():
        print(f"conversion of that part for {name}: {took:.1f} s, once, not in the figures above")


if __name__ == "__main__":
    main()
