"""Columns come in the data set's types, or not at all."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.formats.files import make_spec, write_arrow, write_parquet
from torch_dataloader_utils.errors import SchemaError
from torch_dataloader_utils.formats.conform import is_harmless
from torch_dataloader_utils.tables.reader import make_reader

POINT = pa.struct([("x", pa.int32())])
HARMLESS = [
    (pa.int32(), pa.int64(), [1, None]),
    (pa.int64(), pa.int8(), [1, None]),
    (pa.int32(), pa.float64(), [1, None]),
    (pa.float32(), pa.float64(), [0.5, None]),
    (pa.string(), pa.large_string(), ["a", None]),
    (pa.large_string(), pa.string(), ["a", None]),
    (pa.binary(), pa.string(), [b"a", None]),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), ["a", None, "a"]),
    (pa.string(), pa.dictionary(pa.int32(), pa.string()), ["a", None, "a"]),
    (pa.timestamp("ms"), pa.timestamp("us"), [0, None]),
    (pa.date32(), pa.timestamp("us"), [0, None]),
    (pa.decimal128(5, 2), pa.decimal128(9, 3), [None]),
    (pa.list_(pa.int32()), pa.large_list(pa.int64()), [[1], None, []]),
    (pa.list_(pa.float32()), pa.list_(pa.float32(), 2), [[1.0, 2.0], None]),
    (POINT, pa.struct([("x", pa.int64())]), [{"x": 1}, None]),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]),
    (pa.null(), pa.int64(), [None, None]),
]
HARMFUL = [
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.int64()),
    (pa.string(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.int64(), pa.bool_()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.string(), pa.binary()),
    (pa.list_(pa.float64()), pa.list_(pa.float32())),
    (POINT, pa.struct([("y", pa.int32())])),
    (pa.int64(), pa.list_(pa.int64())),
    (pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.int64())),
]


def read_as(path: Path, column: pa.Array, wanted: pa.Field) -> pa.RecordBatch:
    (task,) = write_parquet(path / "a.parquet", pa.table({"c": column}))
    return make_reader(make_spec(pa.schema([wanted]))).read(task)


@pytest.mark.parametrize(("seen", "wanted", "values"), HARMLESS, ids=lambda value: str(value))
def test_harmless_differences_are_cast_without_changing_a_value(
    tmp_path: Path, seen: Any, wanted: Any, values: list[Any]
) -> None:
    column = pa.array(values, seen)
    batch = read_as(tmp_path, column, pa.field("c", wanted))
    assert batch.schema.field("c").type == wanted
    if seen == pa.null():
        assert batch.column("c").null_count == 2
    else:
        assert batch.column("c").cast(seen).to_pylist() == column.to_pylist()


@pytest.mark.parametrize(("seen", "wanted"), HARMFUL, ids=lambda value: str(value))
def test_differences_that_change_values_are_refused(tmp_path: Path, seen: Any, wanted: Any) -> None:
    assert not is_harmless(seen, wanted)
    with pytest.raises(SchemaError, match=r"column c is .* in the file and .* in the data set's schema"):
        read_as(tmp_path, pa.nulls(2, seen), pa.field("c", wanted))


def test_a_value_that_does_not_fit_is_an_error_not_a_wrap(tmp_path: Path) -> None:
    for values, wanted in (([300], pa.int8()), ([2**53 + 1], pa.float64())):
        with pytest.raises(SchemaError, match="column c"):
            read_as(tmp_path, pa.array(values), pa.field("c", wanted))
    with pytest.raises(SchemaError, match="column c"):
        read_as(tmp_path, pa.array([b"\xff"]), pa.field("c", pa.string()))


def test_a_column_that_the_file_lacks_is_null_unless_it_may_not_be(tmp_path: Path) -> None:
    batch = read_as(tmp_path, pa.array([1, 2]), pa.field("new", pa.string()))
    assert batch.to_pydict() == {"new": [None, None]}
    with pytest.raises(SchemaError, match="column new has 2 nulls"):
        read_as(tmp_path, pa.array([1, 2]), pa.field("new", pa.string(), nullable=False))


def test_fields_that_only_the_file_requires_are_nullable_with_the_same_values(tmp_path: Path) -> None:
    """Also of lists of nulls, of which a cast makes damaged arrays."""
    nulls = pa.list_(pa.null())
    required = pa.list_(pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", nulls, nullable=False)]))
    wanted = pa.list_(pa.struct([("x", pa.int32()), ("y", nulls)]))
    values = [[{"x": 1, "y": [None] * 5}], None, [{"x": 3, "y": [None]}, {"x": 4, "y": []}]]
    (task,) = write_arrow(tmp_path / "a.arrow", pa.table({"c": pa.array(values, required)}), 3)
    column = make_reader(make_spec(pa.schema([("c", wanted)]))).read(task).column("c")
    column.validate(full=True)
    assert column.type == wanted
    assert column.to_pylist() == values


def test_field_metadata_is_the_schemas(tmp_path: Path) -> None:
    wanted = pa.field("c", pa.int64(), metadata={"unit": "m"})
    assert read_as(tmp_path, pa.array([1]), wanted).schema.field("c").metadata == {b"unit": b"m"}
