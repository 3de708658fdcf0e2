"""`tdu bench`: every engine reads everything, and the advice follows from the figures."""

import pytest

from tests.cli.shell import tdu, tdu_json
from torch_dataloader_utils.cli.bench import recommend
from torch_dataloader_utils.cli.measure import time_bare_reader
from torch_dataloader_utils.cli.source import DataSource


def row(num_workers, batch_size, speed, of_limit=0.9):
    return {"num_workers": num_workers, "batch_size": batch_size, "rows_per_second": speed, "of_limit": of_limit}


@pytest.mark.processes
def test_every_setting_is_measured_beside_the_limit(table):
    report = tdu_json("bench", table, "--batch-sizes", "64,256", "--workers", "0,1", "--rounds", 1, "--seconds", 2)
    assert [(each["num_workers"], each["batch_size"]) for each in report["results"]] == [
        (0, 64),
        (0, 256),
        (1, 64),
        (1, 256),
    ]
    assert all(each["rows_per_second"] > 0 for each in report["results"])
    assert report["limit"]["of"] == "pyarrow row groups"
    assert [advice["batch_size"] for advice in report["recommendation"]] == [64, 256]


def test_the_limit_of_a_filter_reads_what_the_filter_needs(table):
    options = ["--filter", "score < 0.3", "--columns", "id", "--batch-sizes", 64, "--workers", 0, "--rounds", 1]
    report = tdu_json("bench", table, *options)
    assert report["limit"]["of"] == "row groups read, no batches"


def test_the_limit_delivers_the_rows_of_the_loader(table):
    source = DataSource(paths=(str(table),), columns=("id",), filter_text="id < 100")
    inventory = source.inventory()
    assert time_bare_reader(inventory, source, threads=1, most_seconds=60.0).rows == inventory.num_rows == 300


def test_a_table_and_a_recommendation_for_people(table):
    text = tdu(
        "bench", table, "--batch-sizes", 100, "--workers", 0, "--rounds", 1, "--columns", "id", "--shuffle"
    ).stdout
    assert "of limit" in text
    assert "Recommended for batch_size=100: threads" in text


def test_remote_files_and_other_formats_have_a_limit_too(tmp_path):
    (tmp_path / "data.csv").write_text("x\n" + "1\n" * 50)
    report = tdu_json("bench", tmp_path, "--format", "csv", "--batch-sizes", 10, "--workers", 0, "--rounds", 1)
    assert report["limit"]["of"] == "row groups read, no batches"


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([row(0, 8, 100.0), row(2, 8, 104.0)], [0]),
        ([row(0, 8, 100.0), row(2, 8, 120.0)], [2]),
        ([row(2, 8, 90.0), row(4, 8, 120.0)], [4]),
        ([row(0, 8, 10.0), row(0, 64, 90.0), row(1, 8, 30.0), row(1, 64, 80.0)], [1, 0]),
    ],
)
def test_threads_are_recommended_unless_processes_win_clearly(rows, chosen):
    assert [advice["num_workers"] for advice in recommend(rows)] == chosen


def test_costly_batches_are_said():
    (advice,) = recommend([row(0, 8, 100.0, of_limit=0.3)])
    assert "stack=" in advice["text"]
