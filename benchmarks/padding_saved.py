"""How much padding sorting in buffers saves, on lognormal lengths, against random batches and a full sort.

Padding is the share of a padded batch that is no data: 1 − Σ lengths / Σ (batch size · longest of the batch). Every
row is a mean over epochs; it also prints what making the order costs for each item.

    python benchmarks/padding_saved.py [--items 200000] [--batch-size 32] [--epochs 3] [--sigma 0.8]
"""

import argparse
import time
from typing import Any

import numpy as np
from measure import print_machine, save

from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils.wrappers import BufferSortedDataset


class Lengths:
    """A data set of which only the lengths matter: item i is i."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths.tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> int:
        return index

    def sort_key(self, index: int) -> int:
        return self.lengths[index]


def padded_share(lengths: np.ndarray, batch_size: int) -> float:
    """Share of padding when `lengths`, in this order, are batched; the short last batch counts as it is."""
    starts = np.arange(0, len(lengths), batch_size)
    longest = np.maximum.reduceat(lengths, starts)
    sizes = np.diff(np.append(starts, len(lengths)))
    return float(1 - lengths.sum() / (longest * sizes).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--mean", type=float, default=6.0, help="mean of the logarithm of the length")
    parser.add_argument("--sigma", type=float, default=0.8, help="spread of the logarithm of the length")
    options = parser.parse_args()
    draws = np.random.default_rng(0).lognormal(options.mean, options.sigma, options.items)
    lengths = np.clip(draws.round().astype(np.int64), 1, None)
    print_machine()
    print(options)
    print(f"lengths: mean {lengths.mean():.0f}, median {np.median(lengths):.0f}, longest {lengths.max()}")

    size = options.batch_size
    epochs = range(options.epochs)
    orders = [permutation(len(lengths), seed=0, epoch=epoch, purpose=Purpose.CHUNKS) for epoch in epochs]
    at_random = float(np.mean([padded_share(lengths[order], size) for order in orders]))
    rows: list[dict[str, Any]] = [{"order": "random batches", "padding": at_random}]
    for batches in (4, 16, 64, 256, 1024):
        dataset = BufferSortedDataset(Lengths(lengths), batches * size, size, init_seed=0)
        shares, start = [], time.perf_counter()
        for epoch in epochs:
            dataset.set_epoch(epoch)
            shares.append(padded_share(lengths[np.fromiter(dataset, np.int64, len(dataset))], size))
        spent = (time.perf_counter() - start) / (len(lengths) * len(epochs)) * 1e6
        row = {"order": f"sorted in buffers of {batches} batches", "padding": float(np.mean(shares))}
        rows.append(row | {"saved": 1 - row["padding"] / at_random, "microseconds_an_item": spent})
    rows.append({"order": "full sort", "padding": padded_share(np.sort(lengths), size)})
    for row in rows:
        saved = f", {row['saved']:7.2%} of it saved" if "saved" in row else ""
        cost = f", {row['microseconds_an_item']:5.2f} µs an item for the order" if "saved" in row else ""
        print(f"{row['order']:<34} {row['padding']:7.2%} padding{saved}{cost}")
    save("padding_saved", **vars(options), rows=rows)


if __name__ == "__main__":
    main()
