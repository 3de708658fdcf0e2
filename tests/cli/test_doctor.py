"""`tdu doctor`: what it says of a table, and that the call it prints reads the table."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.cli.shell import by_catalog, one_line, tdu, tdu_json
from torch_dataloader_utils import _engine


def pasted(report):
    """The rows that the printed program reads in two epochs; counted in its loop."""
    program = report["call"].replace("        ...", "        rows.append(batch.num_rows)")
    assert "rows.append" in program
    rows = []
    exec(program, {"rows": rows})
    return sum(rows)


def kinds(report):
    return {found["kind"]: found["message"] for found in report["findings"]}


def messy(num_rows):
    """Rows with all that people have: nulls, text, decimals, structs, mixed numbers."""
    count = np.arange(num_rows)
    return pa.table(
        {
            "id": pa.array([None if n % 7 == 0 else n for n in range(num_rows)], pa.int64()),
            "x": count.astype(np.float32),
            "y": count / 3,
            "flag": pa.array([None] * num_rows, pa.bool_()),
            "price": pa.array([Decimal("1.25")] * num_rows, pa.decimal128(10, 2)),
            "city": ["a"] * num_rows,
            "tags": pa.array([None if n % 3 == 0 else [n] for n in range(num_rows)], pa.list_(pa.int32())),
            "when": pa.array([None if n == 5 else n for n in range(num_rows)], pa.timestamp("us")),
        }
    )


@pytest.mark.filterwarnings("ignore:.*chunk")
def test_a_messy_table_in_hive_directories(tmp_path):
    for code, rows in (("01001", 900), ("01003", 60), ("02001", 40)):
        folder = tmp_path / "t" / f"code={code}"
        folder.mkdir(parents=True)
        pq.write_table(messy(rows), folder / "part.parquet", row_group_size=100)
    report = tdu_json("doctor", tmp_path / "t")
    assert report["facts"]["rows"].startswith("1,000, in 11 row groups")
    assert report["facts"]["partitions"] == "code (3 values)"
    decoder = "compiled code reads 7 of 8 columns; pyarrow reads city" if _engine.IS_BUILT else "is not built"
    assert decoder in report["facts"]["decoder"]
    assert "11 chunks" in report["facts"]["mixing"]
    found = kinds(report)
    assert "city (string)" in found["objects"]
    assert "price (decimal128(10, 2))" in found["decimals"]
    assert "float" in found["mixed_types"]
    assert "nulls of id, flag, when." in found["nulls"]
    assert "code=01001 becomes the number 1001" in found["leading_zeros"]
    assert "code=1001 has 90% of the rows, of 3 values" in found["skew"]
    assert pasted(report) == 2000
    text = tdu("doctor", tmp_path / "t").stdout
    assert report["call"].strip() in text
    assert all(message in text for message in found.values())


@pytest.mark.filterwarnings("ignore:.*chunk")
def test_the_call_reads_every_kind_of_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"x": [1, 2, None], "s": ["a", None, "b"]})
    write_deltalake("delta", rows)
    write_deltalake("delta", rows, mode="append")
    (tmp_path / "grown").mkdir()
    pq.write_table(pa.table({"a": [1]}), "grown/1.parquet")
    pq.write_table(pa.table({"a": [1], "b": [2]}), "grown/2.parquet")
    (tmp_path / "rows.csv").write_text("x,y\n1,a\n2,b\n")
    (tmp_path / "gaps.csv").write_text("x,y\n1,a\n,b\n")
    (tmp_path / "gaps.jsonl").write_text('{"x": {"n": 1}, "at": null}\n{"x": null, "at": "2024-01-01T00:00:00Z"}\n')
    pa.feather.write_feather(rows, "rows.arrow")
    for path, kind, count, seen in [
        ("delta", "a Delta table", 6, "nulls"),
        ("grown", "parquet files", 2, "missing"),
        ("rows.csv", "csv files", 2, "objects"),
        ("gaps.csv", "csv files", 2, "uncounted_nulls"),
        ("gaps.jsonl", "json files", 2, "uncounted_nulls"),
        ("rows.arrow", "arrow files", 3, "uncounted_nulls"),
    ]:
        report = tdu_json("doctor", path)
        assert report["facts"]["table"].endswith(kind)
        assert seen in kinds(report)
        assert pasted(report) == 2 * count


@pytest.mark.filterwarnings("ignore:.*chunk")
def test_an_iceberg_table_of_a_catalog(lake):
    properties, metadata = lake
    report = tdu_json("doctor", "db.events", *by_catalog(properties))
    assert report["facts"]["table"].endswith("an Iceberg table")
    assert "open_loader('db.events', catalog_config=catalog_config, " in report["call"]
    assert "sqlite" not in str(report)
    assert pasted(tdu_json("doctor", metadata.rpartition("/metadata/")[0])) == 580


@pytest.mark.filterwarnings("ignore:.*chunk")
def test_an_option_of_another_kind_of_table_is_refused_as_its_loader_would(tmp_path):
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "a.parquet")
    assert pasted(tdu_json("doctor", tmp_path, "--format", "parquet")) == 6
    message = one_line(tdu("doctor", tmp_path, "--format", "parquet", "--catalog", "prod", code=2))
    assert "--catalog is an option of IcebergDataset" in message


def test_no_row_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(100))}), path)
    broken = bytearray(path.read_bytes())
    footer = int.from_bytes(broken[-8:-4], "little") + 8
    broken[4:-footer] = bytes(len(broken) - footer - 4)
    path.write_bytes(broken)
    assert tdu_json("doctor", path)["facts"]["rows"].startswith("100, in 1 row group")


@pytest.mark.filterwarnings("ignore:.*chunk")
def test_layouts_that_cost_time_are_named(tmp_path):
    pq.write_table(pa.table({"x": list(range(1000))}), tmp_path / "a.parquet", row_group_size=10)
    report = tdu_json("doctor", tmp_path / "a.parquet")
    assert list(kinds(report)) == ["tiny_row_groups"]
    assert pasted(report) == 2000


def test_a_file_that_is_no_data_beside_csv_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "README.txt").write_text("An export.\n")
    message = one_line(tdu("doctor", tmp_path, code=1))
    assert "README.txt is not data, choose the files by a pattern" in message
    assert "inventory=scan_files" not in message


def test_nulls_inside_structs_and_lists_are_in_the_call(tmp_path):
    rows = [{"user": {"age": n if n % 3 else None}, "tags": [n] if n % 2 else None} for n in range(64)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    report = tdu_json("doctor", tmp_path / "a.parquet")
    assert "the nulls of user.age." in kinds(report)["nulls"]
    assert "the nulls of tags." in kinds(report)["lists"]
    assert pasted(report) == 128


def test_a_wrong_path_is_one_line(tmp_path):
    assert "does not exist" in one_line(tdu("doctor", tmp_path / "nothing", code=2))
    assert "--catalog-option type=rest --catalog-option uri=http://host too" in one_line(
        tdu("doctor", "db.events", code=2)
    )
    (tmp_path / "empty").mkdir()
    assert "is empty" in one_line(tdu("doctor", tmp_path / "empty", code=2))


def test_a_first_line_that_may_be_a_row_is_said(tmp_path):
    (tmp_path / "t.csv").write_text("1,Paris,2024-01-05,2.5,true\n2,Rome,2024-01-06,3.5,false\n")
    assert "'1', '2024-01-05', '2.5', 'true' may be values" in kinds(tdu_json("doctor", tmp_path))["header"]
    (tmp_path / "t.csv").write_text("id,city,2024\n2,Rome,1\n")
    assert "'2024' may be values" in kinds(tdu_json("doctor", tmp_path))["header"]
    (tmp_path / "t.csv").write_text("id,city,e1,n.2,truth\n2,Rome,1,2,3\n")
    assert "header" not in kinds(tdu_json("doctor", tmp_path))
    (tmp_path / "t.csv").write_text("id;city\n2;Rome\n")
    assert "pass --format csv-semicolon. " in one_line(tdu("doctor", tmp_path, code=2))
    report = tdu_json("doctor", tmp_path, "--format", "csv-semicolon")
    assert "csv-semicolon files" in report["facts"]["table"]
    assert pasted(report) == 2
