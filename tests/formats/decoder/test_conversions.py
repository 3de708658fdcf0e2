"""Numbers converted while they are decoded are those that are converted afterwards, bit by bit, or its errors."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.engine import needs_engine
from tests.formats.decoder.test_decoder import INTEGERS, ROW_RANGES, WAYS, encodings_of, fixed_lists, lists, numbers
from tests.formats.files import make_spec, parquet_tasks, write_parquet
from torch_dataloader_utils import Decoding, StructuredDataset, TokenBatches
from torch_dataloader_utils._arrow.schema import field_paths
from torch_dataloader_utils._core.block import Block, read_block
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows
from torch_dataloader_utils.datasets.table_rows import changes_of
from torch_dataloader_utils.errors import CorruptFileError, SchemaError
from torch_dataloader_utils.formats.parquet import decode
from torch_dataloader_utils.shape import casting
from torch_dataloader_utils.shape.dtypes import check_dtypes
from torch_dataloader_utils.shape.encode import Hash, Vocabulary
from torch_dataloader_utils.shape.prepare import prepared_shaper
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.specs import select_fields
from torch_dataloader_utils.tables.reader import make_reader

pytestmark = needs_engine

TARGETS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
WHOLE_EDGES = (0, 1, 127, 128, 255, 256, 2**15, 2**16, 2**24, 2**24 + 1, 2**31, 2**32, 2**51, 2**53, 2**53 + 1, 2**63)
FLOAT_EDGES = (0.5, np.nan, np.inf, 3.4028235e38, 3.4028235677973366e38, 3.5e38, 1e300, 1e-46, 2.0**64, -0.0)
PRECISIONS = (1, 5, 9, 10, 15, 18, 19, 27, 38)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, list[str]]:
    """Draw numbers of a type, all alike or with values at the limits of other types, and encodings for them."""
    rows, rng = draw(st.sampled_from([0, 1, 7, 100, 1500])), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    precision = draw(st.sampled_from(PRECISIONS))
    decimal = pa.decimal128(precision, draw(st.integers(0, precision)))
    data_type = draw(st.sampled_from([*INTEGERS, pa.float32(), pa.float64(), pa.timestamp("us"), decimal, decimal]))
    nulls, kind = draw(st.sampled_from([0.0, 0.0, 0.3])), draw(st.sampled_from(["number", "number", "list", "fixed"]))
    if pa.types.is_floating(data_type):
        values = rng.integers(-100, 100, 7 * rows) * draw(st.sampled_from([1.0, 0.25]))
        column = pa.array(values, pa.float64(), mask=rng.random(7 * rows) < nulls).cast(data_type)
    else:
        column = numbers(data_type, 7 * rows, draw(st.sampled_from([4, 9, 17, 40, 64])), nulls, rng)
    if rows and draw(st.booleans()):
        edge = draw(st.sampled_from([*WHOLE_EDGES, *(FLOAT_EDGES if pa.types.is_floating(data_type) else ())]))
        try:
            edges = pa.array([edge * draw(st.sampled_from([1, -1]))])
            edges = edges.cast(data_type, safe=not pa.types.is_floating(data_type))
        except (pa.ArrowInvalid, OverflowError):
            edges = column[:1]
        place = draw(st.integers(0, rows - 1))
        column = pa.concat_arrays([column[:place], edges, column[place + 1 :]])
    if kind == "number":
        column = column[:rows]
    elif kind == "fixed":
        column = fixed_lists(column, 0.0, rng)
    else:
        column = lists(column, draw(st.sampled_from([0.0, 0.7])), draw(st.booleans()), rng)
    return column, encodings_of(data_type, decimals_are_integers=False)


def outcome(make: Callable[[], Block]) -> Any:
    """Return the types and bits of a batch of all rows of a block, or the text of the error."""
    try:
        batch = make().to_batch()
    except SchemaError as error:
        return str(error)
    return {name: bits_of(column) for name, column in batch.items()}


def bits_of(column: Any) -> Any:
    if isinstance(column, dict):
        return {name: bits_of(each) for name, each in column.items()}
    if isinstance(column, list):
        return column
    if isinstance(column, Ragged):
        return bits_of(column.values), column.offsets.tolist()
    return column.dtype, column.shape, column.contiguous().flatten().view(torch.uint8).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=["whole", "large"])
@settings(max_examples=effort(100))
@given(drawn=columns(), data=st.data(), rows=ROW_RANGES)
def test_numbers_are_those_of_a_conversion_afterwards(
    tmp_path_factory: pytest.TempPathFactory,
    way: AbstractContextManager[Any],
    drawn: tuple[pa.Array, list[str]],
    data: st.DataObject,
    rows: GroupRows,
) -> None:
    column, encodings = drawn
    encoding = data.draw(st.sampled_from(encodings))
    target, form = data.draw(st.sampled_from(TARGETS)), data.draw(st.sampled_from(["all", "round", "clip"]))
    others = {f"s{index}": pa.array(np.arange(len(column)) % 7, pa.int32()) for index in range(2)}
    table = pa.table({"x": column, **others})
    leaf = "x" if not pa.types.is_nested(column.type) else "x.list.element"
    path = tmp_path_factory.mktemp("t") / "a.parquet"
    tasks = write_parquet(
        path,
        table,
        data.draw(st.sampled_from([1 << 20, 64])),
        use_dictionary=[leaf] if encoding == "dictionary" else [],
        column_encoding=None if encoding == "dictionary" else {leaf: encoding},
        store_decimal_as_integer="DELTA" in encoding or (data.draw(st.booleans()) and "STREAM" not in encoding),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=data.draw(st.sampled_from([200, 1 << 20])),
        write_batch_size=data.draw(st.sampled_from([16, 1024])),
        compression=data.draw(st.sampled_from(["none", "snappy"])),
    )
    schema = pq.read_schema(path)
    dtypes = target if form == "all" else {"x": ("clip", target) if form == "clip" else target}
    stack = data.draw(st.sampled_from([None, {"m": ["s0", "s1"]}]))
    options = {"dtypes": check_dtypes("dtypes", dtypes), "nulls": "fill", "stack": stack}
    _, shaper = prepared_shaper("torch", schema, **options)
    plain = make_spec(schema)
    specs = [replace(plain, changes=changes_of(shaper)), plain, replace(plain, is_compiled=False)]
    readers = [make_reader(spec) for spec in specs]
    with way:
        for task in tasks:
            found = [outcome(partial(read_block, reader, shaper, task, rows)) for reader in readers]
            assert found[0] == found[1] == found[2]
    if tasks:
        found = [outcome(lambda: shaper.block(reader.read_together(tasks[:3]).parts)) for reader in readers]  # noqa: B023
        assert found[0] == found[1] == found[2]


def _loader(path: Path, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(str(path), batch_size=1000, num_workers=0, **options)[0]


def test_a_loader_converts_while_it_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decimals = (pa.decimal128(9, 2), pa.decimal128(18, 4), pa.decimal128(38, 9))
    whole = [Decimal(1), Decimal(-2), Decimal(300)]
    columns = {str(each): pa.array(whole, each) for each in decimals}
    columns |= {str(each): pa.array(map(int, whole), each) for each in (*INTEGERS[1:4], pa.float32(), pa.float64())}
    columns["ids"] = pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    monkeypatch.setattr(decode, "open_parquet", None)  # that is, pyarrow decodes nothing
    monkeypatch.setattr(casting, "_cast", None)  # and numpy converts nothing
    names = [name for name in columns if name != "ids"]
    for name in ("float32", "float64"):
        (batch,) = _loader(tmp_path / "a.parquet", stack={"x": names}, dtypes=name)
        assert batch["x"].dtype == batch["ids"].values.dtype == getattr(torch, name)
        assert batch["x"].tolist() == [[value] * len(names) for value in (1, -2, 300)]
        assert batch["ids"].values.tolist() == [1, 2, 3]
    (batch,) = _loader(tmp_path / "a.parquet", columns=[str(decimals[1])], dtypes="int32")
    assert batch[str(decimals[1])].tolist() == [10_000, -20_000, 3_000_000]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_long_decimals_of_few_digits_are_the_nearest_floats(tmp_path: Path, is_compiled: bool) -> None:
    values = [Decimal("0.123456789"), Decimal("-7.3"), Decimal("12345678901234567890.5"), Decimal("0.07")] * 200
    table = pa.table(
        {"x": pa.array(values, pa.decimal128(38, 10)), "y": pa.array(values[:2] * 400, pa.decimal128(38, 9))}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (batch,) = _loader(tmp_path / "a.parquet", decoding=Decoding(compiled=is_compiled))
    assert batch["x"].tolist() == list(map(float, values))
    assert batch["y"].tolist() == list(map(float, values[:2] * 400))


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_value_that_does_not_fit_is_named_with_its_file(tmp_path: Path, is_compiled: bool) -> None:
    table = pa.table({"a": [1.0, 2.0], "price": pa.array([Decimal(1), Decimal(300)], pa.decimal128(20, 2))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    message = (
        r"a\.parquet row group 1.*column 'price' \(decimal128\(20, 2\)\) has 300\.00, which int8 does not hold as an"
    )
    with pytest.raises(SchemaError, match=message):
        list(_loader(tmp_path / "a.parquet", dtypes={"price": "int8"}, decoding=Decoding(compiled=is_compiled)))


def test_files_with_another_type_than_the_data_set_are_converted_afterwards(tmp_path: Path) -> None:
    """An integer of a file that a table calls decimal(12, 2) has two digits more once it is unscaled."""
    schema = pa.schema([("x", pa.decimal128(12, 2))])
    for number, column in enumerate((pa.array([Decimal(7)], schema.field(0).type), pa.array([7], pa.int32()))):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    _, shaper = prepared_shaper("torch", schema, dtypes=check_dtypes("dtypes", {"x": "int64"}))
    reader = make_reader(make_spec(schema, changes=changes_of(shaper)))
    tasks = [task for number in range(2) for task in parquet_tasks(tmp_path / f"{number}.parquet")]
    assert [read_block(reader, shaper, task).to_batch()["x"].tolist() for task in tasks] == [[700], [700]]
    assert shaper.block(reader.read_together(tasks).parts).to_batch()["x"].tolist() == [700, 700]


def struct_arrays(data: st.DataObject, depth: int, rows: int, rng: np.random.Generator) -> pa.Array:
    """Return structs, some null, of numbers, lists, text and other structs."""
    kinds = ("number", "list", "text", "struct") if depth < 3 else ("number",)
    arrays, fields = [], []
    for index, kind in enumerate(data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))):
        nulls = data.draw(st.sampled_from([0.0, 0.3]))
        array = numbers(
            data.draw(st.sampled_from([pa.int16(), pa.float64(), pa.decimal128(9, 2)])), rows, 9, nulls, rng
        )
        if kind == "struct":
            array = struct_arrays(data, depth + 1, rows, rng)
        elif kind == "list":
            array = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1), pa.int32()), array)
        elif kind == "text":
            array = array.cast(pa.string())
        arrays.append(array)
        fields.append(pa.field(f"f{index}", array.type, nullable=array.null_count > 0 or data.draw(st.booleans())))
    mask = rng.random(rows) < data.draw(st.sampled_from([0.0, 0.4]))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(mask) if mask.any() else None)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=["whole", "large"])
@settings(max_examples=effort(100))
@given(data=st.data(), rows=ROW_RANGES)
def test_leaves_of_structs_are_those_of_the_whole_structs(
    tmp_path_factory: pytest.TempPathFactory, way: AbstractContextManager[Any], data: st.DataObject, rows: GroupRows
) -> None:
    num_rows, rng = (
        data.draw(st.sampled_from([0, 1, 9, 300])),
        np.random.default_rng(data.draw(st.integers(0, 1 << 30))),
    )
    columns = {name: struct_arrays(data, 0, num_rows, rng) for name in ("s", "t")}
    table = pa.table({**columns, "x": np.arange(num_rows), "s.f0": np.arange(num_rows)})
    fields = [
        field.with_nullable(table[field.name].null_count > 0 or data.draw(st.booleans())) for field in table.schema
    ]
    path = tmp_path_factory.mktemp("t") / "a.parquet"
    tasks = write_parquet(
        path,
        pa.table(table.columns, pa.schema(fields)),
        data.draw(st.sampled_from([1 << 20, 64])),
        use_dictionary=data.draw(st.booleans()),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=data.draw(st.sampled_from([200, 1 << 20])),
    )
    schema = pq.read_schema(path)
    known = [".".join(each) for each in field_paths(schema) if "element" not in each]
    names = data.draw(st.none() | st.lists(st.sampled_from(known), min_size=1, unique=True))
    selected = select_fields(schema, names)
    dtypes = data.draw(st.sampled_from([None, "float32"]))
    _, shaper = prepared_shaper(
        "torch", selected, nulls="fill", dtypes=None if dtypes is None else check_dtypes("dtypes", dtypes)
    )
    spec = make_spec(schema, columns=tuple(selected.names))
    specs = [replace(spec, changes=changes_of(shaper), is_compiled=each) for each in (True, False)]
    readers = [make_reader(each) for each in (*specs, spec, replace(spec, is_compiled=False))]
    with way:
        for task in tasks:
            found = [outcome(partial(read_block, reader, shaper, task, rows)) for reader in readers]
            assert all(each == found[0] for each in found[1:])
    if tasks:
        found = [outcome(lambda: shaper.block(reader.read_together(tasks[:3]).parts)) for reader in readers]  # noqa: B023
        assert all(each == found[0] for each in found[1:])


def test_other_leaves_of_a_struct_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = pa.array([{"c": value / 2} for value in range(50_000)])
    struct = pa.StructArray.from_arrays([np.arange(50_000), pa.array(["a"] * 50_000), inner], ["a", "b", "inner"])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": struct}), path, use_dictionary=False, compression="none", write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[content.index((123).to_bytes(8, "little"))] ^= 1
    content[pq.read_metadata(path).row_group(0).column(1).data_page_offset + 500] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(decode, "open_parquet", None)  # that is, pyarrow decodes nothing
    (batch,) = islice(_loader(path, columns=["s.inner.c"], dtypes="float32"), 1)
    assert batch["s"]["inner"]["c"].tolist() == [value / 2 for value in range(1000)]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_text_that_is_encoded_comes_as_a_dictionary(tmp_path: Path, is_compiled: bool) -> None:
    """Dictionary and plain pages in one chunk, text with nulls, bytes, and a struct of text give the same numbers."""
    rng = np.random.default_rng(0)
    words = pa.array([None, "", "ä", *map(str, range(3000))])
    columns = {
        "a": words.take(pa.array(rng.integers(0, 3003, 5000))),
        "few": words.take(pa.array(rng.integers(0, 9, 5000))),
    }
    columns |= {"bytes": columns["a"].cast(pa.binary()), "large": columns["few"].cast(pa.large_string())}
    columns |= {"s": pa.StructArray.from_arrays([columns["a"]], ["t"]), "x": pa.array(np.arange(5000))}
    path = tmp_path / "a.parquet"
    (task,) = write_parquet(path, pa.table(columns), dictionary_pagesize_limit=2000, data_page_size=1000)
    schema = pq.read_schema(path)
    encode = dict.fromkeys(["a", "few", "bytes", "large", "s.t", "x"], Hash(buckets=1000))
    encode["few"] = Vocabulary(["0", "1", "ä"])
    _, shaper = prepared_shaper("torch", schema, encode=encode, nulls="fill")
    specs = [make_spec(schema, changes=changes_of(shaper), is_compiled=is_compiled), make_spec(schema)]
    for rows in (ALL_ROWS, GroupRows(0, 0), GroupRows(1500, 4000)):
        ours, other = (outcome(partial(read_block, make_reader(spec), shaper, task, rows)) for spec in specs)
        assert ours == other
    types = {field.name: field.type for part in make_reader(specs[0]).read_columns(task) for field in part.schema}
    assert [name for name, each in types.items() if pa.types.is_dictionary(each)] == ["a", "few", "bytes"]


@pytest.mark.parametrize("rows", [ALL_ROWS, GroupRows(100, 3000)], ids=["all", "some"])
@pytest.mark.parametrize("kind", ["text", "dictionary", "struct", "list", "map"])
def test_rows_that_name_no_value_of_a_dictionary_are_damage(tmp_path: Path, kind: str, rows: GroupRows) -> None:
    """pyarrow reads them as they are where columns become dictionaries."""
    text = pa.array([str(number * number % 5) for number in range(4096)])
    stored, offsets = text.dictionary_encode(), pa.array(range(4097), pa.int32())
    columns = {
        "text": text,
        "dictionary": stored,
        "struct": pa.StructArray.from_arrays([stored], ["field"]),
        "list": pa.ListArray.from_arrays(offsets, stored),
        "map": pa.MapArray.from_arrays(offsets, text, stored),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": columns[kind]}), path, compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(int(kind == "map"))
    stop = chunk.dictionary_page_offset + chunk.total_compressed_size
    content = bytearray(path.read_bytes())
    content[stop - 600 : stop - 590] = b"\xff" * 10
    path.write_bytes(content)
    (task,) = parquet_tasks(path)
    encode = {"x": Hash(buckets=10)} if kind == "text" else {}
    schema = pq.read_schema(path)
    _, shaper = prepared_shaper("torch", schema, encode=encode)
    with pytest.raises(CorruptFileError, match="Index not in dictionary bounds"):
        read_block(make_reader(make_spec(schema, changes=changes_of(shaper))), shaper, task, rows)


def test_lengths_are_measured_before_numbers_are_converted(tmp_path: Path) -> None:
    """Rows are grouped by lengths that are all one number in float32."""
    lengths = 100 + np.random.default_rng(0).permutation(40) * 1e-9
    pq.write_table(pa.table({"length": lengths, "row": np.arange(40)}), tmp_path / "a.parquet")
    options = {"token_batches": TokenBatches("length"), "dtypes": {"length": "float32"}, "shuffle_rows": 40}
    batches = [
        [batch["row"].tolist() for batch in loader]
        for each in (True, False)
        for loader in StructuredDataset.create_dataloader(
            str(tmp_path), batch_size=4, decoding=Decoding(compiled=each), **options
        )[:1]
    ]
    assert batches[0] == batches[1]
    assert all(np.ptp(np.argsort(np.argsort(lengths))[rows]) == 3 for rows in batches[0])
