"""torchtitan's data-loader class and its checkpoint manager (0.3), killed and resumed on another number of ranks.

    torchrun --nproc-per-node 2 -m examples.titan_train    # stops in the middle of epoch 0, as if it had been killed
    torchrun --nproc-per-node 3 -m examples.titan_train    # goes on there, on three ranks

In a job, name TripLoader.Config as the trainer's `dataloader`: torchtitan passes the numbers of data parallelism.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from examples.fsdp2_train import make_training
from examples.trips import FEATURES, audit, find_trips, find_validation, load_rows, save_rows, validate
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import mse_loss
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader

from torch_dataloader_utils import open_loader

FOLDER = Path(".demo/titan")
STOP_STEP = 20
OPTIONS = {"columns": ["row_id", *FEATURES, "fare"], "stack": {"x": FEATURES}, "shuffle": True}


class TripLoader(BaseDataLoader):
    """Batches as torchtitan takes them: inputs, labels, without end. `epoch` is the epoch of the last batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any) -> None:
        ranks = {"num_ranks": dp_world_size, "rank": dp_rank}
        self.loader = open_loader(config.dataset_path, batch_size=local_batch_size, **ranks, **OPTIONS)
        self.epoch = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            self.epoch = self.loader.epoch
            for batch in self.loader:
                yield {"input": batch["x"], "row_id": batch["row_id"]}, batch["fare"]
            self.loader.set_epoch(self.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


def main() -> None:
    """Train one epoch, from the checkpoint if there is one."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    training = make_training(mesh)
    config = TripLoader.Config(dataset_path=find_trips())
    loader = config.build(dp_world_size=mesh.size(), dp_rank=mesh.get_local_rank(), local_batch_size=256)
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, interval=STOP_STEP, last_save_model_only=False, keep_latest_k=0),
        dataloader=loader,
        model_parts=[training.model],
        optimizers=training,
        lr_schedulers=torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda _: 1.0),
        states={},
        sd_adapter=None,
        base_folder=str(FOLDER),
    )
    resumed = manager.load()
    row_ids = load_rows(FOLDER) if resumed else []
    for step, (inputs, fare) in enumerate(loader, start=1):
        if loader.epoch > 0:
            break
        row_ids += inputs["row_id"].tolist()
        mse_loss(training.model(inputs["input"]).squeeze(1), fare).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        if not resumed and step == STOP_STEP:
            manager.save(step)
            save_rows(FOLDER, row_ids)
            print(f"rank {dist.get_rank()} stops after {len(row_ids):,} rows", flush=True)
            return
    audit(0, row_ids)
    validate(training.model, open_loader(find_validation(), batch_size=256, mesh=mesh, stack={"x": FEATURES}))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    try:
        main()
    finally:
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # with gloo alone: caches of torch keep its threads; see "When a job ends" in docs/how-to/ddp.md
