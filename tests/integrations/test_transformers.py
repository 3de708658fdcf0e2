"""The Trainer of Transformers on two processes: rows, epochs, resume without replay, evaluation of unequal batches."""

from typing import Any

import pytest

from tests.integrations.jobs import NUM_ROWS, STEPS, check_epochs, run_job, write_rows

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("job")
    return run_job("transformers_job", write_rows(folder / "table"), folder / "reports")


def test_every_epoch_has_every_row_once_in_another_order(reports: list[dict[str, Any]]) -> None:
    check_epochs([report["whole"]["train"] for report in reports], num_epochs=2)
    whole = reports[0]["whole"]["train"]
    assert whole[:STEPS] != whole[STEPS:]


@pytest.mark.parametrize("done", [3, STEPS])
def test_a_checkpoint_goes_on_with_the_next_batch(reports: list[dict[str, Any]], done: int) -> None:
    for report in reports:
        assert report[f"from {done}"]["train"] == report["whole"]["train"][done:]
        assert report[f"from {done}"]["steps"] == report["whole"]["steps"] == 2 * STEPS


def test_accumulation_that_does_not_divide_the_epoch_loses_no_row(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["three"]["train"] == report["whole"]["train"]
        assert report["three"]["steps"] == 2 * 3
        assert report["three from 2"]["train"] == report["three"]["train"][2 * 3 :]


def test_predictions_are_gathered_of_every_row_once(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert sorted(report["whole"]["predicted"]) == list(range(NUM_ROWS))
