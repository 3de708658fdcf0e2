"""Tables with columns of every kind that a shuffle has to move, and what a shuffle of them has to give."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._core.permute import Purpose, permutation

_WHERE = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])


def rows(first: int, count: int) -> pa.Table:
    """Return rows of plain, nested, null and dictionary columns; `row` numbers them."""
    numbers = list(range(first, first + count))
    words = [f"w{n % 5}" * (n % 3) if n % 4 else None for n in numbers]
    return pa.table(
        {
            "row": pa.array(numbers, pa.int64()),
            "small": pa.array([n % 100 if n % 3 else None for n in numbers], pa.int8()),
            "flag": pa.array([n % 2 == 0 for n in numbers], pa.bool_()),
            "price": pa.array([n / 7 for n in numbers], pa.float32()),
            "at": pa.array([n * 10**9 for n in numbers], pa.timestamp("s")),
            "amount": pa.array(numbers, pa.decimal128(30, 4)),
            "name": pa.array([f"row-{n}" for n in numbers], pa.string()),
            "word": pa.array(words, pa.string()),
            "city": pa.array(words, pa.string()).dictionary_encode(),
            "digest": pa.array([n.to_bytes(5, "big") for n in numbers], pa.binary(5)),
            "items": pa.array([list(range(n % 4)) if n % 5 else None for n in numbers], pa.list_(pa.int32())),
            "gaps": pa.array([[n, None] if n % 7 == 1 else [n] * (n % 3) for n in numbers], pa.list_(pa.float64())),
            "pair": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int16(), 2)),
            "where": pa.array([{"x": n, "y": [str(n)] * (n % 2)} if n % 6 else None for n in numbers], _WHERE),
            "tags": pa.array([[(str(n), n)] if n % 2 else [] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "nothing": pa.nulls(count),
        }
    )


def write_files(folder: Path, files: list[list[int]]) -> int:
    """Write a file for each list of row groups (numbers of rows); return the number of rows."""
    folder.mkdir(exist_ok=True)
    first = 0
    for number, groups in enumerate(files):
        with pq.ParquetWriter(folder / f"{number:02}.parquet", rows(0, 0).schema) as writer:
            for count in groups:
                writer.write_table(rows(first, count), row_group_size=max(1, count))
                first += count
    return first


def stored(source: Any, *args: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the rows that a loader gives without a shuffle, in order."""
    dataset = StructuredDataset(source, *args, batch_size=1 << 20, output_format="arrow", **options)
    return [row for batch in dataset for row in batch.to_pylist()]


def in_random_order(ordered: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return the rows in the order that a shuffle has to give them."""
    order = permutation(len(ordered), seed=seed, epoch=0, purpose=Purpose.ROWS)
    return [ordered[place] for place in order.tolist()]


def written(target: Path) -> list[dict[str, Any]]:
    """Return the rows of a target, in the order of files and rows, read by pyarrow alone."""
    return [row for path in sorted(target.glob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]


def contents(target: Path) -> dict[str, bytes]:
    """Return all files of a target."""
    return {path.name: path.read_bytes() for path in sorted(target.iterdir())}


def numbers_of(target: Path) -> np.ndarray[Any, Any]:
    """Return the column `row` of a target, in order."""
    return np.array([each["row"] for each in written(target)])
