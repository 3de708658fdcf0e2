"""Partition columns, text with awkward headers, decoding of prefixes, and other single cases."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import orc

from tests.formats.files import (
    deleting,
    make_spec,
    make_task,
    with_field_ids,
    write_csv,
    write_orc,
    write_parquet,
    write_stream,
)
from torch_dataloader_utils._arrow.batches import contiguous
from torch_dataloader_utils._core.inventory import UNKNOWN, FileFormat
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.errors import CorruptFileError, DataError, UnsupportedFeatureError
from torch_dataloader_utils.formats.task_source import TaskSource
from torch_dataloader_utils.tables.live_rows import group_deletes, rows_to_decode
from torch_dataloader_utils.tables.reader import make_reader

WITH_DAY = pa.schema([("row", pa.int64()), ("day", pa.date32()), ("kind", pa.dictionary(pa.int32(), pa.string()))])


def test_partition_columns_are_constants_and_can_be_filtered_on(tmp_path: Path) -> None:
    (task,) = write_parquet(tmp_path / "a.parquet", pa.table({"row": [1, 2, 3]}))
    task = replace(task, partition_values=(("day", None), ("kind", "x")), live_rows=UNKNOWN)
    options = {"partition_columns": ("day", "kind"), "columns": ("kind", "row", "day")}
    batch = make_reader(make_spec(WITH_DAY, **options)).read(task)
    assert batch.schema.equals(pa.schema([WITH_DAY.field(name) for name in ("kind", "row", "day")]))
    assert batch.to_pydict() == {"kind": ["x"] * 3, "row": [1, 2, 3], "day": [None] * 3}
    both = make_spec(WITH_DAY, **options, row_filter=(pc.field("day").is_null()) & (pc.field("row") > 1))
    assert make_reader(both).read(task).column("row").to_pylist() == [2, 3]
    none = make_reader(
        make_spec(WITH_DAY, partition_columns=("day", "kind"), columns=(), row_filter=pc.field("kind") != "x")
    )
    assert none.read(task).num_rows == none.count_rows(task) == 0
    alone = make_reader(make_spec(WITH_DAY, partition_columns=("day", "kind"), columns=("kind",)))
    assert alone.read(task).to_pydict() == {"kind": ["x"] * 3}


def test_a_prefix_is_decoded_no_further_than_needed(tmp_path: Path) -> None:
    schema = with_field_ids(pa.schema([("row", pa.int64())]))
    (task,) = write_parquet(tmp_path / "a.parquet", pa.table({"row": np.arange(1000)}, schema=schema))
    reader = make_reader(make_spec(schema))
    assert reader.read(task, GroupRows(0, 10)).num_rows == 10
    assert reader.read(task, GroupRows(0, 5000)).num_rows == 1000
    deleted = replace(task, extra=deleting(schema, range(5)), live_rows=995)
    assert reader.read(deleted, GroupRows(0, 10)).column("row").to_pylist() == list(range(5, 15))


@pytest.mark.parametrize("rows", [ALL_ROWS, GroupRows(0, 5), GroupRows(2, 5)])
def test_an_empty_row_group_of_a_tables_file_has_no_rows(tmp_path: Path, rows: GroupRows) -> None:
    schema = with_field_ids(pa.schema([("row", pa.int64()), ("word", pa.string())]))
    (task,) = write_parquet(tmp_path / "a.parquet", schema.empty_table())
    batch = make_reader(make_spec(schema)).read(replace(task, extra=deleting(schema, [])), rows)
    assert batch.to_pydict() == {"row": [], "word": []}


def test_csv_columns_go_by_the_header_of_their_own_file(tmp_path: Path) -> None:
    schema = pa.schema([("row", pa.int64()), ("word", pa.string())])
    text = b'\xef\xbb\xbf"word",other,row\r\n"a\r\nb",9,1\r\n'
    rest = b'"c,""d",9,2'
    path = tmp_path / "a.csv"
    path.write_bytes(text + rest)
    whole = make_task(path, FileFormat.CSV, 0, 2, byte_length=len(text + rest))
    start = text.index(b"\n") + 1
    first = make_task(path, FileFormat.CSV, 0, 1, byte_offset=start, byte_length=len(text) - start)
    second = make_task(path, FileFormat.CSV, 1, 1, byte_offset=len(text), byte_length=len(rest))
    reader = make_reader(make_spec(schema))
    assert reader.read(second).to_pylist() == [{"row": 2, "word": 'c,"d'}]
    assert reader.read(first).to_pylist() == [{"row": 1, "word": "a\r\nb"}]
    assert reader.read(whole).to_pylist() == [{"row": 1, "word": "a\r\nb"}, {"row": 2, "word": 'c,"d'}]
    assert make_reader(make_spec(schema, columns=())).read(second).num_rows == 1


def test_a_csv_header_may_be_longer_than_one_read(tmp_path: Path) -> None:
    names = [f"column_{i}_{'x' * 50}" for i in range(3000)]
    path = tmp_path / "a.csv"
    path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n" + ",".join("2" for _ in names))
    start = len(",".join(names)) + 1 + 2 * len(names)
    task = make_task(path, FileFormat.CSV, 1, 1, byte_offset=start, byte_length=2 * len(names) - 1)
    reader = make_reader(make_spec(pa.schema([(names[-1], pa.int64())])))
    assert reader.read(task).to_pydict() == {names[-1]: [2]}


def test_empty_files_of_text_have_no_rows(tmp_path: Path) -> None:
    schema = pa.schema([("row", pa.int64())])
    for name, content, file_format in (
        ("a.csv", b"", FileFormat.CSV),
        ("b.csv", b"row\n", FileFormat.CSV),
        ("a.jsonl", b"", FileFormat.JSON),
        ("b.jsonl", b"\n\n", FileFormat.JSON),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        for columns in (("row",), ()):
            batch = make_reader(make_spec(schema, columns=columns)).read(
                make_task(path, file_format, 0, 0, byte_length=len(content))
            )
            assert batch.num_rows == 0
            assert batch.schema.names == list(columns)


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2", "lz4"])
def test_compressed_text_is_one_block_under_the_budget(tmp_path: Path, ending: str) -> None:
    schema = pa.schema([("row", pa.int64())])
    for name, header, line, file_format in (
        ("csv", b"row\n", b"%d\n", FileFormat.CSV),
        ("jsonl", b"", b'{"row": %d}\n', FileFormat.JSON),
    ):
        path = tmp_path / f"a.{name}.{ending}"
        with pa.output_stream(path, compression={"gz": "gzip", "zst": "zstd"}.get(ending, ending)) as file:
            file.write(header + b"".join(line % i for i in range(10_000)))
        task = make_task(path, file_format, 0, 10_000, byte_length=path.stat().st_size)
        assert make_reader(make_spec(schema)).read(task).column("row").to_pylist() == list(range(10_000))
        with pytest.raises(UnsupportedFeatureError, match="limit is 40000"):
            make_reader(make_spec(schema, max_row_group_bytes=40_000)).read(task)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(DataError, match="row group 0"):
            make_reader(make_spec(schema)).read(
                make_task(path, file_format, 0, 10_000, byte_length=path.stat().st_size)
            )


def test_bytes_of_a_stream_that_are_no_record_batch_are_told_as_that(tmp_path: Path) -> None:
    table = pa.table({"row": range(4), "kind": pa.array(["a", "b", "c", "d"]).dictionary_encode()})
    for names in (["row"], ["kind"]):
        stored = table.select(names)
        first, second = write_stream(tmp_path / "a.arrows", stored, 2)
        end = {"byte_offset": second.byte_offset + second.byte_length, "byte_length": 8}
        reader = make_reader(make_spec(stored.schema))
        with pytest.raises(CorruptFileError, match="row group 1 does not exist: the stream has no record"):
            reader.read(replace(second, **end))
        with pytest.raises(CorruptFileError, match="row group 0 does not decode"):
            reader.read(replace(first, byte_offset=first.byte_offset + 8))


def test_every_stripe_of_an_orc_file_gives_its_own_rows(tmp_path: Path) -> None:
    rows = 100_000
    table = pa.table(
        {
            "row": np.arange(rows),
            "pair": pa.array([{"x": i, "y": [i]} for i in range(rows)]),
            "time": pa.array(np.arange(rows), pa.timestamp("us", "UTC")),
        }
    )
    tasks = write_orc(tmp_path / "a.orc", table)
    assert len(tasks) > 2
    for columns in (["time", "pair"], ["row"], []):
        batches = [make_reader(make_spec(table.schema, columns=tuple(columns))).read(task) for task in tasks]
        assert [batch.num_rows for batch in batches] == [task.physical_rows for task in tasks]
        if columns:
            assert pa.Table.from_batches(batches).combine_chunks().equals(table.select(columns).combine_chunks())


def test_orc_columns_that_look_like_struct_fields_are_columns(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([{"x": 1}]), "a.x": pa.array([3])})
    orc.write_table(table, tmp_path / "a.orc")
    task = make_task(tmp_path / "a.orc", FileFormat.ORC, 0, 1)
    assert make_reader(make_spec(table.schema, columns=("a",))).read(task).to_pydict() == {"a": [{"x": 1}]}
    assert make_reader(make_spec(table.schema, columns=("a.x",))).read(task).to_pydict() == {"a.x": [3]}


def test_pieces_become_one_contiguous_batch() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    assert contiguous([batch]) is batch
    assert contiguous([batch, batch.slice(1)]).to_pydict() == {"a": [1, 2, 2], "b": ["x", None, None]}
    assert contiguous([]).num_rows == 0
    assert contiguous([batch.select([]), batch.select([])]).num_rows == 4
    assert contiguous([batch.slice(0, 0), batch.slice(0, 0)]).schema == batch.schema


def test_the_deletes_of_a_row_group_count_from_its_first_row(tmp_path: Path) -> None:
    table = pa.table({"row": np.arange(64)})
    (task,) = write_parquet(tmp_path / "a.parquet", table)
    task = replace(task, first_row=64, extra=deleting(table.schema, [1, 70, 71, 128]))
    deleted = group_deletes(task)
    assert deleted is not None
    assert deleted.tolist() == [6, 7]
    assert group_deletes(replace(task, first_row=1000)) is None


@pytest.mark.parametrize(("live_rows", "rows"), [(0, 0), (1, 1), (2, 4), (3, 5), (9, 11)])
def test_prefixes_reach_past_deleted_rows(live_rows: int, rows: int) -> None:
    assert rows_to_decode(live_rows, np.array([1, 2])) == rows


def test_csv_of_many_types_matches_its_schema(tmp_path: Path) -> None:
    table = pa.table(
        {
            "flag": [True, False, None],
            "amount": pa.array([1.5, None, -2.0], pa.float32()),
            "day": pa.array([0, None, 1], pa.date32()),
            "kind": pa.array(["a", "", "a"]),
        }
    )
    tasks = write_csv(tmp_path / "a.csv", table, 2)
    reader = make_reader(make_spec(table.schema))
    assert pa.Table.from_batches([reader.read(task) for task in tasks]).to_pylist() == table.to_pylist()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"tokens": [[1, 2], [3]]}, {"input_ids": [[1, 2], [3]]}),
        ({"a": [[1]], "b": [[2]]}, {"b": [[2]], "a": [[1]]}),
        ({"s": [{"x": 1}]}, {"r": [{"x": 1}]}),
        ({"s": [{"x": 1}]}, {"x": [1]}),
        ({"x": [1]}, {"y": [1]}),
    ],
)
def test_files_of_like_leaves_and_other_columns_are_not_taken_for_each_other(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    # Written without the Arrow schema, only the groups of the Parquet schema distinguish them.
    for columns in (first, second, first):
        table = pa.table(columns)
        (task,) = write_parquet(tmp_path / "a.parquet", table, store_schema=False)
        assert make_reader(make_spec(table.schema)).read(task).to_pydict() == columns


def test_files_are_fetched_side_by_side(tmp_path: Path) -> None:
    (task,) = write_parquet(tmp_path / "a.parquet", pa.table({"x": [1, 2]}))
    both = threading.Barrier(2, timeout=60)

    class Meeting(LocalStore):
        def ranges(self, *arguments: Any) -> Any:
            both.wait()
            return super().ranges(*arguments)

    def fetch(_: int) -> bytes:
        source = TaskSource(task=task, store=Meeting(), page_checksums=True, max_row_group_bytes=1 << 20)
        return bytes(source.span((0, 4)))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fetch, range(2))) == [b"PAR1"] * 2
