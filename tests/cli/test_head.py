"""`tdu head`: what the trainer would get, batch by batch."""

import pytest

from tests.cli.shell import tdu, tdu_json
from torch_dataloader_utils import StructuredDataset


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


def test_more_batches_than_there_are_is_all_of_them(table):
    report = tdu_json("head", table, "--filter", "id < 5", "--batch-size", 10, "--batches", 9)
    assert [batch["num_rows"] for batch in report["batches"]] == [10, 5]
