"""Columns that are required in one file and nullable in the next."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import StructuredDataset

LISTS, REQUIRED_LISTS = pa.list_(pa.int64()), pa.list_(pa.field("item", pa.int64(), nullable=False))
PAIRS, REQUIRED_PAIRS = pa.list_(pa.int64(), 2), pa.list_(pa.field("item", pa.int64(), nullable=False), 2)
POINTS, REQUIRED_POINTS = pa.struct([("x", pa.int64())]), pa.struct([pa.field("x", pa.int64(), nullable=False)])
MAPS = pa.map_(pa.string(), pa.int64())
REQUIRED_MAPS = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
SCHEMA = pa.schema([("n", pa.int64()), ("lists", LISTS), ("pairs", PAIRS), ("points", POINTS), ("maps", MAPS)])
REQUIRED = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("lists", REQUIRED_LISTS, nullable=False),
        pa.field("pairs", REQUIRED_PAIRS, nullable=False),
        pa.field("points", REQUIRED_POINTS, nullable=False),
        pa.field("maps", REQUIRED_MAPS, nullable=False),
    ]
)
FULL = [
    {"n": 1, "lists": [1], "pairs": [1, 2], "points": {"x": 1}, "maps": [("a", 1)]},
    {"n": 2, "lists": [], "pairs": [3, 4], "points": {"x": 2}, "maps": []},
]
SPARSE = [
    {"n": 3, "lists": [5, None], "pairs": [None, 6], "points": {"x": None}, "maps": [("b", None)]},
    {"n": None, "lists": None, "pairs": None, "points": None, "maps": None},
]


def write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema, kind: str) -> None:
    table = pa.Table.from_pylist(rows, schema)
    if kind == "parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_file(path, schema) as writer:
        writer.write_table(table)


def batches(folder: Path, **options: Any) -> list[Any]:
    return list(StructuredDataset.create_dataloader(str(folder), num_workers=0, **options)[0])


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("is_required_first", [True, False])
@pytest.mark.parametrize("batch_size", [2, 3])
def test_rows_of_both_are_delivered(tmp_path: Path, kind: str, is_required_first: bool, batch_size: int) -> None:
    files = [(FULL, REQUIRED), (SPARSE, SCHEMA)]
    for name, (rows, schema) in zip("ab", files if is_required_first else files[::-1], strict=True):
        write(tmp_path / name, rows, schema, kind)
    wanted = FULL + SPARSE if is_required_first else SPARSE + FULL
    options: dict[str, Any] = {"format": kind, "batch_size": batch_size}
    tables = batches(tmp_path, output_format="arrow", **options)
    assert all(table.schema.equals(SCHEMA) for table in tables)
    assert [row for table in tables for row in table.to_pylist()] == wanted
    dicts = batches(tmp_path, output_format="dict", **options)
    assert {name: [v for batch in dicts for v in batch[name]] for name in SCHEMA.names} == {
        name: [row[name] for row in wanted] for name in SCHEMA.names
    }
    shuffled = batches(tmp_path, output_format="arrow", shuffle_rows=4, **options)
    assert sorted(str(row) for table in shuffled for row in table.to_pylist()) == sorted(map(str, wanted))
    kept = batches(tmp_path, output_format="arrow", filters=pc.field("n") > 1, **options)
    assert [row for table in kept for row in table.to_pylist()] == [row for row in wanted if row["n"] in (2, 3)]


@pytest.mark.parametrize("names", ["abcd", "cdab", "acbd"])
def test_tensors_of_both_are_the_values(tmp_path: Path, names: str) -> None:
    columns = ["n", "pairs"]
    schemas = [pa.schema([schema.field(name) for name in columns]) for schema in (REQUIRED, REQUIRED, SCHEMA, SCHEMA)]
    for name, schema in zip(names, schemas, strict=True):
        write(tmp_path / name, [{name: row[name] for name in columns} for row in FULL], schema, "parquet")
    for output_format in ("torch", "numpy"):
        (batch,) = batches(tmp_path, batch_size=8, output_format=output_format)
        assert np.asarray(batch["n"]).tolist() == [1, 2] * 4
        assert np.asarray(batch["pairs"]).tolist() == [[1, 2], [3, 4]] * 4


def test_nulls_in_a_column_that_its_own_file_calls_required_are_delivered(tmp_path: Path) -> None:
    schema = pa.schema([REQUIRED.field("n")])
    with pa.ipc.new_file(tmp_path / "a", schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([7, None])], schema=schema))
    (batch,) = batches(tmp_path, batch_size=2, output_format="dict", format="arrow")
    assert batch["n"] == [7, None]
