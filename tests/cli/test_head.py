"""`tdu head`: what the trainer would get, batch by batch."""

import io
import json
import math
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.shell import one_line, tdu, tdu_json
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.cli.output import print_table


@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_those_of_a_loader(table, workers):
    options = ["--batch-size", 7, "--ranks", 2, "--rank", 1, "--workers", workers, "--shuffle", "--shuffle-rows", 90]
    report = tdu_json("head", table, *options, "--epoch", 4, "--batches", 5, "--rows", 100)
    loader, _ = StructuredDataset.create_dataloader(
        str(table),
        batch_size=7,
        num_ranks=2,
        rank=1,
        num_workers=workers,
        shuffle=True,
        shuffle_rows=90,
        output_format="dict",
    )
    loader.set_epoch(4)
    for batch, shown in zip(loader, report["batches"], strict=False):
        assert [row["id"] for row in shown["rows"]] == list(batch["id"])
    assert len(report["batches"]) == 5


def test_a_table_shows_values_as_they_are(tmp_path):
    (tmp_path / "data.csv").write_text("a[bold],b\n[red]x,\n" + "y" * 100 + ",2\n")
    text = tdu("head", tmp_path, "--format", "csv").stdout
    assert "a[bold]" in text
    assert "[red]x" in text
    assert "null" in text
    assert "y" * 59 + "…" in text


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_column_that_python_has_no_values_of_is_named(tmp_path, options):
    after_9999 = pa.array([253402300799000000], pa.timestamp("us", "Europe/Berlin"))
    pq.write_table(pa.table({"ends": after_9999, "row": [1]}), tmp_path / "a.parquet")
    assert "column 'ends' of type timestamp" in one_line(tdu("head", tmp_path, *options, code=1))
    assert tdu_json("head", tmp_path, "--columns", "row")["batches"][0]["rows"] == [{"row": 1}]


def test_more_batches_than_there_are_is_all_of_them(table):
    report = tdu_json("head", table, "--filter", "id < 5", "--batch-size", 10, "--batches", 9)
    assert [batch["num_rows"] for batch in report["batches"]] == [10, 5]


def test_every_column_of_a_wide_table_is_shown(tmp_path):
    pq.write_table(pa.table({f"column_{number}": [number] for number in range(100)}), tmp_path / "wide.parquet")
    header, _, values = tdu("head", tmp_path).stdout.splitlines()[1:4]
    assert header.split() == [f"column_{number}" for number in range(100)]
    assert values.split() == [str(number) for number in range(100)]


def test_a_narrow_terminal_folds_no_column_away(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")  # no bold headers
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    print_table([f"c{number}" for number in range(50)], [[str(number) for number in range(50)]])
    header, _, values = terminal.getvalue().splitlines()
    assert header.split() == [f"c{number}" for number in range(50)]
    assert values.split() == [str(number) for number in range(50)]


def test_the_json_of_any_number_is_json(tmp_path):
    numbers = pa.table({"x": [math.nan, math.inf, 1.5, None], "y": [[math.nan], [], None, [2.0]]})
    pq.write_table(numbers, tmp_path / "numbers.parquet")

    def refuse(constant):
        raise AssertionError(constant)

    document = json.loads(tdu("head", tmp_path, "--json").stdout, parse_constant=refuse)
    rows = document["batches"][0]["rows"]
    assert [row["x"] for row in rows] == ["nan", "inf", 1.5, None]
    assert [row["y"] for row in rows] == [["nan"], [], None, [2.0]]


def test_floats_are_shown_as_short_as_their_type_reads_them(tmp_path):
    values = pa.table(
        {"a": pa.array([3.3365107, None], pa.float32()), "b": pa.array([[0.1], []], pa.list_(pa.float32()))}
    )
    pq.write_table(values, tmp_path / "a.parquet")
    report = tdu_json("head", tmp_path)
    assert report["batches"][0]["rows"] == [{"a": 3.3365107, "b": [0.1]}, {"a": None, "b": []}]


@pytest.mark.parametrize("option", ["--batch-size", "--split-rows", "--ranks", "--lane-rows", "--lanes"])
def test_a_number_out_of_range_is_reported_under_the_name_of_its_option(table, option):
    assert f"'{option}'" in one_line(tdu("head", table, option, 0, code=2))
