"""Fixed-size lists inside of others: the rows that are asked for, whatever was cut before, or a clear error."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.formats.files import make_spec, write_arrow, write_parquet
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._arrow.batches import array_for_take, for_take
from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.tables.reader import make_reader

MATRIX = pa.list_(pa.list_(pa.int8(), 1), 2)
ROWS = pa.array([[[2 * i], [2 * i + 1]] for i in range(40)], MATRIX)
IN_STRUCT = pa.array([{"x": row} for row in ROWS.to_pylist()], pa.struct([("x", MATRIX)]))


class Matrix(pa.ExtensionType):
    """As pyarrow's documentation writes one: without a hash."""

    def __init__(self):
        super().__init__(MATRIX, "tests.matrix")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


EXTENDED = pa.ExtensionArray.from_storage(Matrix(), ROWS)


@pytest.fixture(autouse=True, scope="module")
def _registered():
    pa.register_extension_type(Matrix())
    yield
    pa.unregister_extension_type("tests.matrix")


@pytest.mark.parametrize(
    "rows",
    [
        ROWS.slice(3, 9),
        IN_STRUCT.slice(3, 9),
        EXTENDED.slice(3, 9),
        pa.StructArray.from_arrays([EXTENDED], ["x"]).slice(3, 9),
        pa.StructArray.from_arrays([ROWS.slice(3, 9)], ["x"]),
        pa.ListArray.from_arrays([0, 1, 1, 3, 4, 5, 6, 7, 8, 9], ROWS.slice(3, 9)),
        pa.FixedSizeListArray.from_arrays(ROWS.slice(3, 18), 2),
        pa.array([None, [[1], [2]], None, [None, [4]]] * 4, MATRIX).slice(1, 9),
    ],
)
def test_taking_and_filtering_gives_the_rows_that_are_meant(rows):
    order = [8, 0, 3]
    mask = [index in order for index in range(len(rows))]
    batch = for_take(pa.record_batch({"rows": rows, "text": ["a"] * len(rows)}))
    wanted = [rows.to_pylist()[index] for index in order]
    assert batch.take(pa.array(order))["rows"].to_pylist() == wanted
    assert batch.filter(pa.array(mask))["rows"].to_pylist() == [wanted[1], wanted[2], wanted[0]]
    assert array_for_take(rows).take(pa.array(order)).to_pylist() == wanted


@pytest.mark.parametrize(
    "rows", [ROWS, IN_STRUCT, EXTENDED, pa.array(range(40)).slice(3), pa.array([[1], [2]]).slice(1)]
)
def test_what_pyarrow_takes_rightly_is_not_copied(rows):
    assert array_for_take(rows) is rows
    batch = pa.record_batch({"rows": rows})
    assert for_take(batch) is batch


@pytest.mark.parametrize("column", [ROWS, IN_STRUCT, EXTENDED], ids=["matrix", "struct", "extension"])
@pytest.mark.parametrize("output_format", ["arrow", "dict", "torch"])
def test_shuffled_and_filtered_rows_stay_together(tmp_path, output_format, column):
    """Windows take their rows from parts of row groups."""
    table = pa.table({"row": pa.array(range(40)), "matrix": column})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, batch_size=4, num_workers=0, shuffle=True, split_rows=7, shuffle_rows=9, output_format=output_format
    )
    found = {}
    for batch in loader:
        rows = batch.to_pydict() if output_format == "arrow" else batch
        numbers = rows["row"].tolist() if output_format == "torch" else rows["row"]
        values = rows["matrix"]
        if isinstance(values, dict):  # a struct's columns
            values = [{"x": row} for row in values["x"].tolist()]
        elif output_format == "torch" and hasattr(values, "tolist"):
            values = values.tolist()
        found |= dict(zip(numbers, values, strict=True))
    assert found == dict(zip(range(40), column.to_pylist(), strict=True))


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
def test_filtered_rows_keep_their_values(tmp_path, write):
    table = pa.table({"row": pa.array(range(40)), "matrix": ROWS})
    reader = make_reader(make_spec(table.schema, row_filter=pc.field("row") > 5))
    tasks = [replace(task, live_rows=UNKNOWN) for task in write(tmp_path / "a", table, 15)]
    read = [reader.read(task).to_pylist() for task in tasks]
    assert [row for rows in read for row in rows] == table.slice(6).to_pylist()


def test_a_null_struct_around_lists_that_are_never_null_is_told_from_damage(tmp_path):
    point = pa.struct([pa.field("x", pa.list_(pa.float32(), 2), nullable=False)])
    rows = pa.array([{"x": [1, 2]}, None, {"x": [3, 4]}], point)
    (task,) = write_parquet(tmp_path / "t.parquet", pa.table({"point": rows, "row": [0, 1, 2]}), 3)
    with pytest.raises(UnsupportedFeatureError, match=r"struct is null around a fixed-size list.* column is point"):
        make_reader(make_spec(pa.schema([("point", point), ("row", pa.int64())]))).read(task)
