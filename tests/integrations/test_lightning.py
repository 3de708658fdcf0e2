"""Lightning on two processes: rows, epochs, checkpoints in the middle and at the end of an epoch."""

import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.jobs import BATCH_ROWS, NUM_RANKS, NUM_ROWS, STEPS, check_epochs, run_job, write_rows
from torch_dataloader_utils import StructuredDataset

pytestmark = pytest.mark.full

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


@pytest.mark.parametrize("batch_rows", [4, 16])
@pytest.mark.parametrize(("name", "done"), [("step=3", 3), (f"step={STEPS}", STEPS), ("end-epoch=0", STEPS)])
def test_epochs_may_be_of_other_lengths_after_a_resume(
    reports: list[dict[str, Any]], name: str, done: int, batch_rows: int
) -> None:
    """Lightning asks for a length before it loads a state, and takes it for that of every epoch."""
    before = [row for report in reports for step in report["whole"]["train"][:done] for row in step]
    after = [report[f"{batch_rows} from {name}"]["train"] for report in reports]
    rows = before + [row for steps in after for step in steps for row in step]
    assert sorted(rows) == sorted(2 * list(range(NUM_ROWS)))
    assert len({len(steps) for steps in after}) == 1


def test_lightning_is_told_the_length_of_the_epoch_that_begins(tmp_path: Path) -> None:
    """Whole chunks of 61, 7 and 33 rows in another order each epoch, so that a rank has other steps."""
    from lightning.pytorch import Trainer

    from tests.integrations.lightning_job import Module
    from torch_dataloader_utils.integrations.lightning import TableDataModule

    table = write_rows(tmp_path / "table")
    options = {"shuffle": True, "num_ranks": 2, "rank": 0, "rank_sharding": "chunks", "batch_size": BATCH_ROWS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned = StructuredDataset.create_dataloader(table, **options)[0]
        lengths = []
        for epoch in range(6):
            planned.set_epoch(epoch)
            lengths.append(len(planned))
        module = Module()
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=6,
            enable_checkpointing=False,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(
            module, datamodule=TableDataModule(lambda: StructuredDataset.create_dataloader(table, **options)[0])
        )
    assert len(set(lengths)) > 1
    assert len(module.seen["train"]) == sum(lengths)


def all_rows(steps: list[list[int]]) -> list[int]:
    return sorted(row for step in steps for row in step)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_without_a_length_loses_no_batch_that_lightning_read_ahead(tmp_path: Path, num_workers: int) -> None:
    import pyarrow.compute as pc
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from tests.integrations.lightning_job import Module
    from torch_dataloader_utils.integrations.lightning import TableDataModule

    table = write_rows(tmp_path / "table")
    options = {"filters": pc.field("row") != 5, "count_rows": False, "shuffle": True, "split_rows": 9}

    def train(checkpoint: Path | None) -> list[list[int]]:
        module = Module()
        saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=True)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=2,
            callbacks=[saving],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = partial(
            StructuredDataset.create_dataloader, table, batch_size=BATCH_ROWS, num_workers=num_workers, **options
        )
        trainer.fit(module, datamodule=TableDataModule(lambda: loader()[0]), ckpt_path=checkpoint)
        return module.seen["train"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = train(None)
        for step in (1, 3, len(whole) // 2 - 1, len(whole) // 2, len(whole) // 2 + 2):
            resumed = train(tmp_path / f"step={step}.ckpt")
            assert all_rows(whole[:step] + resumed) == sorted(2 * [row for row in range(NUM_ROWS) if row != 5])
            # Of several workers it is not known whose turn it was.
            assert num_workers or resumed == whole[step:]


@pytest.mark.parametrize("count_rows", [False, "auto"])
def test_a_checkpoint_that_only_one_rank_could_go_on_from_warns(tmp_path: Path, count_rows: bool | str) -> None:
    import pyarrow.compute as pc

    from torch_dataloader_utils.integrations.lightning import TableDataModule

    table = write_rows(tmp_path / "table")
    options = {"filters": pc.field("row") != 5, "count_rows": count_rows, "split_rows": 9, "num_ranks": 2, "rank": 1}
    data = TableDataModule(lambda: StructuredDataset.create_dataloader(table, batch_size=BATCH_ROWS, **options)[0])
    data.setup("fit")
    batches = iter(data.train_dataloader())
    data.state_dict()  # of the start of an epoch, which is where all ranks are
    next(batches), next(batches)
    with nullcontext() if count_rows else pytest.warns(UserWarning, match="position of rank 1 of 2"):
        data.state_dict()


def test_a_program_may_call_the_hooks_itself(tmp_path: Path) -> None:
    from torch_dataloader_utils.integrations.lightning import TableDataModule

    table = write_rows(tmp_path / "table")
    data = TableDataModule(lambda: StructuredDataset.create_dataloader(table, batch_size=BATCH_ROWS)[0])
    data.setup("fit")
    first = next(iter(data.train_dataloader()))
    assert first.num_rows == BATCH_ROWS
    saved = data.state_dict()
    data.teardown("fit")
    data.setup("fit")
    data.load_state_dict(saved)
    assert data.train_dataloader().state_dict() == saved["train"]
