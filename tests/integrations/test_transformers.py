"""The Trainer of Transformers on two processes: rows, epochs, resume without replay, evaluation of unequal batches."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.integrations.jobs import BATCH_ROWS, NUM_ROWS, STEPS, check_epochs, run_job, write_rows
from torch_dataloader_utils import CheckpointMismatchError, StructuredDataset
from torch_dataloader_utils.errors import ConfigError

pytestmark = pytest.mark.full

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


def resume(
    table: Path,
    state: dict[str, Any],
    *,
    batch_size: int = BATCH_ROWS,
    ends: dict[str, int] | None = None,
    **arguments: Any,
) -> tuple[Any, Any]:
    """A callback and its loader, after on_train_begin of a run that a checkpoint of `state` was given to."""
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from torch_dataloader_utils.integrations.transformers import LoaderStateCallback

    callback, loader = LoaderStateCallback(), make_loader(table, batch_size)
    saved = {"LoaderStateCallback": {"args": {}, "attributes": {"loader": state}}}
    given = TrainingArguments(output_dir=str(table), use_cpu=True, report_to=[], **arguments)
    trainer_state = TrainerState(global_step=3, stateful_callbacks=saved, **(ends or {}))
    callback.on_train_begin(given, trainer_state, TrainerControl(), train_dataloader=loader)
    return callback, loader


def make_loader(table: Path, batch_size: int = BATCH_ROWS) -> Any:
    return StructuredDataset.create_dataloader(table, batch_size=batch_size, num_workers=0)[0]


def test_a_trainer_in_another_epoch_than_the_loader_is_an_error(tmp_path: Path) -> None:
    loader = make_loader(write_rows(tmp_path / "table"))
    next(iter(loader))
    callback, resumed = resume(tmp_path / "table", loader.state_dict(), ignore_data_skip=True)
    assert resumed.state_dict() == loader.state_dict()
    resumed.set_epoch(1)
    with pytest.raises(CheckpointMismatchError, match="epoch 0 of the loader"):
        callback.on_step_begin(None, SimpleNamespace(global_step=3), None)


def test_a_trainer_that_would_replay_is_an_error(tmp_path: Path) -> None:
    state = make_loader(write_rows(tmp_path / "table")).state_dict()
    with pytest.raises(ConfigError, match="ignore_data_skip=True"):
        resume(tmp_path / "table", state)


def test_a_checkpoint_that_only_one_rank_could_go_on_from_warns(tmp_path: Path) -> None:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from torch_dataloader_utils.integrations.transformers import LoaderStateCallback

    table = write_rows(tmp_path / "table")
    callback = LoaderStateCallback()
    loader = StructuredDataset.create_dataloader(
        table, filters=pc.field("row") != 5, count_rows=False, batch_size=BATCH_ROWS, num_ranks=2, num_workers=0
    )[0]
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    callback.on_train_begin(arguments, TrainerState(), TrainerControl(), train_dataloader=loader)
    next(iter(loader))
    with pytest.warns(UserWarning, match="position of rank 0 of 2"):
        callback.state()


def test_a_trainer_that_ends_within_an_epoch_is_told_where_the_epoch_ends(tmp_path: Path) -> None:
    """It counts the steps of an epoch now for all epochs, and the first three were of 8 rows: 101 = 3 * 8 + 77."""
    loader = make_loader(write_rows(tmp_path / "table"))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    for batch_size, now, rest in ((4, 26, 20), (16, 7, 5)):
        ends = {"max_steps": 2 * now, "num_train_epochs": 2}
        with pytest.warns(UserWarning, match=f"end at global step {2 * now}, .* max_steps={3 + rest + now} "):
            resume(
                tmp_path / "table",
                loader.state_dict(),
                batch_size=batch_size,
                ends=ends,
                num_train_epochs=2,
                ignore_data_skip=True,
            )
    same = {"max_steps": 2 * 13, "num_train_epochs": 2}
    resume(tmp_path / "table", loader.state_dict(), ends=same, num_train_epochs=2, ignore_data_skip=True)


def test_a_data_set_given_to_the_trainer_itself_is_refused_with_the_way_out(tmp_path: Path) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    dataset = StructuredDataset(write_rows(tmp_path / "table"), batch_size=BATCH_ROWS)
    arguments = TrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True, max_steps=1, report_to=[])
    trainer = Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=dataset)
    with pytest.raises(ConfigError, match=r"get_train_dataloader.*integrations\.transformers"):
        trainer.train()
