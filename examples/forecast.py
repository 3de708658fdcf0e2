"""Forecasts of the next day from the last week, against a naive forecast: python -m examples.forecast

A row is one window of one series: 168 hours that are known, and the 24 hours after them. Series, not windows, are held
out for validation, because the windows of a series overlap.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from torch_dataloader_utils import Holdout, StructuredDataset

PAST, NEXT, SERIES, HOURS = 168, 24, 40, 24 * 60


def write_windows(folder: Path = Path(".demo/windows")) -> Path:
    """A file for each series of a load that has a day, a week and noise; a window begins every six hours."""
    folder.mkdir(parents=True, exist_ok=True)
    hours = np.arange(HOURS)
    for series in range(SERIES):
        random = np.random.default_rng(series)
        day, week = random.uniform(0.5, 2.0), random.uniform(0.2, 1.0)
        load = day * np.sin(2 * np.pi * hours / 24) + week * np.sin(2 * np.pi * hours / PAST)
        load += random.normal(0.0, 0.3, HOURS)
        windows = np.lib.stride_tricks.sliding_window_view(load.astype(np.float32), PAST + NEXT)[::6]
        table = pa.table(
            {
                "series": np.full(len(windows), series),
                "past": pa.FixedSizeListArray.from_arrays(windows[:, :PAST].ravel(), PAST),
                "next": pa.FixedSizeListArray.from_arrays(windows[:, PAST:].ravel(), NEXT),
            }
        )
        pq.write_table(table, folder / f"{series:02}.parquet", row_group_size=64)
    return folder


def main(epochs: int = 3) -> None:
    """Train, and print the mean absolute error over the windows of the series that were held out."""
    folder = write_windows()

    def open_part(part: str) -> Any:
        holdout = Holdout(0.2, part, by="series")
        loader, _ = StructuredDataset.create_dataloader(
            folder, holdout=holdout, batch_size=128, shuffle=part == "train"
        )
        return loader

    torch.manual_seed(0)
    model = nn.Linear(PAST, NEXT)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train, validation = open_part("train"), open_part("holdout")
    for epoch in range(epochs):
        train.set_epoch(epoch)
        for batch in train:
            loss = nn.functional.l1_loss(model(batch["past"]), batch["next"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    errors, naive, rows = 0.0, 0.0, 0
    with torch.no_grad():
        for batch in validation:
            same_day_last_week = batch["past"][:, :NEXT]
            errors += (model(batch["past"]) - batch["next"]).abs().mean(dim=1).sum().item()
            naive += (same_day_last_week - batch["next"]).abs().mean(dim=1).sum().item()
            rows += batch.num_rows
    print(f"{rows:,} windows held out: mean error {errors / rows:.3f}, of the same day last week {naive / rows:.3f}")


if __name__ == "__main__":
    main()
