"""FSDP2 with checkpoints that load on any number of ranks, as torchtitan writes them.

    torchrun --nproc-per-node 2 -m examples.fsdp2_train    # stops in the middle of epoch 1, as if it had been killed
    torchrun --nproc-per-node 3 -m examples.fsdp2_train    # goes on there, on three ranks

The loader is a `Stateful`: torch.distributed.checkpoint saves and loads it beside the model. With GPUs: backend "nccl",
a mesh of "cuda", and `batch.to("cuda", non_blocking=True)`.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from examples.trips import FEATURES, audit, find_trips, find_validation, load_rows, save_rows, validate
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from torch_dataloader_utils import StructuredDataset, open_loader

CHECKPOINT = Path(".demo/fsdp2")
EPOCHS, STOP_EPOCH, STOP_STEP = 3, 1, 20


class Training:
    """Model and optimizer as one Stateful."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, object]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def make_training(mesh: DeviceMesh) -> Training:
    """A small model that is sharded over the mesh, and its optimizer."""
    model = nn.Sequential(nn.Linear(len(FEATURES), 16), nn.ReLU(), nn.Linear(16, 1))
    fully_shard(model, mesh=mesh)
    return Training(model, torch.optim.Adam(model.parameters(), lr=0.01))


def main() -> None:
    """Train, from the checkpoint if there is one."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    training = make_training(mesh)
    model, optimizer = training.model, training.optimizer
    loader, dataset = StructuredDataset.create_dataloader(
        find_trips(),
        columns=["row_id", *FEATURES, "fare"],
        stack={"x": FEATURES},
        batch_size=256,
        shuffle=True,
        shuffle_rows=8_192,
        mesh=mesh,  # ranks of tensor or context parallelism, were there any, would get the same batches
    )
    validation = open_loader(find_validation(), stack={"x": FEATURES}, batch_size=256, mesh=mesh)
    states = {"training": training, "loader": loader}
    resumed = CHECKPOINT.exists()
    if resumed:
        dcp.load(states, checkpoint_id=CHECKPOINT)
    row_ids = load_rows(CHECKPOINT) if resumed else []
    for epoch in range(loader.epoch, EPOCHS):
        dataset.set_epoch(epoch)  # keeps a loaded position that is in this epoch
        for step, batch in enumerate(loader, start=1):
            loss = nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["fare"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            row_ids += batch["row_id"].tolist()
            if not resumed and (epoch, step) == (STOP_EPOCH, STOP_STEP):
                dcp.save(states, checkpoint_id=CHECKPOINT)
                save_rows(CHECKPOINT, row_ids)
                print(f"rank {dist.get_rank()} stops in epoch {epoch} after {len(row_ids):,} rows", flush=True)
                return
        audit(epoch, row_ids)
        validate(model, validation)  # ranks take equal steps, so that none waits for weights
        row_ids = []


if __name__ == "__main__":
    dist.init_process_group("gloo")
    try:
        main()
    finally:
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # with gloo alone: caches of torch keep its threads; see "When a job ends" in docs/how-to/ddp.md
