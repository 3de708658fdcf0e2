"""One rank of the training. Started by torchrun:

torchrun --nproc-per-node 2 -m examples.demo.train .demo/trips .demo/received
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import StructuredDataset

EPOCHS = 2
BATCH_ROWS = 256
FEATURES = ["distance", "minutes", "passengers"]


def make_loader(trips: str | Path, *, num_ranks: int, rank: int) -> tuple[Any, StructuredDataset]:
    """The loader of one rank: shuffled, with the three features stacked to one matrix `x`."""
    return StructuredDataset.create_dataloader(
        trips,
        columns=["row_id", *FEATURES, "fare"],
        stack={"x": FEATURES},
        partitioning="hive",
        batch_size=BATCH_ROWS,
        shuffle=True,
        split_rows=2_000,
        shuffle_rows=8_192,
        num_workers=2,
        num_ranks=num_ranks,
        rank=rank,
    )


def train(trips: str, received: Path) -> None:
    """Train for two epochs; write the row ids, steps and loss of each epoch to `received`, a file a rank and epoch."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(len(FEATURES), 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    loader, dataset = make_loader(trips, num_ranks=dist.get_world_size(), rank=dist.get_rank())
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        row_ids, losses = [], []
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["fare"])
            loss.backward()
            optimizer.step()
            row_ids.append(batch["row_id"].clone())
            losses.append(loss.detach())
        report = {"row_ids": torch.cat(row_ids).tolist(), "steps": len(row_ids), "planned_steps": len(loader)}
        report["loss"] = mean_over_ranks(torch.stack(losses).mean())
        (received / f"epoch{epoch}-rank{dist.get_rank()}.json").write_text(json.dumps(report))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {len(row_ids)} steps, mean loss {report['loss']:.3f}", flush=True)


def mean_over_ranks(value: torch.Tensor) -> float:
    """The mean of one number over all ranks."""
    total = value.clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    try:
        train(sys.argv[1], Path(sys.argv[2]))
    finally:
        dist.destroy_process_group()
