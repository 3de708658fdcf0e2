"""The compiled decoder gives what pyarrow gives: rows, nulls and errors, for any type, encoding and damage."""

import zlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import needs_engine
from tests.faults.hostile_files import good
from tests.formats.files import identity, make_spec, make_task, write_parquet
from torch_dataloader_utils import _engine
from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._observe.counters import Counts, count_thread_in
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.errors import CorruptFileError, DataError, UnsupportedFeatureError
from torch_dataloader_utils.formats.parquet import decode
from torch_dataloader_utils.formats.task_source import TaskSource
from torch_dataloader_utils.tables.reader import make_reader

pytestmark = needs_engine

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
TIMES = (
    pa.date32(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.timestamp("ms"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns"),
)
DECIMALS = (pa.decimal128(1, 1), pa.decimal128(9, 2), pa.decimal128(18, 5), pa.decimal128(20, 0), pa.decimal128(38, 9))
TYPES = (*INTEGERS, pa.float16(), pa.float32(), pa.float64(), pa.bool_(), *TIMES, *DECIMALS)
# What the decoder leaves to pyarrow, beside the others in one row group.
FOREIGN = (
    pa.string(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.list_(pa.string()),
    pa.decimal256(40, 2),
    pa.timestamp("s"),
    pa.duration("us"),
)


# Of row groups of up to 3,000 rows: all, prefixes, spans within one page and across pages, none.
ROW_RANGES = st.just(ALL_ROWS) | st.builds(
    lambda start, count: GroupRows(start, None if count is None else start + count),
    st.sampled_from([0, 1, 3, 40, 64, 500]) | st.integers(0, 3000),
    st.none() | st.sampled_from([0, 1, 8, 40]) | st.integers(0, 3000),
)


def encodings_of(data_type: pa.DataType, decimals_are_integers: bool = True) -> list[str]:
    """The encodings that pyarrow's writer knows for a type; "dictionary" and "PLAIN" for nearly all."""
    if data_type == pa.bool_():
        return ["PLAIN", "RLE"]
    is_whole = not pa.types.is_floating(data_type)
    if pa.types.is_decimal(data_type):
        is_whole = decimals_are_integers and data_type.precision <= 18
    return ["dictionary", "PLAIN", "BYTE_STREAM_SPLIT", *(["DELTA_BINARY_PACKED"] if is_whole else [])]


def numbers(data_type: pa.DataType, rows: int, spread: int, nulls: float, rng: np.random.Generator) -> pa.Array:
    mask = rng.random(rows) < nulls
    if data_type == pa.bool_():
        return pa.array(rng.random(rows) < 0.5, mask=mask)
    if pa.types.is_decimal(data_type):
        return decimals(data_type, rows, spread, mask, rng)
    bits = data_type.bit_width
    raw = rng.integers(0, 1 << min(bits, spread), rows, dtype=np.uint64)
    if pa.types.is_integer(data_type) and not pa.types.is_unsigned_integer(data_type):
        raw = raw - np.uint64(1 << (min(bits, spread) - 1))  # around 0
    if pa.types.is_time(data_type):
        raw %= 86_400_000
    values = raw.astype(f"u{bits // 8}")
    validity = pa.array(~mask).buffers()[1] if mask.any() else None
    return pa.Array.from_buffers(data_type, rows, [validity, pa.py_buffer(values)])


def decimals(
    data_type: pa.DataType, rows: int, spread: int, mask: npt.NDArray[np.bool_], rng: np.random.Generator
) -> pa.Array:
    """Decimals of either sign, of few bits or of up to all digits."""
    digits = rng.integers(0, 10**19, (2, rows), dtype=np.uint64).astype(object)
    most = 10**data_type.precision if spread == 64 else min(10**data_type.precision, 1 << spread)
    unscaled = (digits[0] * 10**19 + digits[1]) % most * rng.choice([-1, 1], rows)
    words = np.stack([unscaled & (1 << 64) - 1, unscaled >> 64 & (1 << 64) - 1], axis=1).astype(np.uint64)
    validity = pa.array(~mask).buffers()[1] if mask.any() else None
    return pa.Array.from_buffers(data_type, rows, [validity, pa.py_buffer(words)])


def lists(items: pa.Array, nulls: float, is_nullable: bool, rng: np.random.Generator) -> pa.Array:
    """Lists that hold these items one after the other: long and short ones, some empty, some null."""
    lengths = rng.choice([0, 1, 2, 3, 40, 300], 3 * len(items) + 1, p=[0.1, 0.3, 0.3, 0.2, 0.05, 0.05])
    if rng.random() < 0.5:
        lengths = lengths[lengths > 0]
    offsets = np.minimum(np.cumsum(np.concatenate([[0], lengths])), len(items))
    offsets = offsets[: rng.integers(1, np.searchsorted(offsets, len(items)) + 2)].astype(np.int32)
    mask = (rng.random(len(offsets) - 1) < nulls) & (np.diff(offsets) == 0)
    field = pa.field("element", items.type, nullable=is_nullable or items.null_count > 0)
    validity = pa.array(~mask).buffers()[1] if mask.any() else None
    return pa.Array.from_buffers(pa.list_(field), len(mask), [validity, pa.py_buffer(offsets)], children=[items])


def fixed_lists(items: pa.Array, nulls: float, rng: np.random.Generator) -> pa.Array:
    """Fixed-size lists of 7 of these items, some of them null."""
    mask = rng.random(len(items) // 7) < nulls
    data_type = pa.list_(pa.field("element", items.type, nullable=bool(items.null_count) or rng.random() < 0.5), 7)
    validity = pa.array(~mask).buffers()[1] if mask.any() else None
    return pa.Array.from_buffers(data_type, len(mask), [validity], children=[items])


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, dict[str, Any], int]:
    """A table of numbers, how it is written, and the rows of its row groups."""
    rows = draw(st.sampled_from([0, 1, 2, 7, 8, 9, 31, 32, 33, 100, 1000, 3000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns, fields, encodings = [], [], {}
    decimals_are_integers = draw(st.booleans())
    for index, data_type in enumerate(draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=6))):
        name, nulls = f"c{index}", draw(st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]))
        kind = draw(st.sampled_from(["number", "list", "large_list", "fixed"]))
        spread = draw(st.sampled_from([1, 4, 9, 17, 64]))
        column = numbers(data_type, rows if kind == "number" else 7 * rows, spread, nulls, rng)
        if kind == "fixed":
            column = fixed_lists(column, draw(st.sampled_from([0.0, 0.0, 0.3])), rng)
        elif kind != "number":
            column = lists(column, draw(st.sampled_from([0.0, 0.7])), draw(st.booleans()), rng)
            column = column.take(pa.array(np.sort(rng.integers(0, len(column), rows)))) if len(column) else column
            column = pa.concat_arrays([column, pa.array([[]] * (rows - len(column)), column.type)])
            if kind == "large_list":
                column = column.cast(pa.large_list(column.type.value_field))
        columns.append(column)
        fields.append(pa.field(name, column.type, nullable=column.null_count > 0 or draw(st.booleans())))
        possible = encodings_of(data_type, decimals_are_integers)
        if kind != "number" and data_type == pa.bool_():
            possible.remove("RLE")  # pyarrow reads its own lists of these as none
        encodings[name if kind == "number" else f"{name}.list.element"] = draw(st.sampled_from(possible))
    for index, data_type in enumerate(draw(st.lists(st.sampled_from(FOREIGN), max_size=2))):
        some = pa.array([None if each % 3 == 0 else each for each in range(rows)], pa.int64())
        if pa.types.is_list(data_type):
            columns.append(pa.array([None if each is None else [str(each)] for each in some.to_pylist()], data_type))
        elif pa.types.is_dictionary(data_type):
            columns.append(some.cast(pa.string()).dictionary_encode())
        else:
            columns.append(some.cast(data_type))
        fields.append(pa.field(f"f{index}", data_type))
    written = {
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "lz4", "gzip"])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "data_page_size": draw(st.sampled_from([64, 1000, 1 << 20])),
        "write_batch_size": draw(st.sampled_from([3, 16, 1024])),
        "dictionary_pagesize_limit": draw(st.sampled_from([100, 1 << 20])),
        "write_page_checksum": draw(st.booleans()),
        "store_schema": draw(st.booleans()),
        "store_decimal_as_integer": decimals_are_integers,
        "use_dictionary": [name for name, encoding in encodings.items() if encoding == "dictionary"],
        "column_encoding": {name: each for name, each in encodings.items() if each != "dictionary"} or None,
    }
    return pa.table(columns, pa.schema(fields)), written, draw(st.sampled_from([1 << 20, 500, 64]))


# Small files are read whole; of others, chunks are read as they are decoded.
as_large_files = patch.object(TaskSource, "_comes_whole", property(lambda _: False))
WAYS = [nullcontext(), as_large_files]


def read(tasks: list[RowGroupTask], schema: pa.Schema, rows: GroupRows = ALL_ROWS, **options: Any) -> list[Any]:
    reader = make_reader(make_spec(schema, **options))
    return [reader.read(task, rows) for task in tasks]


def bits_of(batch: pa.RecordBatch) -> list[Any]:
    """Validity and the bytes of what is valid: NaNs of all kinds are told apart, and what lies under nulls is not."""
    return [column_bits(column) for column in batch.columns]


def column_bits(column: pa.Array) -> Any:
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(column.type):
        return valid.tolist(), column_bits(column.flatten())
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return valid.tolist(), pc.list_value_length(column).to_pylist(), column_bits(column.flatten())
    if pa.types.is_primitive(column.type) and column.type != pa.bool_():
        width, end = column.type.bit_width // 8, column.offset + len(column)
        raw = np.frombuffer(memoryview(column.buffers()[1] or b"")[: end * width], f"u{width}")
        return valid.tolist(), raw[column.offset :][valid].tolist()
    return valid.tolist(), column.to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=["whole", "large"])
@given(table=tables(), rows=ROW_RANGES)
def test_rows_are_those_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory, way: AbstractContextManager[Any], table: Any, rows: GroupRows
) -> None:
    content, written, group_rows = table
    path = tmp_path_factory.mktemp("t") / "a.parquet"
    tasks = write_parquet(path, content, group_rows, **written)
    schema = pq.read_schema(path)
    with way, patch.object(decode, "_LEAST_ROWS_AT_ONCE", 100):
        ours, others = (read(tasks, schema, rows, is_compiled=each) for each in (True, False))
    for mine, other in zip(ours, others, strict=True):
        assert mine.schema.equals(other.schema, check_metadata=True)
        mine.validate(full=True)
        assert bits_of(mine) == bits_of(other)


@pytest.mark.slow
@pytest.mark.parametrize("nulls", [0, 0.1])
@pytest.mark.parametrize("rows", [ALL_ROWS, GroupRows(1, 149_998)])
def test_large_dictionary_columns_are_written_past_the_caches(tmp_path: Path, nulls: float, rows: GroupRows) -> None:
    rng = np.random.default_rng(0)
    kinds = {"a": pa.int8(), "b": pa.uint16(), "c": pa.float32(), "d": pa.int64()}
    content = pa.table({name: numbers(kind, 150_000, 200, nulls, rng) for name, kind in kinds.items()})
    (found,) = read(write_parquet(tmp_path / "a.parquet", content, 150_000), content.schema, rows)
    start, stop = rows.of(150_000)
    assert bits_of(found) == bits_of(content.slice(start, stop - start).combine_chunks().to_batches()[0])


def rewritten(task: RowGroupTask, content: bytes) -> RowGroupTask:
    """The task of the same file with other bytes."""
    path = Path(task.path)
    path.write_bytes(content)
    return replace(task, file_size=len(content), identity=identity(path))


def test_pages_outside_of_the_rows_that_are_needed_are_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": np.random.default_rng(0).random(1000)})
    written = {"data_page_size": 800, "write_batch_size": 100, "use_dictionary": False, "write_page_checksum": True}
    (task,) = write_parquet(path, table, compression="none", **written)
    content = path.read_bytes()
    for row in (150, 950):
        damaged = bytearray(content)
        damaged[content.index(table.column("a").to_numpy()[row].tobytes())] ^= 1
        task = rewritten(task, bytes(damaged))
        for rows in (GroupRows(100, 200), GroupRows(200, 900), GroupRows(900, 1000)):
            assert (outcome(task, table.schema, rows=rows) is CorruptFileError) == (row in range(*rows))


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_numbers_of_common_codecs_are_decoded_here(tmp_path: Path, compression: str, version: str, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    columns = {str(each): numbers(each, 5000, 20, 0.1, rng) for each in TYPES}
    for each in TYPES:
        column = lists(numbers(each, 100_000, 20, 0.1, rng), 0.5, True, rng)
        columns[f"list of {each}"] = column.take(pa.array(rng.integers(0, len(column), 5000)))
    tasks = write_parquet(tmp_path / "a.parquet", pa.table(columns), compression=compression, data_page_version=version)
    monkeypatch.setattr(decode, "open_parquet", None)  # that is, pyarrow decodes nothing
    (batch,) = read(tasks, pq.read_schema(tmp_path / "a.parquet"))
    assert batch.num_rows == 5000
    assert set(batch.schema.names) == set(columns)


def outcome(task: RowGroupTask, schema: pa.Schema, **options: Any) -> Any:
    try:
        (batch,) = read([task], schema, **options)
    except DataError as error:
        return type(error)
    return bits_of(batch)


@pytest.mark.slow
@given(table=tables(), data=st.data())
def test_a_damaged_file_has_the_verdict_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory, table: Any, data: st.DataObject
) -> None:
    """Rows of a damaged file may differ, for the damage may be in values; what is refused may not come as rows."""
    content, written, _ = table
    written = {**written, "write_page_checksum": True}
    path = tmp_path_factory.mktemp("t") / "a.parquet"
    (task,) = write_parquet(path, content, **written) or [None]
    if task is None:
        return
    schema, whole = pq.read_schema(path), bytearray(path.read_bytes())
    pages = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    at = data.draw(st.integers(4, max(4, pages + 400)))
    # Not in the footer, where pyarrow ends the process at a codec that has no name.
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    whole[min(at, footer - 1)] ^= 1 << data.draw(st.integers(0, 7))
    task = rewritten(task, bytes(whole))
    with data.draw(st.sampled_from(WAYS)):
        ours, other = (outcome(task, schema, is_compiled=each) for each in (True, False))
    if isinstance(other, list):
        assert ours == other
    else:
        assert isinstance(ours, type)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=["whole", "large"])
def test_a_file_that_is_cut_anywhere_is_an_error(tmp_path: Path, way: AbstractContextManager[Any]) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": np.arange(50), "b": np.arange(50) / 3})
    (task,) = write_parquet(path, table, use_dictionary=["a"], compression="none")
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    for length in range(4, len(whole) - footer):
        task = rewritten(task, whole[:length] + bytes(len(whole) - footer - length) + whole[-footer:])
        with way:
            verdicts = [outcome(task, table.schema, is_compiled=each) for each in (True, False)]
        assert isinstance(verdicts[0], type) == isinstance(verdicts[1], type), length
        assert isinstance(verdicts[1], type) or verdicts[0] == verdicts[1], length


@pytest.mark.parametrize("way", WAYS, ids=["whole", "large"])
@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_an_error_of_decoding_is_not_the_storages(
    tmp_path: Path, error: type[Exception], way: AbstractContextManager[Any]
) -> None:
    (task,) = write_parquet(tmp_path / "a.parquet", pa.table({"a": np.arange(10)}))
    with way, patch.object(_engine, "decode", side_effect=error("of decoding")):
        expected = UnsupportedFeatureError if error is MemoryError else ValueError
        with pytest.raises(expected, match=r"memory|of decoding"):
            read([task], pa.schema([("a", pa.int64())]))


def test_a_large_file_is_opened_by_the_decoder_alone(tmp_path: Path) -> None:
    (task,) = write_parquet(tmp_path / "a.parquet", pa.table({"a": np.arange(10)}))
    for known in (task.identity, LocalStore().stat(task.path).pin):
        planned, schema = replace(task, identity=known), pa.schema([("a", pa.int64())])
        read([planned], schema)  # the footer is known, so that nothing else opens the file
        with as_large_files, patch.object(LocalStore, "read_into", side_effect=AssertionError("opened")):
            (batch,) = read([planned], schema)
        assert batch.to_pydict() == {"a": list(range(10))}


def test_rows_that_no_memory_could_hold_are_not_taken_from_a_footer(tmp_path: Path) -> None:
    path, many = tmp_path / "a.parquet", 1 << 58
    path.write_bytes(good(12_503, values=many, group_rows=many, file_rows=many))
    task = make_task(path, FileFormat.PARQUET, 0, many)
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    ours, other = (outcome(task, schema, rows=GroupRows(0, 2), is_compiled=each) for each in (True, False))
    assert ours == other


@pytest.mark.parametrize("way", WAYS, ids=["whole", "large"])
def test_lists_that_are_too_large_take_no_others_to_pyarrow(tmp_path: Path, way: AbstractContextManager[Any]) -> None:
    columns = {"a": [[7] * 200_000], "b": [[7] * 10]}
    schema = pa.schema([(name, pa.list_(pa.int64())) for name in columns])
    (task,) = write_parquet(tmp_path / "a.parquet", pa.table(columns, schema))
    counts = Counts()
    before = count_thread_in(counts)
    try:
        with way:
            (batch,) = read([task], schema, max_row_group_bytes=1 << 20)
    finally:
        count_thread_in(before)
    assert batch.to_pydict() == columns
    kinds = ("compiled", "damaged")
    assert [getattr(counts, f"column_chunks.{kind}") for kind in kinds] == [1, 1]


def test_rows_are_counted_by_the_headers_of_pages(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, pa.table({"a": np.arange(1000)}), data_page_size=100, write_batch_size=10, use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    pages = path.read_bytes()[chunk.data_page_offset :][: chunk.total_compressed_size]
    assert _engine.count_values(pages) == 1000
    assert 0 < _engine.count_values(pages[: len(pages) // 2]) < 1000
    assert _engine.count_values(b"") == _engine.count_values(bytes(100)) == 0


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_checksum_goes_on_as_that_of_zlib(first: bytes, second: bytes) -> None:
    assert _engine.crc32(second, _engine.crc32(first, 0)) == zlib.crc32(first + second)
