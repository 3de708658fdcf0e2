"""Data of the benchmarks: made once under benchmarks/.data, from fixed seeds."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(os.environ.get("BENCH_DATA", Path(__file__).parent / ".data"))
GROUP_ROWS = 65_536


def made_once(name: str, write: Callable[[Path], None]) -> Path:
    """The folder of this name, which `write` fills if it is not there yet."""
    folder = FOLDER / name
    if not folder.exists():
        temporary = folder.with_suffix(".tmp")
        temporary.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.rename(folder)
    return folder


LAYOUTS = ("snappy", "zstd", "snappy-required", "zstd-required")


def tabular(gib: float = 1.0, layout: str = "snappy") -> Path:
    """40 float32, 10 int64 and 1 int8 column in 8 files, row groups of 64 Ki rows, with dictionaries.

    layout: the codec, and whether the schema says that there are no nulls, of which there are none.
    """

    def write(folder: Path) -> None:
        rows = int(gib * 2**30 / 241)
        groups = max(8, rows // GROUP_ROWS)
        codec, _, required = layout.partition("-")
        schema = _tabular(np.random.default_rng(0), 1).schema
        schema = pa.schema([field.with_nullable(not required) for field in schema])

        def write_file(file: int) -> None:
            rng = np.random.default_rng([0, file])
            with pq.ParquetWriter(folder / f"part-{file}.parquet", schema, compression=codec) as writer:
                for _ in range(file, groups, 8):
                    writer.write_table(_tabular(rng, GROUP_ROWS).cast(schema), row_group_size=GROUP_ROWS)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write_file, range(8)))

    return made_once(f"tabular-{gib:g}" if layout == "snappy" else f"tabular-{gib:g}-{layout}", write)


def _tabular(rng: np.random.Generator, rows: int) -> pa.Table:
    columns: dict[str, np.ndarray] = {f"f{i}": rng.random(rows, dtype=np.float32) for i in range(40)}
    columns |= {f"i{i}": rng.integers(0, 1000, rows) for i in range(10)}
    columns["label"] = rng.integers(0, 2, rows).astype(np.int8)
    return pa.table(columns)


STACK = {
    "x": [f"f{i}" for i in range(40)],
    "ids": [f"i{i}" for i in range(10)],
}


def tokens(millions: int = 200) -> Path:
    """A list<int32> column of documents with lognormal lengths, 8 files."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(1)
        for file in range(8):
            left = millions * 1_000_000 // 8
            schema = pa.schema([("tokens", pa.list_(pa.int32()))])
            with pq.ParquetWriter(folder / f"part-{file}.parquet", schema) as writer:
                while left > 0:
                    lengths = np.minimum(rng.lognormal(6.2, 1.0, 4096).astype(np.int64) + 1, 32_768)
                    values = rng.integers(0, 50_000, int(lengths.sum()), dtype=np.int32)
                    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
                    writer.write_table(pa.table([column], schema=schema), row_group_size=4096)
                    left -= int(lengths.sum())

    return made_once(f"tokens-{millions}", write)


def small_files(count: int = 2000, rows: int = 500) -> Path:
    """Many files of one small row group."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(2)
        for file in range(count):
            table = pa.table({f"c{i}": rng.random(rows, dtype=np.float32) for i in range(10)})
            pq.write_table(table, folder / f"part-{file:05}.parquet")

    return made_once(f"small-{count}x{rows}", write)


def large_groups(megabytes: int = 256, groups: int = 6) -> Path:
    """One file with row groups of so many megabytes each."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(3)
        rows = megabytes * 2**20 // 64
        schema = pa.schema([(f"c{i}", pa.float64()) for i in range(8)])
        with pq.ParquetWriter(folder / "part-0.parquet", schema, compression="none", use_dictionary=False) as writer:
            for _ in range(groups):
                table = pa.table({name: rng.random(rows) for name in schema.names}, schema=schema)
                writer.write_table(table, row_group_size=rows)

    return made_once(f"groups-{megabytes}x{groups}", write)
