"""Distributed training with checkpoints: the whole program, to start from.

    torchrun --nproc-per-node 2 -m examples.ddp_train      # trains; stop it at any time with ctrl-c
    torchrun --nproc-per-node 1 -m examples.ddp_train      # goes on where it stood, on one rank
    torchrun --nproc-per-node 2 -m examples.ddp_train --data s3://bucket/trips      # the same data in a store

Every epoch ends with an audit (did all ranks together receive every row once?) and a validation. With GPUs: backend
"nccl", `torch.cuda.set_device(local rank)`, and `batch.to("cuda", non_blocking=True)`.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
from examples.trips import FEATURES, audit, find_trips, find_validation, validate
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import StructuredDataset


def main(data: str, checkpoint: Path, epochs: int, save_every_steps: int) -> None:
    """Train, from the checkpoint if there is one."""
    model = nn.Linear(len(FEATURES), 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    loader, dataset = StructuredDataset.create_dataloader(
        data,
        partitioning="hive",
        columns=["row_id", *FEATURES, "fare"],
        stack={"x": FEATURES},
        batch_size=256,
        shuffle=True,
        split_rows=2_000,
        shuffle_rows=8_192,
        num_ranks="auto",  # dist.get_world_size() and dist.get_rank()
    )
    validation, _ = StructuredDataset.create_dataloader(
        find_validation(), columns=[*FEATURES, "fare"], stack={"x": FEATURES}, batch_size=256, num_ranks="auto"
    )
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    parallel = DistributedDataParallel(model)

    for epoch in range(loader.epoch, epochs):
        dataset.set_epoch(epoch)  # keeps a loaded position that is in this epoch
        is_whole = not loader.state_dict()["log"]["steps"]
        row_ids: list[int] = []
        for step, batch in enumerate(loader, start=1):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(parallel(batch["x"]).squeeze(1), batch["fare"])
            loss.backward()
            optimizer.step()
            row_ids += batch["row_id"].tolist()
            if step % save_every_steps == 0:
                save(checkpoint, model, optimizer, loader.state_dict())
        save(checkpoint, model, optimizer, loader.state_dict())
        if is_whole:
            audit(epoch, row_ids)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: last loss {loss.item():.3f}", flush=True)
        validate(model, validation)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader_state: dict[str, object]) -> None:
    """Write the checkpoint on rank 0, whole or not at all. The loader's state is the same on every rank."""
    if dist.get_rank() != 0:
        return
    partial = path.with_suffix(".partial")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader_state}, partial)
    partial.replace(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path(".demo/checkpoint.pt"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-every-steps", type=int, default=20)
    parser.add_argument("--data", help="by default the trips of `make demo`")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        main(given.data or find_trips(), given.checkpoint, given.epochs, given.save_every_steps)
    finally:
        dist.destroy_process_group()
