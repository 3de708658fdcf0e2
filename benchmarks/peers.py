"""How fast do other loaders read the same table into tensors? Only those that are installed are measured.

python benchmarks/peers.py [GiB] [runs] [row groups of the part that slow peers read]

A peer that is slow reads a part, from two files; its seconds are scaled to all rows, and its line says so.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import peer_conversions
import peer_readers
import pyarrow.parquet as pq
from bare import polars_frames, pyarrow_threads
from data import STACK, tabular
from measure import alternate, report
from peer_readers import Pass
from tabular import passes


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


def ours(folder: Path, batch: int) -> dict[str, Pass]:
    """This library, by engine and form."""
    workers = {"num_workers": 2, "persistent_workers": True}
    return {
        f"this library, threads, batch {batch}": passes(folder, num_workers=0, batch_size=batch),
        f"this library, threads, stacked, batch {batch}": passes(folder, num_workers=0, batch_size=batch, stack=STACK),
        f"this library, 2 processes, batch {batch}": passes(folder, **workers, batch_size=batch),
    }


def versions() -> dict[str, str]:
    """Of the peers that measure.py does not name."""
    found = {}
    for name in ("ray", "litdata", "mosaicml-streaming"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 0.25
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    groups = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    folder = tabular(gib)
    part = part_of(folder, groups)
    rows, part_rows = pyarrow_threads(folder), pyarrow_threads(part)
    cases: dict[str, Pass] = {"limit: pyarrow, a thread a core": lambda: pyarrow_threads(folder)}
    scales: dict[str, float] = {}
    peers = [peer for peer in PEERS if peer_readers.available(peer.package)]
    for peer in PEERS:
        if peer not in peers:
            print(f"{peer.name}: {peer.package} is not installed, skipped")
    if peer_readers.available("polars"):
        cases["polars, file by file"] = lambda: polars_frames(folder)
    for batch in (1024, 8192):
        cases |= ours(folder, batch)
        for peer in peers:
            for workers in peer.workers:
                name = f"{peer.name}, {workers} workers, batch {batch}"
                if workers in peer.slow_with:
                    name += f" ({part_rows / rows:.0%} of rows)"
                    cases[name] = checked(peer.build(part, batch, workers), part_rows)
                    scales[name] = rows / part_rows
                else:
                    cases[name] = checked(peer.build(folder, batch, workers), rows)
    times = alternate(cases, runs=runs)
    scaled = {name: [run * scales.get(name, 1.0) for run in took] for name, took in times.items()}
    conversions = peer_conversions.seconds_of(part)
    facts = {"part_rows": part_rows, "conversion_seconds": conversions, "peers": versions(), "page_cache": "warm"}
    report("peers", scaled, limit=next(iter(cases)), unit="rows", amount=rows, gib=gib, **facts)
    print(f"peers: {facts['peers']}")
    for name, took in conversions.items():
        print(f"conversion of {part_rows:,} rows for {name}: {took:.1f} s, once, not in the figures above")


if __name__ == "__main__":
    main()
