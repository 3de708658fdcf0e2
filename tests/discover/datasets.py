"""Random data sets on disk, and the rows they hold."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
from hypothesis import strategies as st

SCHEMA = pa.schema(
    [("file", pa.int64()), ("row", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("maybe", pa.int64())]
)

GROUPS = st.lists(st.integers(0, 40), max_size=6)
"""Rows of each row group of one file."""

FILES = st.lists(GROUPS, min_size=1, max_size=8)


def file_table(file: int, rows: int, start: int = 0) -> pa.Table:
    """Rows [start, start + rows) of one file; every cell follows from file and row. `maybe` is null at each third row,
    `x` is NaN at each fifth."""
    numbers = range(start, start + rows)
    columns = {
        "file": [file] * rows,
        "row": list(numbers),
        "x": [float("nan") if n % 5 == 4 else n / 2 for n in numbers],
        "s": [f"{file}-{n}" for n in numbers],
        "maybe": [None if n % 3 == 2 else n for n in numbers],
    }
    return pa.table(columns, schema=SCHEMA)


def write_parquet(path: Path, file: int, groups: list[int]) -> None:
    """One Parquet file with exactly these row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        start = 0
        for rows in groups:
            writer.write_table(file_table(file, rows, start))
            start += rows


def write_arrow(path: Path, file: int, groups: list[int], *, as_stream: bool) -> None:
    """One Arrow IPC file or stream with exactly these record batches."""
    make = pa.ipc.new_stream if as_stream else pa.ipc.new_file
    with make(str(path), SCHEMA) as writer:
        start = 0
        for rows in groups:
            for batch in file_table(file, rows, start).to_batches():
                writer.write_batch(batch)
            start += rows


def write_orc(path: Path, file: int, rows: int, stripe_bytes: int) -> None:
    """One ORC file with whatever stripes this size gives."""
    with orc.ORCWriter(str(path), stripe_size=stripe_bytes, compression="zstd", batch_size=64) as writer:
        writer.write(file_table(file, rows))


Write = Callable[[Path, pa.Table], object]


def _write_json(path: Path, table: pa.Table) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def _write_ipc(path: Path, table: pa.Table, *, as_stream: bool) -> None:
    make = pa.ipc.new_stream if as_stream else pa.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=500)


WRITERS: dict[str, tuple[str, Write]] = {
    "parquet": ("parquet", lambda path, table: pq.write_table(table, path, row_group_size=500)),
    "orc": ("orc", lambda path, table: orc.write_table(table, str(path))),
    "arrow": ("arrow", lambda path, table: _write_ipc(path, table, as_stream=False)),
    "stream": ("arrow", lambda path, table: _write_ipc(path, table, as_stream=True)),
    "csv": ("csv", lambda path, table: csv.write_csv(table, path)),
    "jsonl": (
        "jsonl",
        _write_json,
    ),
}
"""Of every format: what `format=` is called, and what writes any table as one file of it."""
