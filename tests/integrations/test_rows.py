"""RowDataset and token budgets on two processes: samplers of PyTorch and of Lightning, lengths that ranks share."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.jobs import FILE_ROWS, NUM_RANKS, NUM_ROWS, STEPS, Steps, check_epochs, run_job, write_rows

pytestmark = pytest.mark.full

NUM_EPOCHS = 2


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("job") / "table")


@pytest.fixture(scope="module")
def reports(table: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_job("rows_job", table, tmp_path_factory.mktemp("reports"))


def check_sampled(ranks: list[Steps]) -> None:
    """All rows in every epoch, in other orders; the sampler repeats as many as make both ranks equal."""
    orders = []
    for epoch in range(NUM_EPOCHS):
        steps = [part[epoch * STEPS : (epoch + 1) * STEPS] for part in ranks]
        counts = Counter(row for part in steps for step in part for row in step)
        assert set(counts) == set(range(NUM_ROWS))
        assert sum(counts.values()) == -(-NUM_ROWS // NUM_RANKS) * NUM_RANKS
        orders.append(steps)
    assert orders[0] != orders[1]
    assert {len(part) for part in ranks} == {NUM_EPOCHS * STEPS}


@pytest.mark.parametrize("way", ["one by one", "together"])
def test_distributed_sampler_covers_all_rows_in_every_epoch(reports: list[dict[str, Any]], way: str) -> None:
    check_sampled([report["sampled"][way] for report in reports])


def test_both_ways_give_the_same_rows(reports: list[dict[str, Any]]) -> None:
    assert all(report["sampled"]["one by one"] == report["sampled"]["together"] for report in reports)


def test_ranks_share_the_reading_of_lengths_and_plan_alike(reports: list[dict[str, Any]]) -> None:
    read = Counter(group for report in reports for group in report["tokens"]["read"])
    assert set(read.values()) == {1}
    assert len(read) == sum(-(-rows // 10) for rows in FILE_ROWS)
    assert abs(len(reports[0]["tokens"]["read"]) - len(reports[1]["tokens"]["read"])) <= 1
    check_epochs([report["tokens"]["steps"] for report in reports])
    for report in reports:
        assert len(report["tokens"]["steps"]) == report["tokens"]["announced"]
        assert all(max(step) * len(step) <= 300 for step in report["tokens"]["steps"])


def test_a_row_that_does_not_fit_is_refused_on_every_rank(reports: list[dict[str, Any]]) -> None:
    (refused,) = {report["tokens"]["refused"] for report in reports}
    assert "live row 1 of" in refused
    assert "part-0.parquet row group 5, with 51 tokens of 'row'" in refused


@pytest.fixture(scope="module")
def fitted(table: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    pytest.importorskip("lightning", reason="lightning is not installed")
    return run_job("lightning_rows_job", table, tmp_path_factory.mktemp("fitted"))


@pytest.mark.parametrize("way", ["threads", "processes"])
def test_lightning_shards_and_shuffles_single_rows(fitted: list[dict[str, Any]], way: str) -> None:
    check_sampled([report[way] for report in fitted])


def test_lightning_takes_every_batch_of_a_token_budget(fitted: list[dict[str, Any]]) -> None:
    """It takes the length of the first epoch for that of all."""
    check_epochs([report["tokens"] for report in fitted], num_epochs=NUM_EPOCHS)
    assert all(max(step) * len(step) <= 400 for report in fitted for step in report["tokens"])
