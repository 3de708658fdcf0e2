"""Lightning 2: a data module, and a checkpoint in the middle of an epoch that is resumed without replay.

python -m examples.lightning_train             # Lightning starts the second process itself; stops in epoch 1
python -m examples.lightning_train --resume    # goes on there, on three processes
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
from examples.trips import FEATURES, audit, find_trips, find_validation, load_rows, report_error, save_rows
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.lightning import TableDataModule

EPOCHS, SAVED_STEP = 2, 100
CHECKPOINTS = Path(".demo/lightning")


class FareModel(LightningModule):
    """Linear regression that audits the rows of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(len(FEATURES), 1)
        self.row_ids: list[int] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.row_ids += batch["row_id"].tolist()
        return nn.functional.mse_loss(self.linear(batch["x"]).squeeze(1), batch["fare"])

    def validation_step(self, batch: Any, _: int) -> None:
        errors = (self.linear(batch["x"]).squeeze(1) - batch["fare"]).abs()
        sums = {"errors": errors.sum(), "rows": float(len(errors))}  # Lightning's mean over ranks is not exact
        self.log_dict(sums, reduce_fx="sum", sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        errors, rows = (float(self.trainer.callback_metrics[name]) for name in ("errors", "rows"))
        report_error(errors / rows, int(rows))

    def on_train_epoch_end(self) -> None:
        if self.trainer.is_last_batch:  # not where max_steps ended it
            audit(self.current_epoch, self.row_ids)
            self.row_ids.clear()

    # The audit needs the rows before a checkpoint too; nothing else does.
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        CHECKPOINTS.mkdir(exist_ok=True)
        save_rows(CHECKPOINTS, self.row_ids)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.row_ids = load_rows(CHECKPOINTS)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.03)


def make_loader(path: str, **options: Any) -> Any:
    """A loader of this rank: called by Lightning, when it knows the ranks."""
    return StructuredDataset.create_dataloader(
        path,
        columns=["row_id", *FEATURES, "fare"],
        stack={"x": FEATURES},
        batch_size=256,
        num_ranks="auto",
        **options,
    )[0]


def main() -> None:
    """Train to a step of epoch 1, or go on from its checkpoint."""
    train = partial(make_loader, find_trips(), shuffle=True, shuffle_rows=8_192)
    data = TableDataModule(train, validate=partial(make_loader, find_validation()))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    place = {"accelerator": "cpu", "strategy": "ddp"}
    if "--resume" not in sys.argv:
        saving = ModelCheckpoint(CHECKPOINTS, "{step}", every_n_train_steps=SAVED_STEP, enable_version_counter=False)
        Trainer(**quiet, **place, devices=2, max_steps=SAVED_STEP, callbacks=[saving]).fit(FareModel(), datamodule=data)
    else:
        trainer = Trainer(**quiet, **place, devices=3, max_epochs=EPOCHS, enable_checkpointing=False)
        checkpoint = CHECKPOINTS / f"step={SAVED_STEP}.ckpt"
        trainer.fit(FareModel(), datamodule=data, ckpt_path=checkpoint, weights_only=False)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # which Lightning leaves to the program
