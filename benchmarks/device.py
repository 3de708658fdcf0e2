"""The part of a GPU's bus that batches reach, and whether a training step waits for them.

python benchmarks/device.py [GiB] [runs] [millions of tokens]

Copies are measured on a GPU alone, of batches that lie in memory. Steps read Parquet; 1 minus their part of the limit
is the part of the time for which the device waits. Without a GPU they are made on the CPU: that shows that this runs,
no more.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from data import STACK, tabular, tokens
from measure import alternate, report
from torch.nn.functional import binary_cross_entropy_with_logits

from torch_dataloader_utils import DevicePrefetcher, Ragged, StructuredDataset, pack_tokens
from torch_dataloader_utils.stream.loader import TableDataLoader

INPUTS = 40
VOCABULARY = 50_000
MOST_STEPS = {"cuda": 300, "cpu": 10}


@dataclass(frozen=True)
class Form:
    """Batches of one form. load: a loader of them. features: the model's input of a batch, float32 [rows, INPUTS]."""

    load: Callable[..., TableDataLoader[Any]]
    features: Callable[[Any, torch.nn.Embedding], torch.Tensor]
    labels: Callable[[Any], torch.Tensor]


def table_form(folder, features, **form) -> Form:
    """Rows of the table of 51 columns."""

    def load(**options):
        options = {"batch_size": 8192, "drop_last": True, "num_workers": 0, **form, **options}
        return StructuredDataset.create_dataloader(str(folder), **options)[0]

    return Form(load, features, lambda batch: batch["label"])


def pack_form(folder) -> Form:
    """Samples of 2,048 tokens, with positions, mask and boundaries; a token's number is looked up in a table."""

    def load(**options):
        options = {"batch_size": 8, "drop_last": True, "num_workers": 0, **options}
        return StructuredDataset.create_dataloader(str(folder), pack=pack_tokens("tokens", 2048, eod=0), **options)[0]

    return Form(
        load,
        lambda batch, table: table(batch["tokens"].flatten()),
        lambda batch: batch["loss_mask"].flatten(),
    )


def finish(device):
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def leave(batch):
    """Nobody computes on it."""


def passes(batches, device, use, count=None):
    """Passes over a loader or prefetcher, an epoch each; `use` gets every batch, or the first `count`."""
    epochs = itertools.count()

    def run():
        batches.set_epoch(next(epochs))
        for batch in itertools.islice(batches, count):
            use(batch)
        finish(device)

    return run


class InMemory:
    """Batches that were read already, `repeats` times, for a DevicePrefetcher: as a loader gives them, but at once."""

    is_transformed = False
    next_position = position = None

    def __init__(self, loader: TableDataLoader[Any], count: int, repeats: int) -> None:
        self.codec = loader.codec
        self.batches = list(itertools.islice(loader, count))
        self.repeats = repeats

    progress = property(lambda self: self)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.repeats):
            yield from self.batches

    def __len__(self) -> int:
        return self.repeats * len(self.batches)

    @property
    def num_bytes(self) -> int:
        """Of all batches, as often as they come."""
        return self.repeats * sum(map(_num_bytes, self.batches))

    def set_epoch(self, epoch: int) -> None:
        """All epochs are the same."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to resume."""
        return {}

    def encode(self, *_: Any) -> dict[str, Any]:
        """The same."""
        return {}

    load_state_dict = encode


def _num_bytes(batch: Any) -> int:
    parts = [(each.values, each.offsets) if isinstance(each, Ragged) else (each,) for each in batch.values()]
    return sum(tensor.nbytes for tensors in parts for tensor in tensors)


def bare_copies(num_bytes, count, device):
    """One page-locked buffer, copied `count` times."""
    pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def run():
        for _ in range(count):
            pinned.to(device, non_blocking=True)
        finish(device)

    return run


def measure_copies(name, form, device, runs):
    """Batches in memory that nobody computes on, until they are on the device."""
    memory = InMemory(form.load(), 32, 16)
    total, count = memory.num_bytes, len(memory)
    cases = {
        "limit: one page-locked copy of all": bare_copies(total, 1, device),
        "page-locked copies of a batch's bytes": bare_copies(total // count, count, device),
        "DevicePrefetcher": passes(DevicePrefetcher(memory, device), device, leave),
        ".pin_memory().to(non_blocking)": passes(
            memory, device, lambda batch: batch.pin_memory().to(device, non_blocking=True)
        ),
        ".to(device)": passes(memory, device, lambda batch: batch.to(device)),
    }
    times = alternate(cases, runs=runs)
    facts = {"batch_bytes": total // count, **about(device)}
    report(f"device_copies_{name}", times, limit=next(iter(cases)), unit="bytes", amount=total, **facts)
    for case, seconds in times.items():
        print(f"  {case:<44} {min(seconds) / count * 1e6:>8.0f} us a batch of {total / count / 1e6:.2f} MB")


class Training:
    """A perceptron of four wide layers, one step a call."""

    def __init__(self, form, width, device):
        layers = [torch.nn.Linear(INPUTS, width)]
        for _ in range(3):
            layers += [torch.nn.ReLU(), torch.nn.Linear(width, width)]
        self.model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(width, 1)).to(device)
        self.table = torch.nn.Embedding(VOCABULARY, INPUTS, device=device).requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.form = form

    def step(self, batch):
        """Forward, backward, update."""
        predicted = self.model(self.form.features(batch, self.table)).squeeze(1)
        loss = binary_cross_entropy_with_logits(predicted, self.form.labels(batch).to(predicted.dtype))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def measure_steps(name, form, width, device, runs):
    """Steps fed from Parquet, an epoch at most, against as many on one batch that stays on the device."""
    training = Training(form, width, device)
    loader = form.load()
    resident, steps = next(iter(loader)).to(device), min(len(loader), MOST_STEPS[device.type])

    def on_one_batch():
        for _ in range(steps):
            training.step(resident)
        finish(device)

    def fed_by(batches, move):
        return passes(batches, device, lambda batch: training.step(move(batch)), steps)

    cases = {
        "limit: one resident batch": on_one_batch,
        "DevicePrefetcher": fed_by(DevicePrefetcher(form.load(), device), lambda batch: batch),
        "pin_memory, .to(non_blocking)": fed_by(
            form.load(pin_memory=device.type == "cuda"), lambda batch: batch.to(device, non_blocking=True)
        ),
        ".to(device)": fed_by(form.load(), lambda batch: batch.to(device)),
        "2 processes, DevicePrefetcher": fed_by(
            DevicePrefetcher(form.load(num_workers=2, persistent_workers=True), device), lambda batch: batch
        ),
    }
    times = alternate(cases, runs=runs)
    facts = {"width": width, **about(device)}
    report(f"device_steps_{name}_{width}", times, limit=next(iter(cases)), unit="steps", amount=steps, **facts)
    print(f"  a step on the resident batch takes {min(times[next(iter(cases))]) / steps * 1e3:.2f} ms", flush=True)


def about(device):
    """The device, for the report."""
    return {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"}


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    millions = int(sys.argv[3]) if len(sys.argv) > 3 else 50
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(about(device)["device"])
    folder = tabular(gib)
    forms = {
        "dict": table_form(folder, lambda batch, _: torch.stack([batch[name] for name in STACK["x"]], 1)),
        "stacked": table_form(folder, lambda batch, _: batch["x"], stack=STACK),
        "packs": pack_form(tokens(millions)),
    }
    torch.set_float32_matmul_precision("high")
    if device.type == "cuda":
        for name, form in forms.items():
            measure_copies(name, form, device, runs)
    else:
        print("there is no GPU: copies are not measured, and steps are made on the CPU")
    for name, form in forms.items():
        measure_steps(name, form, 2048 if device.type == "cuda" else 16, device, runs)
    if device.type == "cuda":
        measure_steps("stacked", forms["stacked"], 4096, device, runs)


if __name__ == "__main__":
    main()
