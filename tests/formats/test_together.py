"""Row groups of many files read together: the rows that each of them has alone, or an error."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.engine import needs_engine
from tests.formats.files import deleting, identity, make_spec, parquet_tasks, write_arrow, write_parquet
from tests.formats.test_reader_properties import BYTES_AT_ONCE, COLUMNS, SCHEMA, tables
from torch_dataloader_utils._arrow.batches import side_by_side
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.errors import (
    DataError,
    FileChangedError,
    RowCountError,
    SchemaError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.formats.parquet import decode
from torch_dataloader_utils.formats.parquet import footer as footers_of_files
from torch_dataloader_utils.formats.parquet.footer import KnownColumns
from torch_dataloader_utils.formats.parquet.footer_numbers import OfChunk, footer_numbers
from torch_dataloader_utils.formats.parquet.together import NumberGroups
from torch_dataloader_utils.tables.reader import Reader, make_reader

ROWS = pa.table({"x": pa.array(range(40)), "y": pa.array([f"text {i}" for i in range(40)])})
WRITER_OPTIONS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "store_schema": st.booleans(),
        "write_statistics": st.booleans(),
        "data_page_size": st.sampled_from([20, 1 << 20]),
    }
)


def rows_together(reader: Reader, tasks: list[RowGroupTask]) -> pa.RecordBatch:
    """All rows, the columns in the order wanted; the counts are checked."""
    together = reader.read_together(tasks)
    assert list(together.rows) == [task.physical_rows for task in tasks]
    rows = side_by_side(together.parts)
    assert rows.num_rows == sum(together.rows)
    return rows.select(reader.projection.delivered)


@pytest.mark.slow
@settings(max_examples=effort(80), deadline=None)
@given(
    files=st.lists(tables(), min_size=1, max_size=5),
    columns=COLUMNS.filter(bool),
    group_rows=st.integers(1, 30),
    options=WRITER_OPTIONS,
    order=st.randoms(use_true_random=False),
    bytes_at_once=BYTES_AT_ONCE,
)
def test_the_rows_are_those_of_each_row_group_alone(
    files: list[pa.Table],
    columns: list[str],
    group_rows: int,
    options: dict[str, Any],
    order: Any,
    bytes_at_once: int,
) -> None:
    """Also one that the files lack, and one whose values come with the task."""
    schema = SCHEMA.append(pa.field("lost", pa.int32())).append(pa.field("day", pa.string()))
    spec = make_spec(schema, columns=(*columns, "lost", "day"), partition_columns=frozenset({"day"}))
    with tempfile.TemporaryDirectory() as folder, patch.object(decode, "_BYTES_AT_ONCE", bytes_at_once):
        tasks = []
        for number_of_file, table in enumerate(files):
            path = Path(folder, f"{number_of_file}.parquet")
            options["max_rows_per_page"] = 7
            of_file = write_parquet(path, table, group_rows, **options)
            tasks += [replace(task, partition_values=(("day", f"day {number_of_file}"),)) for task in of_file]
        order.shuffle(tasks)
        tasks = tasks[:20]
        if not tasks:
            return
        reader = make_reader(spec)
        alone = pa.Table.from_batches([reader.read(task) for task in tasks])
        for _ in range(2):  # the first time with footers to be read
            assert rows_together(reader, tasks).to_pylist() == alone.to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("num_columns", [1, 15, 200])
def test_every_type_and_many_columns(tmp_path: Path, num_columns: int) -> None:
    """Lists of fifteen and more are written to footers in another way than shorter ones."""
    values = {
        "bool": pa.array([True, None, False]),
        "half": pa.array(np.array([1, 2, 3], np.float16)),
        "decimal": pa.array([1, None, 3]).cast(pa.decimal128(25, 3)),
        "fixed": pa.array([b"abc", b"def", None], pa.binary(3)),
        "time": pa.array([1, 2, None], pa.timestamp("ns", "UTC")),
        "old time": pa.array([1, 2, None], pa.timestamp("us")),
        "large": pa.array(["a", None, "c"], pa.large_string()),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int8())),
        "matrix": pa.array([[[1.0], []], None, []], pa.list_(pa.list_(pa.float64()))),
        "fixed list": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        **{f"c{i}": pa.array([i, None, i]) for i in range(num_columns)},
    }
    table = pa.table(values)
    tasks = []
    for file in range(20):
        tasks += write_parquet(tmp_path / f"{file}.parquet", table, 2)
    reader = make_reader(make_spec(pq.read_schema(tasks[0].path)))
    alone = pa.Table.from_batches([reader.read(task) for task in tasks]).combine_chunks().to_batches()[0]
    assert rows_together(reader, tasks).equals(alone)


def _numbers_by_one_call(reader: Reader, tasks: list[RowGroupTask]) -> bool:
    groups = reader.numbers_of(tasks)
    return groups is not None and groups.decode() is not None


@needs_engine
def test_what_differs_from_file_to_file_is_not_read_together(tmp_path: Path) -> None:
    first = write_parquet(tmp_path / "a.parquet", ROWS, 20)
    reader = make_reader(make_spec(ROWS.schema))
    assert _numbers_by_one_call(reader, first)
    others = {
        "codec": write_parquet(tmp_path / "b.parquet", ROWS, compression="brotli"),
        "columns": write_parquet(tmp_path / "d.parquet", ROWS.append_column("z", ROWS["x"])),
        "order": write_parquet(tmp_path / "e.parquet", ROWS.select(["y", "x"])),
        "type": write_parquet(tmp_path / "f.parquet", ROWS.set_column(0, "x", ROWS["x"].cast(pa.int32()))),
        "format": write_arrow(tmp_path / "h.arrow", ROWS, 40),
        "deletes": [replace(first[0], extra=deleting(ROWS.schema, [1]), live_rows=19)],
    }
    for what, tasks in others.items():
        assert not _numbers_by_one_call(reader, first + tasks), what
        assert not _numbers_by_one_call(reader, tasks + first), what
    zstd = write_parquet(tmp_path / "z.parquet", ROWS, compression="zstd")
    assert _numbers_by_one_call(reader, first + zstd)


@pytest.mark.parametrize(
    "options",
    [{"row_filter": pc.field("x") > 3}, {"columns": ()}, {"max_row_group_bytes": 100}],
    ids=["filter", "no columns", "budget"],
)
@needs_engine
def test_what_is_asked_for_may_be_for_one_by_one(tmp_path: Path, options: dict[str, Any]) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", ROWS, 20)
    assert not _numbers_by_one_call(make_reader(make_spec(ROWS.schema, **options)), tasks)


@needs_engine
def test_large_row_groups_of_which_little_is_read_are_not_fetched_whole(tmp_path: Path) -> None:
    """The two columns lie at the ends of the row group, and much between them."""
    wide = {
        "first": range(200),
        **{f"c{i}": np.random.default_rng(i).random(200) for i in range(100)},
        "last": range(200),
    }
    tasks = write_parquet(tmp_path / "a.parquet", pa.table(wide), 100)
    schema = pq.read_schema(tasks[0].path)
    assert not _numbers_by_one_call(make_reader(make_spec(schema, columns=("first", "last"))), tasks)
    assert _numbers_by_one_call(make_reader(make_spec(schema, columns=("c3", "c5"))), tasks)


class CountingStore(LocalStore):
    """Which files were opened, and how much was read of them."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "reads", [])

    def read_into(self, path: str, spans: Any, *others: Any) -> None:
        self.reads.append((Path(path).name, sum(length for _, length in spans)))  # type: ignore[attr-defined]
        super().read_into(path, spans, *others)


@needs_engine
def test_row_groups_of_one_file_that_follow_each_other_open_it_once(tmp_path: Path) -> None:
    tasks = [
        task
        for name in ("a", "b")
        for task in write_parquet(tmp_path / f"{name}.parquet", ROWS, 5, compression="none", use_dictionary=False)
    ]
    reader = make_reader(make_spec(ROWS.schema, columns=("x",)))
    reader.read_together(tasks)  # footers, and with them these small files
    store = reader._stores[""] = CountingStore()
    rows_together(reader, tasks)
    assert [name for name, _ in store.reads] == ["a.parquet", "b.parquet"]  # type: ignore[attr-defined]
    stored = sum(pq.read_metadata(tasks[0].path).row_group(i).column(0).total_compressed_size for i in range(8))
    assert all(num_bytes == stored for _, num_bytes in store.reads)  # type: ignore[attr-defined]


@pytest.mark.parametrize("moment", ["before the first read", "after it"])
def test_a_file_that_was_replaced_is_never_read_as_the_planned_one(tmp_path: Path, moment: str) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", ROWS) + write_parquet(tmp_path / "b.parquet", ROWS)
    reader = make_reader(make_spec(ROWS.schema))
    if moment == "after it":
        rows_together(reader, tasks)
    write_parquet(tmp_path / "new.parquet", ROWS.take(list(range(39, -1, -1))))
    (tmp_path / "new.parquet").rename(tmp_path / "b.parquet")
    with pytest.raises(FileChangedError, match=r"b\.parquet"):
        reader.read_together(tasks)
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(FileChangedError, match="gone"):
        reader.read_together(tasks)


def test_a_file_that_was_cut_short_under_its_name_and_time_is_an_error(tmp_path: Path) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", ROWS) + write_parquet(tmp_path / "b.parquet", ROWS)
    reader = make_reader(make_spec(ROWS.schema))
    rows_together(reader, tasks)
    os.truncate(tasks[1].path, 100)
    with pytest.raises(DataError):
        reader.read_together(tasks)


@pytest.mark.parametrize("rows", ["physical_rows", "live_rows"])
def test_other_rows_than_planned(tmp_path: Path, rows: str) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", ROWS, 20)
    changes: dict[str, Any] = {rows: 21}
    with pytest.raises(RowCountError, match="20 of 21"):
        make_reader(make_spec(ROWS.schema)).read_together([tasks[0], replace(tasks[1], **changes)])


def test_nulls_that_the_schema_does_not_allow(tmp_path: Path) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", ROWS.set_column(0, "x", [[1, None] * 20]), 20)
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    with pytest.raises(SchemaError, match=r"[12]0 nulls"):  # of both row groups, or of the first
        make_reader(make_spec(schema)).read_together(tasks)


@needs_engine
@pytest.mark.parametrize("change", [-20, -1, 1, 20])
@pytest.mark.parametrize("file", [0, 1, 2])
def test_other_rows_than_the_footer_says_shift_no_row(tmp_path: Path, file: int, change: int) -> None:
    """Pages with more rows than are planned, or with fewer, and one boundary or none between two pages at the end."""
    options: dict[str, Any] = {"max_rows_per_page": 10, "use_dictionary": False}
    tasks = [task for name in "abc" for task in write_parquet(tmp_path / f"{name}.parquet", ROWS, **options)]
    groups = make_reader(make_spec(ROWS.schema, columns=("x",))).numbers_of(tasks)
    assert groups is not None
    rows = groups.rows.copy()
    rows[file] += change
    tasks[file] = replace(tasks[file], physical_rows=int(rows[file]))
    sources = [replace(source, task=task) for source, task in zip(groups.sources, tasks, strict=True)]
    found = groups._replace(sources=sources, rows=rows).decode()
    if found is not None:  # the rows that were planned, each in its place
        assert change < 0
        assert side_by_side(found).column(0).to_pylist() == [each for count in rows.tolist() for each in range(count)]


@needs_engine
def test_files_of_the_same_columns_share_them_whatever_is_read_between(tmp_path: Path) -> None:
    other = ROWS.rename_columns(["a", "b"])
    tasks = [
        task
        for i in range(3)
        for name, table in (("one", ROWS), ("other", other))
        for task in write_parquet(tmp_path / f"{name}-{i}.parquet", table)
    ]
    reader = make_reader(make_spec(ROWS.schema))
    footers = [footers_of_files.parquet_footer(reader._source(task)) for task in tasks]
    assert len({id(footer.columns) for footer in footers[::2]}) == 1
    assert len({id(footer.columns) for footer in footers[1::2]}) == 1
    assert _numbers_by_one_call(reader, tasks[::2])


@needs_engine
def test_many_kinds_of_columns_are_not_kept(tmp_path: Path) -> None:
    known = KnownColumns()
    for i in range(40):
        write_parquet(tmp_path / "a.parquet", pa.table({f"c{i}": [1]}))
        numbers = footer_numbers((tmp_path / "a.parquet").read_bytes())
        assert numbers is not None
        columns = known.of(pq.read_metadata(tmp_path / "a.parquet"), numbers)
        assert columns.schema.names == [f"c{i}"]
        assert known.find(numbers) is columns
    assert len(known._of_heads._entries) == len(known._of_footers._entries) == 16


def test_what_pandas_says_of_its_rows_keeps_no_files_apart(tmp_path: Path) -> None:
    """It writes the end of the index into the footer."""
    pytest.importorskip("pandas", reason="it is what writes these files")
    tasks = []
    for rows in (40, 39):
        path = tmp_path / f"{rows}.parquet"
        ROWS.slice(0, rows).to_pandas().to_parquet(path)
        tasks += parquet_tasks(path)
    reader = make_reader(make_spec(ROWS.schema))
    assert rows_together(reader, tasks).column("x").to_pylist() == [*range(40), *range(39)]


def test_what_fields_say_of_themselves_keeps_files_apart(tmp_path: Path) -> None:
    fields = [pa.field("x", pa.int64(), metadata={"unit": unit}) for unit in ("m", "s")]
    tasks = [
        task
        for i, field in enumerate(fields)
        for task in write_parquet(tmp_path / f"{i}.parquet", pa.table([[1, 2]], schema=pa.schema([field])))
    ]
    assert not _numbers_by_one_call(make_reader(make_spec(pa.schema([fields[0]]))), tasks)


@needs_engine
@pytest.mark.parametrize("writer", [b"parquet-cpp-arrow version 99", b"\xff" * 27])
def test_files_of_other_writers_or_of_nobody_that_can_be_told(tmp_path: Path, writer: bytes) -> None:
    """Decoders know mistakes of old writers; a name that is no text is no reason to refuse a file."""
    tasks = [task for name in "abc" for task in write_parquet(tmp_path / f"{name}.parquet", ROWS)]
    known = pq.read_metadata(tasks[0].path).created_by.encode()
    tasks[1:] = [_edited(task, known, writer.ljust(len(known))[: len(known)]) for task in tasks[1:]]
    reader = make_reader(make_spec(ROWS.schema))
    assert [reader.read(task).num_rows for task in tasks] == [40] * 3
    rows_together(reader, tasks)


def test_a_codec_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    """Of which pyarrow's metadata ends the process if it is asked for it."""
    tasks = [task for name in "ab" for task in write_parquet(tmp_path / f"{name}.parquet", ROWS)]
    tasks[1] = _edited(tasks[1], b"\x18\x01x\x15\x02", b"\x18\x01x\x15\x52")
    reader = make_reader(make_spec(ROWS.schema))
    assert not _numbers_by_one_call(reader, tasks)
    with pytest.raises(UnsupportedFeatureError, match="codec"):
        reader.read(tasks[1])


def test_pages_with_more_values_than_their_chunk(tmp_path: Path) -> None:
    """One damaged number in the header of a page; levels of columns with nulls are padded, so that there are more."""
    table = pa.table({"x": pa.array([None if row % 3 == 0 else row for row in range(20)])})
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    tasks = [task for name in "abc" for task in write_parquet(tmp_path / f"{name}.parquet", table, **options)]
    reader = make_reader(make_spec(table.schema))
    alone = [reader.read(task) for task in tasks]
    path = Path(tasks[0].path)
    content = path.read_bytes()
    assert content.count(b"\x15\x28") >= 1
    path.write_bytes(content.replace(b"\x15\x28", b"\x15\x2c", 1))  # 20 and 22, in zigzag
    tasks[0] = parquet_tasks(path)[0]
    assert reader.read(tasks[0]).equals(alone[0])
    together = rows_together(reader, tasks)
    assert together.equals(pa.Table.from_batches(alone).combine_chunks().to_batches()[0])


def _edited(task: RowGroupTask, old: bytes, new: bytes) -> RowGroupTask:
    """The task of its file, in which some bytes of the footer are others."""
    path = Path(task.path)
    before, found, after = path.read_bytes().rpartition(old)
    assert found
    path.write_bytes(before + new + after)
    return parquet_tasks(path)[0]


def test_metadata_of_fields_is_that_of_their_own_file(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.parquet" for i in range(4)]
    for i, path in enumerate(paths):
        field = pa.field("x", pa.int64(), metadata={"unit": str(i)})
        write_parquet(path, pa.table([[1, 2]], schema=pa.schema([field])))
    for _ in range(3):
        assert [schema_read(path).field(0).metadata[b"unit"] for path in paths] == [b"0", b"1", b"2", b"3"]
        footers_of_files._footers._clear()


def schema_read(path: Path) -> pa.Schema:
    (task,) = parquet_tasks(path)
    return footers_of_files.parquet_schema(make_reader(make_spec(ROWS.schema))._source(task))


def test_an_encrypted_footer_is_refused_beside_files_of_the_same_columns(tmp_path: Path) -> None:
    tasks = [task for i in range(3) for task in write_parquet(tmp_path / f"{i}.parquet", ROWS)]
    reader = make_reader(make_spec(ROWS.schema))
    for task in tasks[:2]:
        reader.read(task)
    path = Path(tasks[2].path)
    path.write_bytes(path.read_bytes()[:-1] + b"E")
    task = replace(tasks[2], identity=identity(path))
    with pytest.raises(UnsupportedFeatureError, match=r"2\.parquet.*encrypted"):
        reader.read(task)
    with pytest.raises(UnsupportedFeatureError, match=r"2\.parquet.*encrypted"):
        reader.read_together([tasks[0], task])


@needs_engine
@pytest.mark.parametrize("by", [-1, 0, 1])
def test_chunks_that_are_not_in_their_file(tmp_path: Path, by: int) -> None:
    tasks = [task for i in range(3) for task in write_parquet(tmp_path / f"{i}.parquet", ROWS)]
    reader = make_reader(make_spec(ROWS.schema, columns=("x",)))
    chunk = pq.read_metadata(tasks[2].path).row_group(0).column(0)
    stop = min(chunk.data_page_offset, chunk.dictionary_page_offset) + chunk.total_compressed_size
    rows_together(reader, tasks)  # the footers are known
    sources = list(map(reader._source, tasks))
    footer = footers_of_files.parquet_footer(sources[2])
    assert footer.numbers is not None
    chunks = footer.numbers.chunks.copy()
    chunks[0, 0, OfChunk.COMPRESSED] += tasks[2].file_size - stop + by
    with patch.object(footer, "numbers", footer.numbers._replace(chunks=chunks)):
        assert (NumberGroups.of(sources, reader.projection.stored) is None) == (by > 0)
