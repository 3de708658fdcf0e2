"""Hugging Face Accelerate: accumulated gradients, metrics over unequal batches, saved states.

    torchrun --nproc-per-node 2 -m examples.accelerate_train     # or: accelerate launch

`accelerator.prepare(loader)` would do for training. `prepare` of this library also lets `gather_for_metrics` take the
last batches of an epoch, which are not of one size on all ranks: every row comes once, and none is repeated to pad.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
from accelerate import Accelerator
from examples.trips import FEATURES, audit, find_trips
from torch import nn

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.accelerate import prepare

EPOCHS = 2


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
    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        row_ids: list[int] = []
        squares: list[torch.Tensor] = []
        for batch in loader:
            with accelerator.accumulate(model):  # steps after 4 batches, and after the last one of the epoch
                errors = model(batch["x"]).squeeze(1) - batch["fare"]
                accelerator.backward(errors.square().mean())
                optimizer.step()
                optimizer.zero_grad()
            squares.append(accelerator.gather_for_metrics(errors.detach().square()))
            row_ids += batch["row_id"].tolist()
        accelerator.save_state(".demo/accelerate")  # the loader's place is in it; load_state goes on there
        audit(epoch, row_ids)
        every_square = torch.cat(squares)
        accelerator.print(f"epoch {epoch}: mean square error {every_square.mean():.3f} of {len(every_square):,} rows")


if __name__ == "__main__":
    try:
        main()
    finally:
        dist.destroy_process_group()
