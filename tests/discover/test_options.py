"""Wrong calls and files that do not fit together: each says what to do."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from tests.discover.datasets import write_parquet
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils.discover import TextOptions, load_inventory, save_inventory, scan_files
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, SchemaError


@pytest.fixture
def one(tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, [10, 10])
    return tmp_path


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"format": "parquett"}, ConfigError, "choose one of parquet, orc"),
        ({"columns": ["rov"]}, ConfigError, "did you mean 'row'"),
        ({"columns": ["zzzzz"]}, ConfigError, "columns are 'file', 'row'"),
        ({"columns": "row"}, ConfigTypeError, r"Write columns=\['row'\]"),
        ({"filters": [("row", ">", 1)]}, ConfigTypeError, "pyarrow expression"),
        ({"filters": pc.field("nope") > 1}, ConfigError, "does not fit the data.*the columns are 'file'"),
        ({"filters": pc.field("s") > 1}, ConfigError, "does not fit the data"),
        ({"filters": pc.field(0) > 1}, ConfigError, "by position; name them"),
        ({"filters": pc.field("row") + 1}, ConfigError, "not true or false"),
        ({"partitioning": "directory"}, ConfigError, 'use "hive", "auto", Hive'),
        ({"count_rows": "always"}, ConfigError, "count_rows='always': pass \"auto\", True or False"),
        ({"count_rows": 2}, ConfigTypeError, 'count_rows=2: pass "auto", True or False'),
        ({"schema": pa.schema([("row", pa.int64())])}, ConfigError, "schema= is for text files"),
        ({"text": TextOptions()}, ConfigError, "text= says how text files are cut, and format='parquet' is not text"),
        ({"schema": 5}, ConfigTypeError, "schema is an int: pass a pyarrow.schema"),
        ({"text": 5}, ConfigTypeError, r"text is an int: pass TextOptions\(\.\.\.\)"),
        ({"storage_options": 5}, ConfigTypeError, "storage_options is an int: pass a dict"),
        ({"executor": 5}, ConfigTypeError, r"executor=5 has no submit\(\)"),
        ({"on_progress": 5}, ConfigTypeError, "on_progress is an int: pass a function, or None"),
    ],
)
def test_a_wrong_option_says_what_to_do(one, options, error, message):
    with pytest.raises(error, match=message):
        scan_files(one, **options)


def test_projected_bytes_are_uncompressed_bytes_of_the_projected_columns(one):
    metadata = pq.read_metadata(one / "a.parquet")
    inventory = scan_files(one, columns=["x", "row"])
    chunks = [metadata.row_group(0).column(leaf).total_uncompressed_size for leaf in (1, 2)]
    assert inventory.groups.projected_bytes[0] == sum(chunks)
    assert inventory.projection == ("x", "row")
    whole = scan_files(one)
    assert whole.groups.projected_bytes[0] == metadata.row_group(0).total_byte_size
    assert whole.fingerprint() == inventory.fingerprint()


def test_columns_may_come_from_a_generator(one):
    assert scan_files(one, columns=(name for name in ["x", "row"])).projection == ("x", "row")


def test_a_nested_column_counts_all_its_leaves(tmp_path):
    kind = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.int8())])))])
    table = pa.table(
        {
            "n": pa.array([{"a": 1, "b": [{"c": "x", "d": 1}]}] * 5, kind),
            "a.x": [1] * 5,
            "m": pa.array([[("k", 1)]] * 5, pa.map_(pa.string(), pa.int32())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    sizes = {}
    for leaf in range(group.num_columns):
        chunk = group.column(leaf)
        top = "a.x" if chunk.path_in_schema == "a.x" else chunk.path_in_schema.split(".")[0]
        sizes[top] = sizes.get(top, 0) + chunk.total_uncompressed_size
    for name in ("n", "a.x", "m"):
        assert scan_files(tmp_path, columns=[name]).groups.projected_bytes.tolist() == [sizes[name]]


def test_a_projection_without_stored_columns_weighs_rows(tmp_path):
    write_parquet(tmp_path / "k=1" / "a.parquet", 0, [10, 3])
    assert scan_files(tmp_path, partitioning="hive", columns=["k"]).groups.projected_bytes.tolist() == [10, 3]


POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])


def write(path, fields, nullable=True, value=1):
    schema = pa.schema([pa.field(name, kind, nullable=nullable) for name, kind in fields.items()])
    pq.write_table(pa.table({n: pa.array([value], k) for n, k in fields.items()}, schema=schema), path)


def test_order_and_nullability_may_differ_between_files(tmp_path):
    write(tmp_path / "a.parquet", {"x": pa.int64(), "y": pa.float32()})
    write(tmp_path / "b.parquet", {"y": pa.float32(), "x": pa.int64()}, nullable=False)
    inventory = scan_files(tmp_path, columns=["x"])
    assert inventory.num_rows == 2
    assert decode_schema(inventory.schema) == pa.schema([("x", pa.int64()), ("y", pa.float32())])


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_column_that_is_required_in_one_file_is_nullable_in_the_data_set(tmp_path, names):
    write(tmp_path / f"{names[0]}.parquet", {"x": pa.int64()})
    write(tmp_path / f"{names[1]}.parquet", {"x": pa.int64()}, nullable=False)
    assert decode_schema(scan_files(tmp_path).schema) == pa.schema([("x", pa.int64())])


REQUIRED = pa.field("item", pa.int32(), nullable=False)


@pytest.mark.parametrize(
    ("required", "kind"),
    [
        (pa.list_(REQUIRED), pa.list_(pa.int32())),
        (pa.large_list(REQUIRED), pa.large_list(pa.int32())),
        (pa.list_(REQUIRED, 2), pa.list_(pa.int32(), 2)),
        (pa.struct([REQUIRED]), pa.struct([("item", pa.int32())])),
        (pa.map_(pa.string(), REQUIRED.with_name("value")), pa.map_(pa.string(), pa.int32())),
        (
            pa.list_(pa.field("item", pa.struct([REQUIRED]), nullable=False)),
            pa.list_(pa.struct([("item", pa.int32())])),
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("names", ["ab", "ba"])
def test_fields_inside_of_types_may_be_required_in_some_files(tmp_path, required, kind, names):
    for name, each in zip(names, (required, kind), strict=True):
        with pa.ipc.new_file(tmp_path / name, pa.schema([("x", each)])) as writer:
            writer.write_table(pa.table({"x": pa.nulls(3, each)}))
    inventory = scan_files(tmp_path, "arrow")
    assert inventory.num_rows == 6
    assert decode_schema(inventory.schema) == pa.schema([("x", kind)])


def test_other_types_inside_of_required_fields_are_refused(tmp_path):
    write(tmp_path / "a.parquet", {"x": pa.list_(REQUIRED)}, value=[1])
    write(tmp_path / "b.parquet", {"x": pa.list_(pa.int64())}, value=[1])
    with pytest.raises(
        SchemaError, match=r"b.parquet has column 'x' as list<.*int64>; .*a.parquet as list<.*int32 not"
    ):
        scan_files(tmp_path)


def test_a_schema_for_text_keeps_its_required_fields(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    given = pa.schema([pa.field("x", pa.int64(), nullable=False), ("y", pa.list_(REQUIRED))])
    assert decode_schema(scan_files(tmp_path, "jsonl", schema=given).schema) == given


def test_a_schema_without_required_fields_is_saved_byte_for_byte_as_the_file_has_it(tmp_path):
    kinds = [
        pa.list_(pa.int8()),
        pa.list_(pa.int8(), 2),
        pa.struct([("a", pa.map_(pa.string(), pa.large_list(POINT)))]),
    ]
    kinds += [pa.dictionary(pa.int8(), pa.string()), pa.run_end_encoded(pa.int32(), pa.string()), pa.uuid()]
    schema = pa.schema([pa.field(str(i), kind, metadata={"unit": "m"}) for i, kind in enumerate(kinds)])
    with pa.ipc.new_file(tmp_path / "a.arrow", schema) as writer:
        writer.write_table(schema.empty_table())
        writer.write_table(pa.table([pa.nulls(2, kind) for kind in kinds], schema=schema))
    assert scan_files(tmp_path, "arrow").schema == schema.serialize().to_pybytes()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"x": pa.int64()}, r"b.parquet has no column 'y'; .*a.parquet has it as float"),
        ({"x": pa.int32(), "y": pa.float32()}, r"b.parquet has column 'x' as int32; .*a.parquet as int64"),
        ({"x": pa.int64(), "y": pa.float32(), "z": pa.int8()}, r"b.parquet has a column 'z'; .*a.parquet does not"),
    ],
)
def test_other_names_or_types_name_both_files(tmp_path, other, message):
    write(tmp_path / "a.parquet", {"x": pa.int64(), "y": pa.float32()})
    write(tmp_path / "b.parquet", other)
    with pytest.raises(SchemaError, match=message):
        scan_files(tmp_path)


@pytest.mark.parametrize("missing", ["error", "null"])
@pytest.mark.parametrize("name", ["f.parquet", "f.arrow"])
def test_two_columns_of_one_name_cost_an_error_only_when_they_are_asked_for(tmp_path, caplog, name, missing):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "y", "x"])
    for number in range(2):
        path = tmp_path / f"{number}{name}"
        pq.write_table(table, path) if name.endswith("parquet") else feather.write_feather(table, path)
    file_format = "parquet" if name.endswith("parquet") else "arrow"
    with caplog.at_level("WARNING"):
        assert decode_schema(scan_files(tmp_path, missing=missing, format=file_format).schema).names == ["y"]
    assert [record.getMessage() for record in caplog.records] == [
        f"columns are left out: {tmp_path}/0{name} has column 'x', but several columns have this name: rename all but "
        "one"
    ]
    caplog.clear()
    dataset = StructuredDataset(tmp_path, columns=["y"], output_format="dict", missing=missing, format=file_format)
    assert list(dataset) == [{"y": [2, 2]}]
    assert not caplog.records
    for asked in ({"columns": ["y", "x"]}, {"filters": pc.field("x") > 1}):
        with pytest.raises(ConfigError, match="several columns have this name: rename all but one"):
            StructuredDataset(tmp_path, missing=missing, format=file_format, **asked)


@pytest.mark.parametrize(("names", "says"), [(["x", "y"], "one"), (["y"], "none")])
def test_a_file_with_two_columns_of_a_name_that_another_file_has_once_or_not_is_named(tmp_path, names, says):
    write(tmp_path / "a.parquet", dict.fromkeys(names, pa.int64()))
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "y", "x"])
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=rf"b\.parquet has several columns 'x'; .*a\.parquet has {says}"):
        scan_files(tmp_path)
    assert scan_files(tmp_path, columns=["y"]).num_rows == 2


def test_an_inventory_keeps_what_no_batch_has_and_notes_it_unless_columns_are_named(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "y", "x"])
    (tmp_path / "data" / "year=2024").mkdir(parents=True)
    pq.write_table(table, tmp_path / "data" / "year=2024" / "a.parquet")
    inventory = scan_files(tmp_path / "data")
    assert [text.partition(":")[0] for text in inventory.left_out] == [
        "columns are left out",
        "directories year=... are not read as columns",
    ]
    assert inventory.notes == inventory.left_out
    save_inventory(inventory, tmp_path / "saved.parquet")
    assert load_inventory(tmp_path / "saved.parquet").left_out == inventory.left_out
    of_column = scan_files(tmp_path / "data", columns=["y"])
    assert (of_column.left_out, of_column.notes) == (inventory.left_out, ())


@pytest.mark.parametrize("options", [{"filters": pc.field("year") == 2024}, {"columns": ["row", "year"]}])
def test_a_column_that_only_paths_have_is_told_how_to_be_read(tmp_path, options):
    write_parquet(tmp_path / "year=2024" / "a.parquet", 0, [5])
    with pytest.raises(ConfigError, match=r'Paths have year=\.\.\.: pass partitioning="hive"'):
        scan_files(tmp_path, **options)
    assert scan_files(tmp_path, partitioning="hive", **options).num_rows == 5
    with pytest.raises(ConfigError) as caught:
        scan_files(tmp_path, filters=pc.field("years") == 2024)
    assert "Paths have" not in str(caught.value)
