"""A shuffle loses nothing unseen: what it cannot write is refused, by name, before anything is written."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rewrite.tables import in_random_order, written
from torch_dataloader_utils import StructuredDataset, scan_files, shuffle_table
from torch_dataloader_utils.errors import ConfigError, UnsupportedFeatureError

TWICE = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], names=["a", "b", "b"])


def in_parquet(folder: Path) -> None:
    pq.write_table(TWICE, folder / "0.parquet")


def in_text(folder: Path) -> None:
    (folder / "0.csv").write_text("a,b,b\n1,3,5\n2,4,6\n")


def in_directories(folder: Path) -> None:
    (folder / "b=7").mkdir()
    pq.write_table(pa.table({"a": [1, 2]}), folder / "b=7" / "0.parquet")


@pytest.mark.parametrize(
    ("write", "kind", "says"),
    [
        (in_parquet, "parquet", "column 'b', but several columns have this name: rename"),
        (in_text, "csv", "column 'b', but several columns have this name: rename"),
        (in_directories, "parquet", r'directories b=\.\.\. are not read as columns: partitioning="hive" reads them'),
    ],
)
def test_columns_that_loaders_leave_out_are_refused_unless_the_caller_names_the_others(
    tmp_path: Path, write: Callable[[Path], None], kind: str, says: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    write(source)
    inventory, of_column = scan_files(source, kind), scan_files(source, kind, columns=["a"])
    for options in ({}, {"inventory": inventory}, {"inventory": of_column}):
        with pytest.raises(ConfigError, match=f"a shuffle writes all columns, and .*{says}.*columns="):
            shuffle_table(StructuredDataset(source, kind, output_format="arrow", **options), target)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}
    for options in ({}, {"inventory": inventory}):
        shuffle_table(StructuredDataset(source, kind, columns=["a"], output_format="arrow", **options), target)
        assert written(target) == in_random_order([{"a": 1}, {"a": 2}], 42)


def test_columns_that_differ_between_files_are_refused_although_the_inventory_leaves_them_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, value in (("0", 1), ("1", "x")):
        pq.write_table(pa.table({"a": [1], "b": [value]}), source / f"{name}.parquet")
    inventory = scan_files(source, columns=["a"])
    with pytest.raises(ConfigError, match=r"a shuffle writes all columns, and .*has column 'b' as string"):
        shuffle_table(StructuredDataset(source, inventory=inventory, output_format="arrow"), tmp_path / "out")
    named = StructuredDataset(source, inventory=inventory, columns=["a"], output_format="arrow")
    assert shuffle_table(named, tmp_path / "out").num_rows == 2


_TEXT = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["x", "y"]))
_ENDS = pa.array([0, 1, 2], pa.int32())


@pytest.mark.parametrize(
    "column",
    [
        pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
        # pyarrow casts views of lists to lists that end in random memory.
        pa.array([[1], [2, 3]], pa.list_view(pa.int8())),
        pa.array([{}, {}], pa.struct([])),
        pa.array([b"", b""], pa.binary(0)),
        pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()),
        pa.array([Decimal("1200"), None], pa.decimal128(5, -2)),
        pa.MapArray.from_arrays(_ENDS, _TEXT, pa.array([1, 2])),
        pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array([{"x": 1}, {"x": 2}])),
    ],
    ids=lambda column: str(column.type),
)
def test_a_column_that_parquet_does_not_give_back_is_refused_by_name(tmp_path: Path, column: pa.Array) -> None:
    batch = pa.record_batch({"row": [1, 2], "odd": column})
    with pa.ipc.new_file(tmp_path / "a.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(UnsupportedFeatureError, match=r"column 'odd': .*columns="):
        shuffle_table(tmp_path / "a.arrow", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a.arrow"}
    rest = StructuredDataset(tmp_path / "a.arrow", "arrow", columns=["row"], output_format="arrow")
    assert shuffle_table(rest, tmp_path / "out").num_rows == 2


def _extension(kind: pa.DataType, storage: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, storage)


def test_extension_types_and_metadata_of_fields_stay_and_ids_of_fields_go(tmp_path: Path) -> None:
    ids = {"PARQUET:field_id": "7"}
    columns: dict[str, tuple[pa.Array, dict[str, Any] | None]] = {
        "uuid": (pa.array([b"0" * 16, b"1" * 16], pa.uuid()), None),
        "json": (pa.array(["{}", "[]"], pa.json_()), None),
        "tensor": (
            _extension(pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))),
            None,
        ),
        "unit": (pa.array([1, 2]), {"unit": "m", **ids}),
        "pair": (pa.array([{"x": 1}, {"x": 2}], pa.struct([pa.field("x", pa.int64(), metadata=ids)])), ids),
        "not known": (pa.array([1, 2]), {"ARROW:extension:name": "a.type", "ARROW:extension:metadata": "x"}),
    }
    fields = [pa.field(name, values.type, metadata=metadata) for name, (values, metadata) in columns.items()]
    table = pa.Table.from_arrays([values for values, _ in columns.values()], schema=pa.schema(fields))
    pq.write_table(table, tmp_path / "a.parquet")
    shuffle_table(tmp_path / "a.parquet", tmp_path / "out")
    file = pq.ParquetFile(tmp_path / "out" / "part-00000.parquet")
    schema = file.schema_arrow
    assert [schema.field(name).type for name in ("uuid", "json", "tensor")] == [field.type for field in fields[:3]]
    assert schema.field("unit").metadata == {b"unit": b"m"}
    assert schema.field("not known").metadata[b"ARROW:extension:name"] == b"a.type"
    assert "field_id=7" in str(pq.ParquetFile(tmp_path / "a.parquet").schema)
    assert "field_id=7" not in str(file.schema)
    assert written(tmp_path / "out") == in_random_order(table.to_pylist(), 42)
