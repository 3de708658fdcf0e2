"""Forecasts of the next day from the last week, against a naive forecast: python -m examples.forecast

A row is an hour of one series, and a sample is a sequence of rows: 168 hours that are known, and the 24 hours after
them. Series, not sequences, are held out for validation, because the sequences of a series overlap.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from torch_dataloader_utils import Holdout, Sequences, StructuredDataset

PAST, NEXT, SERIES, HOURS = 168, 24, 40, 24 * 60


def write_series(folder: Path = Path(".demo/series")) -> Path:
    """A file for each series of a load that has a day, a week and noise."""
    folder.mkdir(parents=True, exist_ok=True)
    hours = np.arange(HOURS)
    for series in range(SERIES):
        random = np.random.default_rng(series)
        day, week = random.uniform(0.5, 2.0), random.uniform(0.2, 1.0)
        load = day * np.sin(2 * np.pi * hours / 24) + week * np.sin(2 * np.pi * hours / PAST)
        load += random.normal(0.0, 0.3, HOURS)
        table = pa.table({"series": np.full(HOURS, series), "hour": hours, "load": load.astype(np.float32)})
        pq.write_table(table, folder / f"{series:02}.parquet", row_group_size=512)
    return folder


def main(epochs: int = 3) -> None:
    """Train, and print the mean absolute error over the sequences of the series that were held out."""
    folder = write_series()
    # A sequence begins every six hours; an hour that is missing would be an error.
    sequences = Sequences(PAST, horizon=NEXT, stride=6, by="series", order="hour", gaps="error")

    def open_part(part: str) -> Any:
        holdout = Holdout(0.2, part, by="series")
        loader, _ = StructuredDataset.create_dataloader(
            folder, sequences=sequences, columns=["load"], holdout=holdout, batch_size=128, shuffle=part == "train"
        )
        return loader

    torch.manual_seed(0)
    model = nn.Linear(PAST, NEXT)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train, validation = open_part("train"), open_part("holdout")
    for epoch in range(epochs):
        train.set_epoch(epoch)
        for batch in train:
            loss = nn.functional.l1_loss(model(batch["load"]), batch["load_target"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    errors, naive, rows = 0.0, 0.0, 0
    with torch.no_grad():
        for batch in validation:
            same_day_last_week = batch["load"][:, :NEXT]
            errors += (model(batch["load"]) - batch["load_target"]).abs().mean(dim=1).sum().item()
            naive += (same_day_last_week - batch["load_target"]).abs().mean(dim=1).sum().item()
            rows += batch.num_rows
    print(f"{rows:,} sequences held out: mean error {errors / rows:.3f}, of the same day last week {naive / rows:.3f}")


if __name__ == "__main__":
    main()
