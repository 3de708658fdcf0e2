"""One rank: the Trainer of Transformers over two epochs with a checkpoint at every step, resumed from some of them."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from tests.integrations.jobs import BATCH_ROWS, STEPS
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.accelerate import prepare
from torch_dataloader_utils.integrations.transformers import LoaderStateCallback

NUM_EPOCHS = 2
# In the middle of an epoch, and right after its last step.
RESUMED_STEPS = (3, STEPS)


class Model(nn.Module):
    """Notes the rows that it is trained on, and predicts the number of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, row: Tensor, x: Tensor) -> dict[str, Tensor]:
        if not self.training:
            return {"logits": row[:, None]}
        self.seen.append(row.tolist())
        return {"loss": self.linear(x[:, None]).square().mean()}


class TableTrainer(Trainer):
    """A Trainer with loaders of this library."""

    table: Path

    def make_loader(self, **options: Any) -> Any:
        return StructuredDataset.create_dataloader(self.table, batch_size=BATCH_ROWS, num_ranks="auto", **options)[0]

    def get_train_dataloader(self) -> Any:
        return self.make_loader(shuffle=True, split_rows=9)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return prepare(self.accelerator, self.make_loader())

    def get_test_dataloader(self, test_dataset: Any = None) -> Any:
        return self.get_eval_dataloader()


def train(table: Path, folder: Path, accumulated: int, checkpoint: Path | None = None) -> dict[str, Any]:
    """Train for all epochs; what the model saw."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=NUM_EPOCHS,
        per_device_train_batch_size=BATCH_ROWS,
        gradient_accumulation_steps=accumulated,
        save_strategy="no" if checkpoint else "steps",
        save_steps=1,
        ignore_data_skip=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    model = Model()
    trainer = TableTrainer(model, arguments, callbacks=[LoaderStateCallback()])
    trainer.table = table
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    report: dict[str, Any] = {"train": model.seen, "steps": trainer.state.global_step}
    if checkpoint is None:
        predicted = trainer.predict(None)
        report["predicted"] = predicted.predictions[:, 0].tolist()
    return report


def main(table: Path, folder: Path) -> None:
    """Everything; the report of this rank."""
    report: dict[str, Any] = {"whole": train(table, folder / "one", accumulated=1)}
    for step in RESUMED_STEPS:
        report[f"from {step}"] = train(table, folder, 1, folder / "one" / f"checkpoint-{step}")
    report["three"] = train(table, folder / "three", accumulated=3)
    report["three from 2"] = train(table, folder, 3, folder / "three" / "checkpoint-2")
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    main(*map(Path, sys.argv[1:]))
    dist.destroy_process_group()
