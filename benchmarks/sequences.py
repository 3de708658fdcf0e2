"""How fast do sequences come from a table, and in how much memory, beside pytorch-forecasting and neuralforecast?

    python benchmarks/sequences.py [million rows] [batches]

All readers make shuffled batches of 256 sequences, 96 rows of ten float32 columns and 24 rows of one of them, from the
same Parquet files. Each runs in a process of its own, with one thread. Only readers that are installed are measured.

    start       processor seconds from the files to the first batch
    µs          processor time of a sequence, batches after the first
    memory      most memory of the process, and what importing the reader takes of it

neuralforecast's loader gives whole series, and its models draw random windows of four series in each step: the steps
are those of `training_step` up to the model.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import made_once
from measure import print_machine, save

PAST, NEXT, BATCH, HOURS = 96, 24, 256, 10_000
COLUMNS = [f"x{number}" for number in range(10)]


def series_table(millions: int) -> Path:
    """Series of 10,000 hours with ten columns, 50 series in each file, row groups of 100,000 rows."""

    def write(folder: Path) -> None:
        random = np.random.default_rng(0)
        for number in range(0, millions * 100, 50):
            columns = {
                "series": np.repeat(np.arange(number, number + 50), HOURS),
                "time": np.tile(np.arange(HOURS), 50),
            }
            columns |= {name: random.standard_normal(50 * HOURS, dtype=np.float32) for name in COLUMNS}
            pq.write_table(pa.table(columns), folder / f"{number:06}.parquet", row_group_size=100_000)

    return made_once(f"series-{millions}m", write)


def of_epochplan(folder: Path) -> Iterator[int]:
    """Yield the sequences of each batch."""
    from torch_dataloader_utils import Decoding, Sequences, StructuredDataset

    sequences = Sequences(PAST, horizon=NEXT, by="series", order="time", gaps="error", targets=["x0"])
    loader, _ = StructuredDataset.create_dataloader(
        folder,
        sequences=sequences,
        columns=COLUMNS,
        batch_size=BATCH,
        shuffle=True,
        num_workers=0,
        decoding=Decoding(threads=1),
    )
    for batch in loader:
        yield _checked([batch[name] for name in COLUMNS], batch["x0_target"])


def of_pytorch_forecasting(folder: Path) -> Iterator[int]:
    """Yield the sequences of each batch."""
    from pytorch_forecasting import TimeSeriesDataSet

    windows = TimeSeriesDataSet(
        pq.read_table(folder).to_pandas(),
        time_idx="time",
        target="x0",
        group_ids=["series"],
        min_encoder_length=PAST,
        max_encoder_length=PAST,
        min_prediction_length=NEXT,
        max_prediction_length=NEXT,
        time_varying_unknown_reals=COLUMNS,
        target_normalizer=None,
        scalers=dict.fromkeys(COLUMNS[1:]),
    )
    for inputs, (target, _) in windows.to_dataloader(train=True, batch_size=BATCH, num_workers=0):
        yield _checked(inputs["encoder_cont"].unbind(2), target)


def of_neuralforecast(folder: Path) -> Iterator[int]:
    """Yield the windows of each step."""
    import torch
    from neuralforecast.models import MLP
    from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset

    frame = pq.read_table(folder).to_pandas().rename(columns={"series": "unique_id", "time": "ds", "x0": "y"})
    dataset, *_ = TimeSeriesDataset.from_df(frame)
    del frame
    model = MLP(h=NEXT, input_size=PAST, windows_batch_size=BATCH, max_steps=1, hist_exog_list=COLUMNS[1:])
    module = TimeSeriesDataModule(dataset=dataset, batch_size=4, drop_last=False, shuffle_train=True)
    while True:
        for batch in module.train_dataloader():
            rows, static, static_columns, places, _, columns = model._create_windows(batch, step="train")
            chosen = torch.randperm(len(places))[:BATCH]
            windows = model._sample_windows(rows, static, static_columns, columns, chosen, places)["temporal"]
            yield _checked(windows[:, :PAST, :10].unbind(2), windows[:, PAST:, 0])


READERS = {
    "epochplan": of_epochplan,
    "pytorch-forecasting": of_pytorch_forecasting,
    "neuralforecast": of_neuralforecast,
}
PACKAGES = {"epochplan": "torch_dataloader_utils.datasets", "pytorch-forecasting": "pytorch_forecasting"}


def _checked(past: Any, target: Any) -> int:
    assert len(past) == len(COLUMNS)
    assert all(tuple(column.shape[1:2]) == (PAST,) for column in past)
    assert target.shape[1] == NEXT
    return len(target)


def measure(reader: str, folder: Path, batches: int) -> dict[str, float]:
    """Measure one reader in this process."""
    import torch

    torch.set_num_threads(1)
    __import__(PACKAGES.get(reader, reader))
    imported, begin = _memory(), time.process_time()
    sequences = READERS[reader](folder)
    next(sequences)
    first = time.process_time()
    count = sum(islice(sequences, batches))
    seconds = time.process_time() - first
    return {"start": first - begin, "us": 1e6 * seconds / count, "memory": _memory(), "imported": imported}


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(millions: int = 2, batches: int = 200) -> None:
    """Measure each reader in a process of its own, and print a line for each."""
    folder = series_table(millions)
    print_machine()
    found = {}
    for reader in READERS:
        command = [sys.executable, "-W", "ignore", __file__, "--one", reader, str(folder), str(batches)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"  {reader:<20} {(done.stderr.strip().splitlines() or [f'ended with {done.returncode}'])[-1]}")
            continue
        each = found[reader] = json.loads(done.stdout.splitlines()[-1])
        print(
            f"  {reader:<20} start {each['start']:7.2f} s   {each['us']:8.1f} µs a sequence, {1e6 / each['us']:9,.0f}/s"
            f"   memory {each['memory']:7,.0f} MiB, {each['imported']:,.0f} by importing"
        )
    save("sequences", millions=millions, batches=batches, readers=found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
    else:
        main(*map(int, sys.argv[1:]))
