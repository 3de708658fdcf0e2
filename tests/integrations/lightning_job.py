"""One rank: Lightning over two epochs with a checkpoint at every step, then resumed from some of them."""

import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from tests.integrations.jobs import BATCH_ROWS, NUM_RANKS, STEPS
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.lightning import TableDataModule

NUM_EPOCHS = 2
# In the middle of an epoch, and right after its last step.
RESUMED_STEPS = (3, STEPS)
# With these, epochs have more or fewer steps, and so has the rest of a resumed one: as on other numbers of ranks.
OTHER_BATCH_ROWS = (4, 16)


class Module(LightningModule):
    """Notes the rows of every training, validation and prediction step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.seen: dict[str, list[list[int]]] = {"train": [], "validate": [], "predict": []}

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        self.seen["train"].append(batch["row"].tolist())
        return self.linear(batch["x"][:, None]).square().mean()

    def validation_step(self, batch: Any, batch_index: int) -> None:
        self.seen["validate"].append(batch["row"].tolist())

    def predict_step(self, batch: Any, batch_index: int) -> None:
        self.seen["predict"].append(batch["row"].tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def make_loader(table: Path, **options: Any) -> Any:
    """A loader of this rank; called in Lightning's hooks."""
    return StructuredDataset.create_dataloader(table, num_ranks="auto", **options)[0]


def fit(table: Path, folder: Path, checkpoint: Path | None, batch_size: int = BATCH_ROWS) -> dict[str, Any]:
    """Train for all epochs; what the module saw."""
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False)
    ends = ModelCheckpoint(folder, "end-{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=NUM_RANKS,
        max_epochs=NUM_EPOCHS,
        callbacks=[saving, ends] if checkpoint is None else [],
        enable_checkpointing=checkpoint is None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=1,
    )
    module = Module()
    stored = partial(make_loader, table, batch_size=batch_size)
    data = TableDataModule(partial(stored, shuffle=True, split_rows=9), validate=stored, predict=stored)
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=False)
    if checkpoint is None:
        trainer.predict(module, datamodule=data, return_predictions=False)
    return {**module.seen, "steps": trainer.global_step, "epoch": trainer.current_epoch}


def main(table: Path, folder: Path) -> None:
    """Everything; the report of this rank."""
    seed_everything(1, verbose=False)
    report: dict[str, Any] = {"whole": fit(table, folder, None)}
    for step in RESUMED_STEPS:
        report[f"from {step}"] = fit(table, folder, folder / f"step={step}.ckpt")
    report["from end"] = fit(table, folder, folder / "end-epoch=0.ckpt")
    for rows in OTHER_BATCH_ROWS:
        for name in ("step=3", f"step={STEPS}", "end-epoch=0"):
            report[f"{rows} from {name}"] = fit(table, folder, folder / f"{name}.ckpt", rows)
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*map(Path, sys.argv[1:]))
    dist.destroy_process_group()
