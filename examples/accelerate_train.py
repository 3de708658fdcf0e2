"""Hugging Face Accelerate: accumulated gradients, metrics over unequal batches, saved states.

    torchrun --nproc-per-node 2 -m examples.accelerate_train     # or: accelerate launch; stops in the middle of epoch 1
    torchrun --nproc-per-node 3 -m examples.accelerate_train     # goes on there, on three ranks

`accelerator.prepare(loader)` would do for training. `prepare` of this library also lets `gather_for_metrics` take the
last batches of an epoch, which are not of one size on all ranks: every row comes once, and none is repeated to pad.
"""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
from accelerate import Accelerator
from examples.trips import FEATURES, audit, find_trips, find_validation, load_rows, report_error, save_rows
from torch import nn

from torch_dataloader_utils import StructuredDataset, open_loader
from torch_dataloader_utils.integrations.accelerate import prepare

CHECKPOINT = Path(".demo/accelerate")
EPOCHS, STOP_EPOCH, STOP_STEP = 2, 1, 40  # where an accumulation of 4 batches ends


def main() -> None:
    """Train and evaluate."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Linear(len(FEATURES), 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    loader, dataset = StructuredDataset.create_dataloader(
        find_trips(),
        columns=["row_id", *FEATURES, "fare"],
        stack={"x": FEATURES},
        batch_size=128,
        shuffle=True,
        shuffle_rows=8_192,
        num_ranks="auto",  # accelerator.num_processes and accelerator.process_index
    )
    validation = open_loader(find_validation(), stack={"x": FEATURES}, batch_size=128, num_ranks="auto")
    model, optimizer, loader, validation = prepare(accelerator, model, optimizer, loader, validation)
    resumed = CHECKPOINT.exists()
    row_ids: list[int] = []
    if resumed:
        accelerator.load_state(str(CHECKPOINT))  # the loader's place too
        row_ids = load_rows(CHECKPOINT)
    for epoch in range(loader.epoch, EPOCHS):
        dataset.set_epoch(epoch)  # keeps a loaded position that is in this epoch
        squares: list[torch.Tensor] = []
        for step, batch in enumerate(loader, start=1):
            with accelerator.accumulate(model):  # steps after 4 batches, and after the last one of the epoch
                errors = model(batch["x"]).squeeze(1) - batch["fare"]
                accelerator.backward(errors.square().mean())
                optimizer.step()
                optimizer.zero_grad()
            squares.append(accelerator.gather_for_metrics(errors.detach().square()))
            row_ids += batch["row_id"].tolist()
            if not resumed and (epoch, step) == (STOP_EPOCH, STOP_STEP):
                accelerator.save_state(str(CHECKPOINT))
                save_rows(CHECKPOINT, row_ids)
                return
        audit(epoch, row_ids)
        row_ids = []
        every_square = torch.cat(squares)
        accelerator.print(f"epoch {epoch}: mean square error {every_square.mean():.3f} of {len(every_square):,} rows")
        with torch.no_grad():
            errors = torch.cat(
                [
                    accelerator.gather_for_metrics((model(batch["x"]).squeeze(1) - batch["fare"]).abs())
                    for batch in validation
                ]
            )
        report_error(errors.mean().item(), len(errors))


if __name__ == "__main__":
    try:
        main()
    finally:
        dist.destroy_process_group()
