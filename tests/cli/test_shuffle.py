"""`tdu shuffle`: the function from the shell, with the data options of other commands."""

import pyarrow.parquet as pq
import pytest

from tests.cli.shell import by_catalog, one_line, tdu, tdu_json


def test_rows_are_shuffled_and_counted(table, tmp_path):
    shown = tdu("shuffle", table, tmp_path / "out", "--seed", 3).stdout
    assert "1,500, the same in source and target" in shown
    rows = pq.read_table(tmp_path / "out")["id"].to_pylist()
    ordered = pq.read_table(table)["id"].to_pylist()
    assert rows != ordered
    assert sorted(rows) == sorted(ordered)
    report = tdu_json("shuffle", table, tmp_path / "out", "--seed", 3)
    assert (report["num_rows"], report["num_files"], report["reused_jobs"]) == (1500, 1, 2)
    assert list(report["checksums"]) == ["id", "score", "label"]
    assert "not the result of this shuffle" in one_line(tdu("shuffle", table, tmp_path / "out", code=2))


def test_data_options_choose_the_rows(table, lake, tmp_path):
    tdu("shuffle", table, tmp_path / "some", "--columns", "label", "--filter", "id < 300")
    assert pq.read_table(tmp_path / "some").to_pydict().keys() == {"label"}
    assert pq.read_metadata(tmp_path / "some" / "part-00000.parquet").num_rows == 900
    properties, _ = lake
    assert tdu_json("shuffle", "db.events", tmp_path / "lake", *by_catalog(properties))["num_rows"] == 290
    assert "Nothing to read" in one_line(tdu("shuffle", table, code=2))
    assert "no number of bytes" in one_line(tdu("shuffle", table, tmp_path / "a", "--memory", "much", code=2))


@pytest.mark.full
def test_workers_write_the_same_files(table, tmp_path):
    sizes = ["--file-bytes", "8KB", "--row-group-bytes", "2KB"]
    one = tdu_json("shuffle", table, tmp_path / "one", *sizes)
    two = tdu_json("shuffle", table, tmp_path / "two", "--workers", 2, "--memory", "20KB", *sizes)
    assert one["num_files"] > 2
    assert {**one, "path": ""} == {**two, "path": ""}
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
