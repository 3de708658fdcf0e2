"""`tdu bench`: every setting reads everything beside the bare reader, and the advice follows from the figures."""

import pytest

from tests.cli.shell import tdu, tdu_json
from torch_dataloader_utils.cli.bench import recommend


def row(num_workers, batch_size, speed):
    return {"num_workers": num_workers, "batch_size": batch_size, "rows_per_second": speed, "diagnosis": None}


@pytest.mark.processes
def test_every_setting_is_measured_beside_the_limit(table):
    report = tdu_json("bench", table, "--batch-sizes", "64,256", "--workers", "0,1", "--rounds", 1, "--seconds", 2)
    settings = [(each["num_workers"], each["batch_size"]) for each in report["results"]]
    assert settings == [(0, 64), (0, 256), (1, 64), (1, 256)]
    assert all(each["rows_per_second"] > 0 for each in report["results"])
    assert all(sum(each["column_chunks"].values()) == 27 for each in report["results"])
    assert report["limit"]["rows_per_second"] > 0
    assert [advice["batch_size"] for advice in report["recommendation"]] == [64, 256]


def test_a_table_and_a_recommendation_for_people(table):
    options = ["--batch-sizes", 100, "--workers", 0, "--rounds", 1, "--columns", "id", "--filter", "id < 100"]
    text = tdu("bench", table, *options, "--shuffle").stdout
    assert "of limit" in text
    assert "Recommended for batch_size=100: threads" in text
    assert "The trainer waits" in text


def test_other_formats_have_a_limit_too(tmp_path):
    (tmp_path / "data.csv").write_text("x\n" + "1\n" * 50)
    report = tdu_json("bench", tmp_path, "--format", "csv", "--batch-sizes", 10, "--workers", 0, "--rounds", 1)
    assert report["limit"]["rows_per_second"] > 0


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
