"""The Trainer of Transformers: loaders of this library, and a checkpoint resumed without replay.

torchrun --nproc-per-node 2 -m examples.transformers_train             # stops in the middle of epoch 1
torchrun --nproc-per-node 3 -m examples.transformers_train --resume    # goes on there, on three ranks
"""

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from examples.trips import FEATURES, NUM_ROWS, audit, find_trips, find_validation, load_rows, report_error, save_rows
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.accelerate import prepare
from torch_dataloader_utils.integrations.transformers import LoaderStateCallback

EPOCHS, SAVED_STEP = 2, 100
CHECKPOINT = Path(f".demo/transformers/checkpoint-{SAVED_STEP}")
LAST_STEP = 139  # where epoch 1 ends on three ranks, which take other steps than two; LoaderStateCallback names it


class FareModel(nn.Module):
    """Linear regression; notes the rows it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(len(FEATURES), 1)
        self.row_ids: list[int] = []

    def forward(self, row_id: Tensor, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.row_ids += row_id.tolist()
        logits = self.linear(x).squeeze(1)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class TableTrainer(Trainer):
    """A Trainer whose loaders are ours. It knows the ranks by then, so num_ranks="auto" is right."""

    def make_loader(self, path: str, **options: Any) -> Any:
        return StructuredDataset.create_dataloader(
            path,
            columns=["row_id", *FEATURES, "fare"],
            stack={"x": FEATURES, "labels": ["fare"]},
            collate_fn=lambda batch: {**batch, "labels": batch["labels"][:, 0]},
            batch_size=256,
            num_workers=0,
            num_ranks="auto",
            **options,
        )[0]

    def get_train_dataloader(self) -> Any:
        return self.make_loader(find_trips(), shuffle=True, shuffle_rows=8_192)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return prepare(self.accelerator, self.make_loader(find_validation()))  # ranks' last batches differ in size


def metrics(found: Any) -> dict[str, Any]:
    """The mean error of all ranks' rows, and their number."""
    return {"error": abs(found.predictions - found.label_ids).mean(), "rows": len(found.predictions)}


def main() -> None:
    """Train to a step of epoch 1, or go on from its checkpoint."""
    model = FareModel()
    options = {"output_dir": ".demo/transformers", "ignore_data_skip": True, "learning_rate": 0.03}
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
    if "--resume" not in sys.argv:
        ends = {"num_train_epochs": EPOCHS, "save_strategy": "steps", "save_steps": SAVED_STEP}
        saving = TrainingArguments(**options, **quiet, **ends)
        TableTrainer(model, saving, callbacks=[LoaderStateCallback(), Stop()]).train()
        epoch_rows = NUM_ROWS // dist.get_world_size()
        audit(0, model.row_ids[:epoch_rows])
        save_rows(CHECKPOINT, model.row_ids[epoch_rows:])
    else:
        arguments = TrainingArguments(**options, **quiet, max_steps=LAST_STEP, save_strategy="no")
        trainer = TableTrainer(model, arguments, callbacks=[LoaderStateCallback()], compute_metrics=metrics)
        model.row_ids = load_rows(CHECKPOINT)
        trainer.train(resume_from_checkpoint=str(CHECKPOINT))
        audit(1, model.row_ids)
        found = trainer.evaluate()
        report_error(found["eval_error"], found["eval_rows"])


class Stop(TrainerCallback):
    """Stands for the failure that ends the first part."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= SAVED_STEP


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
