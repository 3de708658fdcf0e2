"""The part of a GPU's bus that batches reach, and whether a training step waits for them.

python benchmarks/device.py [GiB] [runs]

Copies are measured on a GPU alone. Steps are made on the CPU where there is none: that shows that this runs, no more.
"""

import itertools
import sys

import torch
from data import STACK, tabular
from measure import alternate, report
from torch.nn.functional import binary_cross_entropy_with_logits

from torch_dataloader_utils import DevicePrefetcher, StructuredDataset

BATCH_ROWS = 8192


def load(folder, **options):
    """Stacked batches, decoded by threads."""
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), batch_size=BATCH_ROWS, drop_last=True, num_workers=0, stack=STACK, **options
    )
    return loader


def finish(device):
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def leave(batch):
    """Nobody computes on it."""


def passes(batches, device, use):
    """Passes over a loader or prefetcher, an epoch each; `use` gets every batch."""
    epochs = itertools.count()

    def run():
        batches.set_epoch(next(epochs))
        for batch in batches:
            use(batch)
        finish(device)

    return run


def bare_copies(num_bytes, count, device):
    """One page-locked buffer of a batch's size, copied `count` times."""
    pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def run():
        for _ in range(count):
            pinned.to(device, non_blocking=True)
        finish(device)

    return run


def measure_copies(folder, device, runs):
    """Batches that nobody computes on, as they arrive on the device."""
    loader = load(folder)
    num_bytes = sum(column.nbytes for column in next(iter(loader)).values())
    num_batches = len(loader)
    cases = {
        "limit: one page-locked buffer, again and again": bare_copies(num_bytes, num_batches, device),
        "the loader alone, on the CPU": passes(load(folder), device, leave),
        "DevicePrefetcher": passes(DevicePrefetcher(load(folder), device), device, leave),
        "pin_memory, .to(non_blocking)": passes(
            load(folder, pin_memory=True), device, lambda batch: batch.to(device, non_blocking=True)
        ),
        ".to(device)": passes(load(folder), device, lambda batch: batch.to(device)),
    }
    times = alternate(cases, runs=runs)
    report(
        "device_copies", times, limit=next(iter(cases)), unit="bytes", amount=num_bytes * num_batches, **about(device)
    )


class Training:
    """A perceptron of three wide layers, one step a call."""

    def __init__(self, width, device):
        layers = [torch.nn.Linear(40, width)]
        for _ in range(3):
            layers += [torch.nn.ReLU(), torch.nn.Linear(width, width)]
        self.model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(width, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, batch):
        """Forward, backward, update."""
        predicted = self.model(batch["x"]).squeeze(1)
        loss = binary_cross_entropy_with_logits(predicted, batch["label"].to(predicted.dtype))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def measure_steps(folder, device, runs):
    """An epoch of steps fed from Parquet, against as many on one batch that stays on the device."""
    torch.set_float32_matmul_precision("high")
    training = Training(4096 if device.type == "cuda" else 16, device)
    loader = load(folder)
    resident, steps = next(iter(loader)).to(device), len(loader)

    def on_one_batch():
        for _ in range(steps):
            training.step(resident)
        finish(device)

    cases = {
        "limit: one resident batch": on_one_batch,
        "DevicePrefetcher": passes(DevicePrefetcher(load(folder), device), device, training.step),
        "pin_memory, .to(non_blocking)": passes(
            load(folder, pin_memory=device.type == "cuda"),
            device,
            lambda batch: training.step(batch.to(device, non_blocking=True)),
        ),
    }
    times = alternate(cases, runs=runs)
    report("device_steps", times, limit=next(iter(cases)), unit="rows", amount=BATCH_ROWS * steps, **about(device))


def about(device):
    """The device, for the report."""
    return {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"}


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    folder = tabular(gib)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        measure_copies(folder, device, runs)
    else:
        print("there is no GPU: copies are not measured, and steps are made on the CPU")
    measure_steps(folder, device, runs)


if __name__ == "__main__":
    main()
