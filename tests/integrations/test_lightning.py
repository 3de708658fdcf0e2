"""Lightning on two processes: rows, epochs, checkpoints in the middle and at the end of an epoch."""

from typing import Any

import pytest

from tests.integrations.jobs import NUM_RANKS, NUM_ROWS, STEPS, check_epochs, run_job, write_rows

pytest.importorskip("lightning", reason="lightning is not installed")

SANITY_STEPS = 2


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("job")
    return run_job("lightning_job", write_rows(folder / "table"), folder / "reports")


def test_every_epoch_has_every_row_once_in_another_order(reports: list[dict[str, Any]]) -> None:
    check_epochs([report["whole"]["train"] for report in reports], num_epochs=2)
    whole = reports[0]["whole"]["train"]
    assert whole[:STEPS] != whole[STEPS:]


def test_validation_and_prediction_see_every_row_once(reports: list[dict[str, Any]]) -> None:
    check_epochs([report["whole"]["validate"][SANITY_STEPS:] for report in reports], num_epochs=2)
    check_epochs([report["whole"]["predict"] for report in reports])


@pytest.mark.parametrize(("run", "done"), [("from 3", 3), (f"from {STEPS}", STEPS), ("from end", STEPS)])
def test_a_checkpoint_goes_on_with_the_next_batch(reports: list[dict[str, Any]], run: str, done: int) -> None:
    for report in reports:
        assert report[run]["train"] == report["whole"]["train"][done:]
        assert report[run]["steps"] == report["whole"]["steps"] == 2 * STEPS
    rows = [row for report in reports for step in report["whole"]["train"][:done] for row in step]
    rows += [row for report in reports for step in report[run]["train"] for row in step]
    assert sorted(rows) == sorted(2 * list(range(NUM_ROWS)))
    assert len(reports) == NUM_RANKS
