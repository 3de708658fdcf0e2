"""Whatever the data, columns, filter and deletes: the reader's rows are pyarrow.dataset's rows."""

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.formats.files import (
    deleting,
    make_spec,
    oracle,
    with_field_ids,
    write_arrow,
    write_csv,
    write_json,
    write_orc,
    write_parquet,
    write_stream,
    write_stream_batches,
)
from torch_dataloader_utils._arrow.number_batch import as_arrow
from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils._core.row_group_task import GroupRows
from torch_dataloader_utils.formats.parquet import decode
from torch_dataloader_utils.tables.reader import make_reader

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("small", pa.int8()),
        ("ratio", pa.float64()),
        ("word", pa.string()),
        ("flags", pa.list_(pa.int32())),
        ("pair", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
ROW_RANGES = st.builds(GroupRows, st.integers(0, 16), st.none() | st.integers(0, 16)).filter(
    lambda rows: rows.stop is None or rows.start <= rows.stop
)
FLAT = ["row", "small", "ratio", "word"]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 40))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(st.none() | values, min_size=rows, max_size=rows))

    data = {
        "row": list(range(rows)),
        "small": column(st.integers(-3, 3)),
        "ratio": column(st.sampled_from([-1.5, 0.0, 2.25])),
        "word": column(st.sampled_from(["", "a", "b,c", "d\ne", "é"])),
        "flags": column(st.lists(st.integers(0, 2), max_size=3)),
        "pair": column(st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.just("z")})),
    }
    return pa.table(data, schema=SCHEMA)


CONDITIONS = st.sampled_from(
    [
        pc.field("small") > 0,
        pc.field("ratio").is_null(),
        pc.field("word").isin(["a", ""]),
        ~(pc.field("small") == 1),
        pc.field("pair", "x") >= 4,
        pc.scalar(False),
        pc.scalar(True),
        pc.list_value_length(pc.field("flags")) > 1,
    ]
)
FILTERS = (
    st.none()
    | CONDITIONS
    | st.builds(lambda a, b: a & b, CONDITIONS, CONDITIONS)
    | st.builds(lambda a, b: a | b, CONDITIONS, CONDITIONS)
)
# Every column alone, some of them together, all of them.
BYTES_AT_ONCE = st.sampled_from([1, 60, 1 << 20])
COLUMNS = st.lists(st.sampled_from(SCHEMA.names), unique=True)


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.slow
@settings(max_examples=effort(80), deadline=None)
@given(table=tables(), columns=COLUMNS, row_filter=FILTERS, group_rows=st.integers(1, 15), bytes_at_once=BYTES_AT_ONCE)
def test_parquet_rows_are_the_oracles_rows(
    table: pa.Table, columns: list[str], row_filter: Any, group_rows: int, bytes_at_once: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, patch.object(decode, "_BYTES_AT_ONCE", bytes_at_once):
        path = Path(folder, "a.parquet")
        tasks = write_parquet(path, table, group_rows)
        spec = make_spec(SCHEMA, columns=tuple(columns), row_filter=row_filter)
        if row_filter is not None:
            tasks = [replace(task, live_rows=UNKNOWN) for task in tasks]
        reader = pickle.loads(pickle.dumps(make_reader(spec)))
        batches = [reader.read(task) for task in tasks]
        wanted = oracle([path], SCHEMA, columns or ["row"], row_filter)
        assert [batch.schema.names for batch in batches] == [columns for _ in batches]
        assert sum(batch.num_rows for batch in batches) == len(wanted)
        assert sum(reader.count_rows(task) for task in tasks) == len(wanted)
        if columns:
            assert rows_of(batches) == wanted


@pytest.mark.slow
@settings(max_examples=effort(60), deadline=None)
@given(
    table=tables(),
    row_filter=FILTERS,
    group_rows=st.integers(1, 15),
    deleted=st.sets(st.integers(0, 39)),
    rows=ROW_RANGES,
    bytes_at_once=BYTES_AT_ONCE,
)
def test_deletes_filter_and_range_leave_the_right_rows(
    table: pa.Table, row_filter: Any, group_rows: int, deleted: set[int], rows: GroupRows, bytes_at_once: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, patch.object(decode, "_BYTES_AT_ONCE", bytes_at_once):
        path = Path(folder, "a.parquet")
        schema = with_field_ids(SCHEMA)
        tasks = write_parquet(path, table.cast(schema), group_rows)
        reader = make_reader(make_spec(schema, columns=("row", "word"), row_filter=row_filter))
        kept = {row["row"] for row in oracle([path], SCHEMA, ["row"], row_filter)} - deleted
        for task in tasks:
            group = range(task.first_row, task.first_row + task.physical_rows)
            wanted = [row for row in group if row in kept]
            task = replace(task, live_rows=len(wanted), extra=deleting(schema, deleted))
            assert reader.read(task, rows).column("row").to_pylist() == wanted[slice(*rows)]
            assert reader.count_rows(task) == len(wanted)


@settings(max_examples=effort(60), deadline=None)
@given(
    table=tables(),
    columns=COLUMNS,
    group_rows=st.integers(1, 15),
    rows=ROW_RANGES,
    bytes_at_once=BYTES_AT_ONCE,
)
def test_columns_come_a_few_at_a_time_and_are_those_of_the_whole(
    table: pa.Table, columns: list[str], group_rows: int, rows: GroupRows, bytes_at_once: int
) -> None:
    """Also one that the file lacks, and one whose values come with the task."""
    schema = SCHEMA.append(pa.field("lost", pa.int32())).append(pa.field("day", pa.string()))
    names = [*columns, "lost", "day"]
    with tempfile.TemporaryDirectory() as folder, patch.object(decode, "_BYTES_AT_ONCE", bytes_at_once):
        tasks = write_parquet(Path(folder, "a.parquet"), table, group_rows)
        tasks = [replace(task, partition_values=(("day", "monday"),)) for task in tasks]
        reader = make_reader(make_spec(schema, columns=tuple(names), partition_columns=("day",)))
        for task in tasks:
            with patch.object(decode, "_LEAST_ROWS_AT_ONCE", 1):
                parts = list(reader.read_columns(task, rows))
            assert sorted(name for part in parts for name in part.schema.names) == sorted(names)
            whole = table.slice(task.first_row, task.physical_rows).to_pylist()[slice(*rows)]
            alone = {"word", "pair"} & set(columns)  # numbers and lists of them come together, if compiled
            assert len(parts) >= (len(alone) + 1 if bytes_at_once == 1 and whole else 1)
            for part in parts:
                wanted = [{"lost": None, "day": "monday", **row} for row in whole]
                assert as_arrow(part).to_pylist() == [{name: row[name] for name in part.schema.names} for row in wanted]


@pytest.mark.slow
@settings(max_examples=effort(30), deadline=None)
@given(
    table=tables(), columns=st.lists(st.sampled_from(FLAT), unique=True), group_rows=st.integers(1, 15), rows=ROW_RANGES
)
def test_every_format_gives_the_same_rows(
    table: pa.Table, columns: list[str], group_rows: int, rows: GroupRows
) -> None:
    # A CSV file cannot tell an empty text from a null one; neither can the oracle.
    words = pc.fill_null(table.column("word"), "")
    table = table.select(FLAT).set_column(3, "word", words)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tasks_of_formats = [
            write_parquet(place / "a.parquet", table, group_rows),
            write_arrow(place / "a.arrow", table, group_rows),
            write_stream(place / "b.arrow", table, group_rows),
            write_csv(place / "a.csv", table, group_rows),
            write_json(place / "a.jsonl", table, group_rows),
            write_orc(place / "a.orc", table),
        ]
        reader = make_reader(make_spec(table.schema, columns=tuple(columns)))
        for tasks in tasks_of_formats:
            batches = [reader.read(task) for task in tasks]
            assert sum(batch.num_rows for batch in batches) == table.num_rows
            assert all(batch.schema.equals(table.schema.empty_table().select(columns).schema) for batch in batches)
            if columns:
                assert rows_of(batches) == table.select(columns).to_pylist()
            for task, batch in zip(tasks, batches, strict=True):
                start, stop = rows.of(batch.num_rows)
                assert reader.read(task, rows).equals(batch.slice(start, stop - start))


WORDS = st.lists(st.text("abc", max_size=2), min_size=1, max_size=4, unique=True)


def encoded(words: list[str]) -> pa.DictionaryArray:
    """One row a word, the last word first."""
    return pa.DictionaryArray.from_arrays(pa.array(range(len(words)), pa.int32())[::-1], pa.array(words))


@given(
    # The words of each batch by column; None for those that the batch before had, with one more.
    st.lists(st.tuples(WORDS, st.one_of(st.none(), WORDS)), min_size=1, max_size=8),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@settings(max_examples=effort(60), deadline=None)
def test_the_dictionaries_of_a_stream_are_those_that_hold_where_a_batch_lies(
    lexica: list[tuple[list[str], list[str] | None]], deltas: bool, random: Random
) -> None:
    batches, grown = [], ["a"]
    for words, others in lexica:
        grown = [*grown, f"{len(grown)}"] if others is None else others
        inner = encoded(words)
        lists = pa.ListArray.from_arrays(pa.array(range(len(words) + 1), pa.int32()), inner)
        nested = pa.DictionaryArray.from_arrays(pa.array([0] * len(words), pa.int32()), lists)
        rows = min(len(words), len(grown))
        columns = [inner, nested, encoded(grown)]
        batches.append(pa.record_batch([column[:rows] for column in columns], ["kind", "nested", "grown"]))
    schema = batches[0].schema
    with tempfile.TemporaryDirectory() as folder:
        # Deltas of nested dictionaries are more than pyarrow writes.
        kept = ["kind", "grown"] if deltas else schema.names
        stored = [batch.select(kept) for batch in batches]
        tasks = write_stream_batches(Path(folder) / "a.arrows", stored, stored[0].schema, deltas=deltas)
        reader = make_reader(make_spec(stored[0].schema))
        read = {task.ordinal: reader.read(task) for task in random.sample(tasks, len(tasks))}
    assert [read[ordinal].to_pydict() for ordinal in range(len(stored))] == [batch.to_pydict() for batch in stored]


# Names that make the path of one leaf the name of another column.
NAMES = ["a", "b", "a.b", "a.a", "a.list.element", "a.list", "", ".", "`é`"]
ITEMS = st.builds(pa.field, st.just("element"), st.just(pa.int64()), nullable=st.booleans())
INSIDE = st.builds(pa.field, st.sampled_from(["a", "b", "a.b", "element"]), st.just(pa.int64()), nullable=st.booleans())
TYPES = st.one_of(
    st.just(pa.int64()),
    ITEMS.map(pa.list_),
    st.lists(INSIDE, min_size=1, max_size=2, unique_by=lambda field: field.name).map(pa.struct),
    INSIDE.map(lambda field: pa.map_(pa.int64(), pa.struct([field]))),
)
FIELDS = st.lists(
    st.builds(pa.field, st.sampled_from(NAMES), TYPES, nullable=st.booleans()),
    min_size=2,
    max_size=5,
    unique_by=lambda field: field.name,
)


def sample_of(kind: pa.DataType, value: int) -> Any:
    """A value of this type, which no other number gives."""
    if pa.types.is_struct(kind):
        return {field.name: value + 100 * place for place, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return [(value, sample_of(kind.item_type, value + 1))]
    return [value] * (1 + value % 3) if pa.types.is_list(kind) else value


@settings(max_examples=effort(100), deadline=None)
@given(fields=FIELDS, is_compiled=st.booleans(), file_format=st.sampled_from(["parquet", "parquet", "orc"]))
def test_columns_have_their_own_values_whatever_paths_are_alike(
    fields: list[pa.Field], is_compiled: bool, file_format: str
) -> None:
    values = [[sample_of(field.type, 1000 * place + row) for row in range(5)] for place, field in enumerate(fields)]
    table = pa.Table.from_arrays(
        [pa.array(*each) for each in zip(values, pa.schema(fields).types, strict=True)], schema=pa.schema(fields)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        tasks = write_parquet(path, table, 3) if file_format == "parquet" else write_orc(path, table)
        for names in (table.schema.names, table.schema.names[:1], table.schema.names[1::2]):
            reader = make_reader(make_spec(table.schema, columns=tuple(names), is_compiled=is_compiled))
            assert rows_of([reader.read(task) for task in tasks]) == table.select(names).to_pylist()
