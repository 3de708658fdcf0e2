"""Any row by its number: the same rows as a plain list of them, whatever the files, the format and the cache."""

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.stream.tables import TABLE, TOTAL, files, payload, write_table
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import Decoding, RowDataset, TensorBatch, scan_files, scan_iceberg
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, FileChangedError

FORMATS = ["torch", "numpy", "dict", "arrow"]
NO_MULTIPLE_OF_3 = pc.field("row") != pc.multiply(pc.divide(pc.field("row"), 3), 3)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, TABLE)
    return str(folder)


def number_of(row):
    """The number of a row in any format, after checking that its columns belong together."""
    if isinstance(row, pa.RecordBatch):
        assert row.num_rows == 1
        row = row.to_pylist()[0]
    assert set(row) == {"row", "file", "payload", "name"}
    number = int(row["row"])
    assert int(row["payload"]) == int(payload(number))
    assert row["name"] == f"row-{number}"
    return number


@pytest.mark.slow
@given(
    files=files,
    cache_bytes=st.sampled_from([0, 1000, "256MiB"]),
    filtered=st.booleans(),
    output_format=st.sampled_from(FORMATS),
    decode_threads=st.sampled_from([1, 3]),
    data=st.data(),
)
@settings(max_examples=effort(60), deadline=None)
def test_rows_are_those_of_a_list(files, cache_bytes, filtered, output_format, decode_threads, data):
    assume(sum(map(sum, files)) > 0)
    with TemporaryDirectory() as folder:
        total = write_table(Path(folder), files)
        expected = [row for row in range(total) if not filtered or row % 3 != 0]
        rows = RowDataset(
            folder,
            filters=NO_MULTIPLE_OF_3 if filtered else None,
            cache_bytes=cache_bytes,
            output_format=output_format,
            decoding=Decoding(threads=decode_threads),
        )
        assert len(rows) == len(expected)
        if not expected:
            return
        index = st.integers(-len(expected), len(expected) - 1)
        for indices in data.draw(st.lists(st.lists(index, max_size=20), max_size=5)):
            wanted = [expected[i] for i in indices]
            assert [number_of(row) for row in rows.__getitems__(indices)] == wanted
            assert [number_of(rows[i]) for i in indices[:3]] == wanted[:3]
            batch = rows.take(indices)
            column = batch.column("row").to_pylist() if output_format == "arrow" else list(map(int, batch["row"]))
            assert column == wanted
        assert [number_of(row) for row in rows] == expected


def test_indices_are_those_of_a_list(table):
    rows = RowDataset(table, columns=["row"], output_format="dict")
    assert rows[-1] == {"row": TOTAL - 1} == rows[np.int64(TOTAL - 1)] == rows[torch.tensor(TOTAL - 1)]
    for index in (TOTAL, -TOTAL - 1, 2**40, 2**70, -(2**70)):
        with pytest.raises(IndexError, match=rf"^Row {index} .* of {TOTAL} rows: pass one in \[-{TOTAL}, {TOTAL}\)"):
            rows[index]
        with pytest.raises(IndexError):
            rows.__getitems__([0, index])
    for index in (1.0, "1", slice(2), None):
        with pytest.raises(TypeError):
            rows[index]


def test_nothing_is_asked_for(table):
    rows = RowDataset(table)
    assert rows.__getitems__([]) == []
    assert isinstance(rows.take([]), TensorBatch)
    assert rows.take([])["row"].shape == (0,)
    assert set(RowDataset(table, columns=(name for name in ["row"])).take([])) == {"row"}
    assert rows.cache_info().misses == 0


@pytest.mark.parametrize("indices", [3, "x", [1.5], [None], None])
def test_indices_that_are_no_whole_numbers_are_refused(table, indices):
    with pytest.raises(ConfigTypeError, match="pass whole numbers"):
        RowDataset(table).take(indices)


def test_a_filter_that_keeps_nothing_gives_an_empty_data_set(table):
    rows = RowDataset(table, filters=pc.field("row") > 1000)
    assert len(rows) == 0
    assert list(rows) == []
    with pytest.raises(IndexError):
        rows[0]


def test_a_row_of_every_kind_of_column(tmp_path):
    columns = {
        "list": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
        "fixed": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
        "flag": pa.array([True, None, False]),
        "name": ["a", "b", "c"],
        "a": pa.array([1, 2, 3], pa.int64()),
        "b": pa.array([4, 5, 6], pa.int64()),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    rows = RowDataset(tmp_path, nulls={"flag": "mask"}, stack={"ab": ["a", "b"]})
    first, second = rows.__getitems__([0, 1])
    assert first["list"].tolist() == [1, 2]
    assert second["list"].tolist() == []
    assert first["fixed"].tolist() == [1.0, 2.0]
    assert first["ab"].tolist() == [1, 4]
    assert (bool(second["flag_mask"]), bool(first["flag"]), second["name"]) == (False, True, "b")
    assert rows[0]["list"].dtype == torch.int32
    plain = RowDataset(tmp_path, output_format="dict")
    assert plain[1] == {"list": [], "fixed": [3.0, 4.0], "flag": None, "name": "b", "a": 2, "b": 5}


def test_partition_columns_and_projection(tmp_path):
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"x": [year * 10, year * 10 + 1]}), tmp_path / f"year={year}" / "part.parquet")
    rows = RowDataset(tmp_path, partitioning="hive", columns=["year", "x"], output_format="dict")
    assert list(rows) == [{"year": y, "x": y * 10 + i} for y in (2023, 2024) for i in (0, 1)]
    only = RowDataset(tmp_path, partitioning="hive", filters=pc.field("year") == 2024, output_format="dict")
    assert [row["x"] for row in only] == [20240, 20241]


def test_rows_without_columns_are_still_counted(table):
    assert RowDataset(table, columns=[])[5] == {}
    assert len(RowDataset(table, columns=[]).__getitems__([1, 2, 2])) == 3


def test_deletes_of_a_table_are_applied(tmp_path):
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"))
    path = table.append([{"id": number} for number in range(40)], rows_per_group=10)
    table.delete_positions([(path, row) for row in [*range(10, 20), 35]])
    rows = RowDataset(table.metadata, inventory=scan_iceberg(table.metadata), output_format="dict", length_column="id")
    kept = [*range(10), *range(20, 35), *range(36, 40)]
    assert [row["id"] for row in rows] == kept
    assert [row["id"] for row in rows.__getitems__([-1, 10, 0])] == [39, 20, 0]
    assert rows.lengths.tolist() == kept


@pytest.mark.parametrize("file_format", ["orc", "csv", "json", "arrow"])
def test_other_formats(tmp_path, file_format):
    table = pa.table({"x": list(range(30)), "s": [f"s{i}" for i in range(30)]})
    path = tmp_path / f"rows.{file_format}"
    match file_format:
        case "orc":
            pytest.importorskip("pyarrow.orc").write_table(table, path)
        case "csv":
            path.write_text("x,s\n" + "".join(f"{i},s{i}\n" for i in range(30)))
        case "json":
            path.write_text("".join(f'{{"x": {i}, "s": "s{i}"}}\n' for i in range(30)))
        case "arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=7)
    rows = RowDataset(path, file_format, output_format="dict", length_column="s")
    assert [rows[i] for i in (29, -30, 7)] == [{"x": i, "s": f"s{i}"} for i in (29, 0, 7)]
    assert rows.sort_key(3) == 2


def test_an_inventory_saves_the_scan(table):
    inventory = scan_files(table)
    assert number_of(RowDataset("", inventory=inventory)[77]) == 77


class TestLengths:
    @pytest.fixture
    def folder(self, tmp_path):
        columns = {
            "tokens": pa.array([[1] * (i % 5) if i % 7 else None for i in range(50)], pa.list_(pa.int32())),
            "text": ["é" * (i % 4) for i in range(50)],
            "length": pa.array([None if i == 3 else i * i for i in range(50)], pa.int64()),
            "score": pa.array([i / 2 for i in range(50)], pa.float32()),
            "flag": [True] * 50,
        }
        pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=8)
        return tmp_path

    @pytest.mark.parametrize(
        ("column", "expected", "dtype"),
        [
            ("tokens", [i % 5 if i % 7 else 0 for i in range(50)], np.int32),
            ("text", [2 * (i % 4) for i in range(50)], np.int32),
            ("length", [0 if i == 3 else i * i for i in range(50)], np.int32),
            ("score", [i / 2 for i in range(50)], np.float32),
        ],
    )
    def test_of_lists_text_and_numbers(self, folder, column, expected, dtype):
        rows = RowDataset(folder, columns=["score"], length_column=column)
        assert rows.lengths.tolist() == expected
        assert rows.lengths.dtype == dtype
        assert [rows.sort_key(i) for i in range(-1, 50)] == [expected[-1], *expected]
        assert not rows.lengths.flags.writeable
        assert rows.cache_info().misses == 0

    def test_account_for_the_filter(self, folder):
        rows = RowDataset(folder, length_column="length", filters=pc.field("score") >= 20.0)
        assert rows.lengths.tolist() == [i * i for i in range(40, 50)]

    def test_wide_numbers_stay_wide(self, tmp_path):
        pq.write_table(pa.table({"n": [1, 2**40]}), tmp_path / "rows.parquet")
        assert RowDataset(tmp_path, length_column="n").sort_key(1) == 2**40

    def test_are_read_once_and_travel_with_the_data_set(self, folder):
        rows = RowDataset(folder, length_column="length")
        before = rows.lengths
        (folder / "rows.parquet").unlink()
        assert rows.lengths is before
        assert pickle.loads(pickle.dumps(rows)).sort_key(7) == 49

    def test_need_a_column_that_has_one(self, folder):
        with pytest.raises(ConfigError, match="length_column="):
            RowDataset(folder).sort_key(0)
        with pytest.raises(ConfigError, match="'flag' is bool"):
            RowDataset(folder, length_column="flag")
        with pytest.raises(
            ConfigError, match=r"no such column, or several of that name\. Name a column .*: tokens, text"
        ):
            RowDataset(folder, length_column="nowhere")
        with pytest.raises(IndexError):
            RowDataset(folder, length_column="score").sort_key(50)


def test_a_changed_file_is_an_error_every_time(tmp_path):
    write_table(tmp_path, [[20]])
    rows = RowDataset(tmp_path)
    write_table(tmp_path, [[20, 5]])
    for _ in range(2):
        with pytest.raises(FileChangedError):
            rows[3]


def test_wrong_arguments_are_told_at_once(table):
    with pytest.raises(ConfigTypeError, match="expression"):
        RowDataset(table, filters=[("row", ">", 3)])
    with pytest.raises(ConfigError, match="nowhere"):
        RowDataset(table, columns=["nowhere"])
    with pytest.raises(ConfigError, match="output_format"):
        RowDataset(table, output_format="pandas")
