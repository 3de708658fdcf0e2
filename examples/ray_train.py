"""Ray Train: stopped in the middle of an epoch on three workers, resumed on two; each worker finds its rank itself.

python -m examples.ray_train
"""

import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from examples.trips import FEATURES, audit, find_trips, find_validation, load_rows, save_rows, validate
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

from torch_dataloader_utils import StructuredDataset, open_loader

EPOCHS, STOP_EPOCH, STOP_STEP = 2, 1, 20


def train(config: dict[str, Any]) -> None:
    """One worker. `num_ranks="auto"` is its world size and world rank; `prepare_data_loader` is not needed."""
    model = prepare_model(nn.Linear(len(FEATURES), 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    loader, dataset = StructuredDataset.create_dataloader(
        config["trips"],
        columns=["row_id", *FEATURES, "fare"],
        stack={"x": FEATURES},
        batch_size=256,
        shuffle=True,
        shuffle_rows=8_192,
        num_ranks="auto",
    )
    validation = open_loader(config["validation"], stack={"x": FEATURES}, batch_size=256, num_ranks="auto")
    row_ids: list[int] = []
    if config["checkpoint"]:
        with config["checkpoint"].as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
            row_ids = load_rows(Path(folder))
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])  # saved on three ranks
    for epoch in range(loader.epoch, EPOCHS):
        dataset.set_epoch(epoch)  # keeps a loaded position that is in this epoch
        for step, batch in enumerate(loader, start=1):
            loss = nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["fare"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            row_ids += batch["row_id"].tolist()
            if not config["checkpoint"] and (epoch, step) == (STOP_EPOCH, STOP_STEP):
                report({"model": model.state_dict(), "loader": loader.state_dict()}, row_ids)
                return
        audit(epoch, row_ids)
        validate(model, validation)
        row_ids = []


def report(state: dict[str, Any], row_ids: list[int]) -> None:
    """Give Ray a checkpoint. The state of the loader is the same on every rank, so that of the first one will do."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "state.pt")
        save_rows(Path(folder), row_ids)
        ray.train.report({}, checkpoint=Checkpoint.from_directory(folder) if dist.get_rank() == 0 else None)


def main() -> None:
    """Start Ray on this machine, train, and go on from the checkpoint with fewer workers."""
    ray.init(num_cpus=3, include_dashboard=False)
    checkpoint = None
    for num_workers in (3, 2):
        trainer = TorchTrainer(
            train,
            train_loop_config={"trips": find_trips(), "validation": find_validation(), "checkpoint": checkpoint},
            scaling_config=ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(name=f"workers_{num_workers}", storage_path=str(Path(".demo/ray").resolve())),
        )
        checkpoint = trainer.fit().checkpoint
    ray.shutdown()


if __name__ == "__main__":
    main()
