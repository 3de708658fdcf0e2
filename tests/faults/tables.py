"""Files whose rows say who they are."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def table(first: int, rows: int, extra_columns: int = 0) -> pa.Table:
    """Rows first, first + 1, ...; `check` is derived from `row`, so that a wrong value with a right id shows."""
    row = np.arange(first, first + rows)
    columns: dict[str, Any] = {"row": row, "check": row * 7 + 3}
    random = np.random.default_rng(first)
    columns |= {f"c{i}": random.random(rows).astype(np.float32) for i in range(extra_columns)}
    return pa.table(columns)


def parquet_bytes(data: pa.Table, group_rows: int = 100, **options: Any) -> bytes:
    """The file, with page checksums."""
    sink = io.BytesIO()
    pq.write_table(data, sink, row_group_size=group_rows, write_page_checksum=True, **options)
    return sink.getvalue()


def upload(server: Any, files: int = 3, rows: int = 300, extra_columns: int = 0, **options: Any) -> int:
    """Files data/0.parquet, ... of so many rows each; returns rows altogether."""
    for file in range(files):
        server.put(f"data/{file}.parquet", parquet_bytes(table(file * rows, rows, extra_columns), **options))
    return files * rows


def assert_rows(batches: Any, total: int) -> None:
    """Every row once, each with its own values."""
    batches = list(batches)
    row = np.concatenate([np.asarray(batch["row"]) for batch in batches])
    check = np.concatenate([np.asarray(batch["check"]) for batch in batches])
    assert sorted(row.tolist()) == list(range(total))
    assert (check == row * 7 + 3).all()
