"""Ray Train: a TorchTrainer on two workers; each finds its rank itself.

python -m examples.ray_train
"""

from pathlib import Path

import ray.train
import torch
from examples.trips import FEATURES, audit, find_trips
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

from torch_dataloader_utils import StructuredDataset

EPOCHS = 2


def train(config: dict[str, str]) -> None:
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
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        row_ids: list[int] = []
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["fare"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            row_ids += batch["row_id"].tolist()
        audit(epoch, row_ids)
        ray.train.report({"loss": loss.item(), "epoch": epoch})  # with a checkpoint: put loader.state_dict() into it


def main() -> None:
    """Start Ray on this machine and train."""
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"trips": find_trips()},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=str(Path(".demo/ray").resolve())),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
