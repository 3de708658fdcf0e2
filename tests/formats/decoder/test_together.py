"""Small row groups decoded by one call, and footers read by one pass, say what pyarrow says of each alone."""

import io
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import needs_engine
from tests.formats.decoder.test_decoder import bits_of, rewritten, tables
from tests.formats.files import deleting, make_spec, with_field_ids, write_parquet
from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.batches import side_by_side
from torch_dataloader_utils._core.block import JoinedRows
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._observe.counters import Counts, count_thread_in
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.formats.parquet.footer_numbers import OfChunk, footer_numbers
from torch_dataloader_utils.tables.reader import Reader, make_reader

pytestmark = needs_engine


def joined(together: JoinedRows, columns: list[str]) -> pa.RecordBatch:
    batch = side_by_side(list(together.parts)).select(columns)
    assert batch.num_rows == sum(together.rows)
    return batch


def alone(reader: Reader, tasks: list[RowGroupTask]) -> pa.RecordBatch:
    """Each row group by itself, one after the other."""
    table = pa.Table.from_batches(list(map(reader.read, tasks))).unify_dictionaries().combine_chunks()
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def readers(schema: pa.Schema, **options: Any) -> tuple[Reader, Reader]:
    compiled, plain = (make_reader(make_spec(schema, is_compiled=each, **options)) for each in (True, False))
    return compiled, plain


@pytest.mark.slow
@given(table=tables(), data=st.data())
def test_rows_together_are_those_of_pyarrow_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, table: Any, data: st.DataObject
) -> None:
    """Files of one kind and several codecs, row groups in any order, some of them twice; a filter now and then."""
    content, written, _ = table
    folder, tasks = tmp_path_factory.mktemp("t"), []
    for number in range(data.draw(st.integers(1, 3))):
        group_rows = data.draw(st.sampled_from([1, 7, 8, 30, 1000]))
        written["compression"] = data.draw(st.sampled_from(["none", "snappy", "zstd", "lz4", "gzip"]))
        part = content.slice(0, data.draw(st.integers(0, min(100, len(content)))))
        tasks += write_parquet(folder / f"{number}.parquet", part, group_rows, **written)
    if not tasks:
        return
    tasks = data.draw(st.lists(st.sampled_from(tasks), min_size=1, max_size=64))
    schema = pq.read_schema(tasks[0].path)
    row_filter = data.draw(st.sampled_from([None, None, pc.field("c0").is_valid()]))
    compiled, plain = readers(schema, row_filter=row_filter)
    if row_filter is not None:
        tasks = [replace(task, live_rows=plain.count_rows(task)) for task in tasks]
    wanted = alone(plain, tasks)
    found = joined(compiled.read_together(tasks), schema.names)
    assert found.schema.equals(wanted.schema, check_metadata=True)
    found.validate(full=True)
    assert bits_of(found) == bits_of(wanted)


@pytest.mark.slow
@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    stored=st.lists(st.sampled_from([pa.int8(), pa.int32(), pa.int64()]), min_size=4, max_size=4),
    deleted=st.sets(st.integers(0, 39)),
    lacks=st.booleans(),
)
def test_types_that_became_wider_columns_that_came_later_and_deleted_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: Any, stored: Any, deleted: set[int], lacks: bool
) -> None:
    folder = tmp_path_factory.mktemp("t")
    schema = with_field_ids(pa.schema([("a", pa.int64()), ("b", pa.float64())]))
    tasks, wanted = [], []
    for number, (count, data_type) in enumerate(zip(rows, stored, strict=False)):
        fields = [schema.field(0).with_type(data_type), schema.field(1)]
        part = pa.table([np.arange(count, dtype=data_type.to_pandas_dtype()), np.arange(count) / 2], pa.schema(fields))
        part = part.drop_columns("b") if lacks and number == 1 else part
        of_file = write_parquet(folder / f"{number}.parquet", part, 40)
        here = {each for each in deleted if each < count and number % 2}
        if here:
            of_file = [replace(each, extra=deleting(schema, here), live_rows=count - len(here)) for each in of_file]
        tasks += of_file
        wanted += [row for row in range(count) if row not in here]
    for reader in readers(schema):
        found = joined(reader.read_together(tasks), schema.names)
        assert found.column(0).to_pylist() == wanted
        assert set(found.column(1).drop_null().to_pylist()) <= {row / 2 for row in range(40)}
        missing = len(set(range(rows[1])) - deleted) if lacks and len(rows) > 1 else 0
        assert found.column(1).null_count == missing


@pytest.mark.slow
@given(table=tables(), data=st.data())
def test_a_damaged_file_among_others_has_the_verdict_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory, table: Any, data: st.DataObject
) -> None:
    """Rows of a damaged page may differ where nothing tells so; what pyarrow refuses comes from nobody."""
    content, written, _ = table
    written = {**written, "write_page_checksum": True}
    folder = tmp_path_factory.mktemp("t")
    tasks = [
        task
        for number in range(3)
        for task in write_parquet(folder / f"{number}.parquet", content.slice(0, 50), 20, **written)
    ]
    if not tasks:
        return
    schema = pq.read_schema(tasks[0].path)
    compiled, plain = readers(schema)
    compiled.read_together(tasks)  # the columns are known from here on
    victim = data.draw(st.sampled_from(sorted({task.path for task in tasks})))
    whole = bytearray(Path(victim).read_bytes())
    whole[data.draw(st.integers(4, len(whole) - 9))] ^= 1 << data.draw(st.integers(0, 7))
    same = [rewritten(task, bytes(whole)) if task.path == victim else task for task in tasks]
    try:
        wanted = bits_of(alone(plain, same))
    except DataError:
        return  # a footer whose statistics are damaged is read; what is in pages and in numbers is not
    assert bits_of(joined(compiled.read_together(same), schema.names)) == wanted


def test_chunks_of_numbers_are_counted_once(tmp_path: Path) -> None:
    table = pa.table({"x": range(40), "y": np.arange(40.0), "text": ["a"] * 40})
    tasks = write_parquet(tmp_path / "a.parquet", table, 10)
    counts = Counts()
    before = count_thread_in(counts)
    try:
        make_reader(make_spec(table.schema)).read_together(tasks)
    finally:
        count_thread_in(before)
    kinds = ("compiled", "type", "damaged")
    assert [getattr(counts, f"column_chunks.{kind}") for kind in kinds] == [8, 4, 0]


def footer_of(content: bytes) -> bytes:
    return content[-8 - int.from_bytes(content[-8:-4], "little") :]


@pytest.mark.slow
@given(table=tables())
def test_numbers_of_a_footer_are_those_that_pyarrow_reads(table: Any) -> None:
    content, written, group_rows = table
    file = io.BytesIO()
    pq.write_table(content, file, group_rows, **written)
    numbers, metadata = footer_numbers(file.getvalue()), pq.read_metadata(file)
    assert numbers is not None
    assert numbers.rows == metadata.num_rows
    assert numbers.chunks.shape[0] == len(numbers.groups) == metadata.num_row_groups
    for ordinal in range(metadata.num_row_groups):
        group = metadata.row_group(ordinal)
        assert numbers.groups[ordinal].tolist() == [group.num_rows, group.total_byte_size]
        for leaf in range(metadata.num_columns):
            chunk = group.column(leaf)
            found = numbers.chunks[ordinal, leaf]
            assert found[OfChunk.VALUES] == chunk.num_values
            assert found[OfChunk.UNCOMPRESSED] == chunk.total_uncompressed_size
            assert found[OfChunk.COMPRESSED] == chunk.total_compressed_size
            assert found[OfChunk.DATA_START] == chunk.data_page_offset
            assert max(0, found[OfChunk.DICTIONARY_START]) == (chunk.dictionary_page_offset or 0)


@pytest.mark.slow
@given(table=tables(), data=st.data())
def test_numbers_of_a_damaged_footer_are_those_that_pyarrow_reads(table: Any, data: st.DataObject) -> None:
    """Where it reads any; the decoder may understand a footer that is wrong only in what it passes over."""
    content, written, group_rows = table
    file = io.BytesIO()
    pq.write_table(content, file, group_rows, **written)
    footer = bytearray(footer_of(file.getvalue()))
    for _ in range(data.draw(st.integers(1, 3))):
        footer[data.draw(st.integers(0, len(footer) - 9))] = data.draw(st.integers(0, 255))
    numbers = footer_numbers(bytes(footer))
    try:
        metadata = pq.read_metadata(pa.BufferReader(bytes(footer)))
    except (pa.ArrowException, OSError, UnicodeDecodeError):  # The last of texts that are no UTF-8.
        return
    if numbers is None or numbers.chunks.shape[:2] != (metadata.num_row_groups, metadata.num_columns):
        return
    for ordinal in range(metadata.num_row_groups):
        group = metadata.row_group(ordinal)
        assert numbers.groups[ordinal].tolist() == [group.num_rows, group.total_byte_size]


@pytest.mark.parametrize("length", [0, 1, 7])
def test_footers_that_are_cut_or_empty_are_not_understood(length: int) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}), file)
    footer = footer_of(file.getvalue())[:-8]
    assert _engine.read_footer(footer) is not None
    assert _engine.read_footer(footer[:length]) is None
    assert all(_engine.read_footer(footer[:cut]) is None for cut in range(len(footer)))
    assert _engine.read_footer(footer + b"\0") is None


def conversion(source: int, to: int, scale: int = 0, loss: int = 0) -> int:
    return source | to << 8 | scale << 16 | loss << 24


GOOD: dict[str, Any] = {
    "columns": [(4, 4, 1, 1, 0, 0, 64, -1, 64, 0)],
    "chunks": [(0, 0, 16, 4)],
    "rows": [(0, 4)],
    "pages": bytearray(16),
    "memory": 128,
    "results": 2,
    "file": -1,
}
OF_LISTS = (4, 4, 1, 1, 1, 0, 32, 64, 96, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": [(3, 4, 1, 1, 0, 0, 64, -1, 64, 0)]},
        {"columns": [(4, 3, 1, 1, 0, 0, 64, -1, 64, 0)]},
        {"columns": [(4, 8, 1, 1, 0, 0, 64, -1, 64, 0)]},
        {"columns": [(4, 8, 1, 1, 0, 0, 64, -1, 64, conversion(3, 9))]},
        {"columns": [(8, 4, 1, 1, 0, 0, 64, -1, 64, conversion(3, 9))]},
        {"columns": [(4, 4, 1, 1, 0, 0, 64, -1, 64, conversion(3, 13))]},
        {"columns": [(4, 4, 1, 1, 0, 0, 64, -1, 64, conversion(0, 9))]},
        {"columns": [(4, 4, 1, 1, 0, 0, 64, -1, 64, conversion(3, 9, loss=3))]},
        {"columns": [(4, 16, 1, 1, 0, 0, 64, -1, 64, conversion(3, 11))]},
        {"columns": [(3, 16, 1, 1, 0, 0, 64, -1, 64, conversion(11, 11))]},
        {"columns": [(17, 16, 0, 1, 0, 0, 64, -1, 64, conversion(11, 11))]},
        {"columns": [(5, 8, 0, 1, 0, 0, 64, -1, 64, conversion(11, 10, scale=39))]},
        {"columns": [(4, 8, 1, 1, 0, 104, 64, -1, 64, conversion(3, 10))]},
        {"columns": [(4, 4, 1, 1, 0, 116, 64, -1, 64, 0)]},
        {"columns": [(4, 4, 1, 1, 0, -4, 64, -1, 64, 0)]},
        {"columns": [(4, 4, 1, 1, 0, 2, 64, -1, 64, 0)]},
        {"columns": [(4, 4, 1, 1, 0, 0, 128, -1, 64, 0)]},
        {"columns": [(4, 4, 1, 1, 0, 0, -1, -1, 64, 0)]},
        {"columns": [(4, 4, 1, 1, 1, 0, 64, 112, 64, 0)]},
        {"columns": [(4, 4, 1, 1, 1, 0, 64, 66, 64, 0)]},
        {"columns": [(4, 4, 1, 1, 1, 0, 64, 64, 128, 0)]},
        {"columns": [OF_LISTS], "chunks": [(0, 0, 16, 33)]},
        {"columns": [OF_LISTS], "chunks": [(0, 0, 8, 4), (0, 8, 8, 4)], "rows": [(0, 4), (0, 4)]},
        {"columns": []},
        {"chunks": [(0, 1, 16, 4)]},
        {"chunks": [(0, -1, 4, 4)]},
        {"chunks": [(0, 0, -1, 4)]},
        {"chunks": [(0, 17, 0, 4)]},
        {"chunks": [(0, 0, 16, 3)]},
        {"chunks": [(0, 0, 16, -1)]},
        {"chunks": [(0, 0, 16, 1 << 62)], "rows": [(0, 1 << 62)]},
        {"chunks": []},
        {"chunks": [(0, -1, 16, 4)], "file": 0},
        {"chunks": [(0, (1 << 63) - 16, 16, 4)], "file": 0},
        {"seal": [0, 0]},
        {"seal": [0], "file": 0},
        {"seal": [0, 0, 0], "file": 0},
        {"seal": [-1, 0], "file": 0},
        {"seal": [1 << 32, 0], "file": 0},
        {"seal": [0, -1], "file": 0},
        {"seal": [0, 1], "file": 0},
        {"rows": [(0, -1)]},
        {"rows": [(0, 33)]},
        {"rows": [(-1, 4)]},
        {"rows": [(1, 4)]},
        {"rows": [(0, 1 << 62)]},
        {"rows": [(0, 4), (0, 4)]},
        {"rows": []},
        {"results": 1},
    ],
)
def test_places_outside_of_buffers_are_refused(changes: dict[str, Any]) -> None:
    def call(options: dict[str, Any]) -> list[str]:
        packed = (np.array(options[key], np.int64).tobytes() for key in ("columns", "chunks", "rows"))
        results = bytearray(8 * options["results"])
        memory = pa.allocate_buffer(options["memory"])
        seal = np.array(options["seal"], np.int64) if "seal" in options else None
        return _engine.decode(options["pages"], memory, *packed, results, 1 << 20, True, options["file"], seal)

    assert call(GOOD) == ["damaged"]
    assert call(GOOD | {"columns": [OF_LISTS]}) == ["damaged"]
    with pytest.raises(ValueError, match="do not fit"):
        call(GOOD | changes)


def test_a_seal_is_the_checksum_of_the_chunks_in_the_order_of_the_file(tmp_path: Path) -> None:
    path, content = tmp_path / "chunks", np.random.default_rng(0).bytes(48)
    path.write_bytes(content)
    columns = np.array([(4, 4, 1, 1, 0, start, start + 64, -1, 64, 0) for start in (0, 16)], np.int64)
    chunks, rows = np.array([(0, 32, 16, 4), (0, 0, 32, 4)], np.int64), np.array([(0, 4)], np.int64)
    seal = np.array([zlib.crc32(b"before"), 1, 0], np.int64)
    with path.open("rb") as file:
        arguments = (bytearray(32), bytearray(128), columns, chunks, rows, bytearray(32), 1 << 20, True)
        _engine.decode(*arguments, file.fileno(), seal)
    assert seal[0] == zlib.crc32(b"before" + content)
    with pytest.raises(BufferError):
        _engine.decode(*arguments, 0, bytes(24))


def test_a_file_that_does_not_give_all_bytes_is_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(15))
    columns, chunks, rows = (np.array(GOOD[key], np.int64) for key in ("columns", "chunks", "rows"))
    arguments = (bytearray(16), bytearray(128), columns, chunks, rows, bytearray(16), 1 << 20, True)
    with path.open("rb") as file:
        assert _engine.decode(*arguments, file.fileno()) == ["not read"]
        path.write_bytes(bytes(16))
        assert _engine.decode(*arguments, file.fileno()) == ["damaged"]
    assert _engine.decode(*arguments, 1 << 20) == ["not read"]


def test_only_the_planned_file_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"not utf-8 \xff")
    path.write_bytes(bytes(16))
    columns, chunks, rows = (np.array(GOOD[key], np.int64) for key in ("columns", "chunks", "rows"))
    arguments = (
        bytearray(16),
        bytearray(128),
        columns,
        chunks,
        rows,
        bytearray(16),
        1 << 20,
        True,
        -1,
        None,
        str(path),
    )
    for modified_ns in (-1, -1_000_000_001, 0, 1_700_000_000_123_456_789):
        os.utime(path, ns=(0, modified_ns))
        stat = LocalStore().stat(str(path))
        for planned in (stat.identity, stat.pin):
            assert _engine.decode(*arguments, planned) == ["damaged"]
            for other in ("", planned[1:], planned[:-1], f"{planned}0", f"{planned}@", f"{stat.pin}@{stat.changed_ns}"):
                assert _engine.decode(*arguments, other) == ["not read"]
    with path.open("rb") as file:
        descriptor = file.fileno()
    path.write_bytes(bytes(15))
    assert _engine.decode(*arguments, LocalStore().stat(str(path)).identity) == ["not read"]
    path.unlink()
    assert _engine.decode(*arguments, "16-0") == ["not read"]
    os.mkfifo(path)
    assert _engine.decode(*arguments, LocalStore().stat(str(path)).identity) == ["not read"]
    with Path(__file__).open("rb") as file:
        assert file.fileno() == descriptor  # none was left open
    with pytest.raises(ValueError, match="null"):
        _engine.decode(*arguments[:-1], "a\0b", "16-0")
