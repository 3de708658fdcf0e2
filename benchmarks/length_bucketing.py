"""How much padding `token_batches` saves on lognormal lengths, and what it costs; the same under a token budget.

Padding is the share of padded batches that is no data: 1 − Σ lengths / Σ (rows · longest of the batch). Batches without
padding are so full: Σ lengths / (batches · limit). All figures come from loaders over real Parquet files, after every
row was seen exactly once; the cost is CPU time, the best of five alternating passes, so that other work on the
machine disturbs it little.

    python benchmarks/length_bucketing.py [--rows 200000] [--batch-size 32] [--sigma 0.8]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import alternate, print_machine, save

from torch_dataloader_utils import StructuredDataset, TokenBatches, scan_files
from torch_dataloader_utils.wrappers import TokenBatchSampler

EPOCH = 0


def write_texts(folder: Path, lengths: np.ndarray, files: int, group_rows: int) -> None:
    """Token lists of these lengths, as int32, their lengths and their row numbers."""
    bounds = np.linspace(0, len(lengths), files + 1).astype(int)
    for number, (start, stop) in enumerate(pairwise(bounds)):
        offsets = np.concatenate([[0], np.cumsum(lengths[start:stop])]).astype(np.int64)
        tokens = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.ones(offsets[-1], np.int32)))
        table = pa.table({"row": np.arange(start, stop), "tokens": tokens, "length": lengths[start:stop]})
        pq.write_table(table, folder / f"part-{number:03}.parquet", row_group_size=group_rows, use_dictionary=False)


def padded_share(lengths: np.ndarray, batches: Iterable[np.ndarray]) -> tuple[float, int]:
    """(share of padding, batches), after checking that every row came once."""
    rows = list(batches)
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(len(lengths)))
    padded = sum(int(lengths[batch].max()) * len(batch) for batch in rows)
    return 1 - int(lengths.sum()) / padded, len(rows)


def filled_share(lengths: np.ndarray, batches: Iterable[np.ndarray], max_tokens: int) -> tuple[float, int]:
    """(share of the limit that is data, batches), after checking the limit and that every row came once."""
    rows = list(batches)
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(len(lengths)))
    assert max(int(lengths[batch].sum()) for batch in rows) <= max_tokens
    return int(lengths.sum()) / (len(rows) * max_tokens), len(rows)


def processor_seconds(*runs: Callable[[], Any]) -> list[float]:
    """The least of five calls of each, all threads, alternating."""
    times = alternate(dict(enumerate(runs)), runs=5, clock="processor")
    return [min(seconds) for seconds in times.values()]


class Table:
    """Lines of figures, as they are found; saved at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, text: str, **figures: float) -> None:
        """Print a line and keep its figures."""
        print(f"{name:<46} {text}")
        self.rows.append({"case": name, **figures})


def read_all(loader: Any) -> list[np.ndarray]:
    """Row numbers of every batch of one pass over epoch 0."""
    loader.set_epoch(EPOCH)
    return [batch["row"].numpy() for batch in loader]


def plan_next_epoch(batches: Any) -> int:
    """Plans an epoch that this loader or sampler has not planned before."""
    batches.set_epoch(time.perf_counter_ns())
    return len(batches)


def pairs_that_stay(loader: Any) -> float:
    """Of the pairs of rows that share a batch in epoch 0, the share that shares one in epoch 1 too."""
    batch_of = []
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        rows = [batch["row"].numpy() for batch in loader]
        numbers = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        batch_of.append(numbers[np.argsort(np.concatenate(rows))])
    first = np.bincount(batch_of[0])
    _, both = np.unique(np.stack(batch_of), axis=1, return_counts=True)
    return float((both * (both - 1)).sum() / (first * (first - 1)).sum())


def resumed_elsewhere(open_loader: Callable[..., Any], lengths: np.ndarray) -> float:
    """Share of padding of what remains at half of an epoch on 2 ranks, resumed on 3."""
    loader = open_loader(num_ranks=2, rank=0)
    batches = iter(loader)
    for _ in range(len(loader) // 2):
        next(batches)
    padded = data = 0
    for rank in range(3):
        resumed = open_loader(num_ranks=3, rank=rank)
        resumed.load_state_dict(loader.state_dict())
        for batch in resumed:
            of_rows = lengths[batch["row"].numpy()]
            padded, data = padded + int(of_rows.max()) * len(of_rows), data + int(of_rows.sum())
    return 1 - data / padded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--mean", type=float, default=6.0, help="mean of the logarithm of the length")
    parser.add_argument("--sigma", type=float, default=0.8, help="spread of the logarithm of the length")
    parser.add_argument("--max-tokens", type=int, default=32_768)
    parser.add_argument("--folder", type=Path, default=None, help="where the files are written; a temporary one")
    options = parser.parse_args()
    draws = np.random.default_rng(0).lognormal(options.mean, options.sigma, options.rows)
    lengths = np.clip(draws.round().astype(np.int64), 1, None)
    print_machine()
    print(options)
    print(f"lengths: mean {lengths.mean():.0f}, median {np.median(lengths):.0f}, longest {lengths.max()}")
    size, table = options.batch_size, Table()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_texts(folder, lengths, files=8, group_rows=2048)
        inventory = scan_files(name)

        def open_loader(window_batches: int, token_batches: TokenBatches | None, **more: Any) -> Any:
            defaults = {"inventory": inventory, "batch_size": size, "num_workers": 0, "shuffle": True}
            windows = {"split_rows": 2048, "shuffle_rows": window_batches * size, "token_batches": token_batches}
            return StructuredDataset.create_dataloader(name, **{**defaults, **windows, **more})[0]

        buckets = TokenBatches("tokens")
        plain, steps = padded_share(lengths, read_all(open_loader(1024, None)))
        table.add("shuffled rows", f"{plain:7.2%} padding, {steps} batches", padding=plain, batches=steps)
        for batches in (4, 16, 64, 256, 1024):
            share, _ = padded_share(lengths, read_all(open_loader(batches, buckets)))
            name = f"buckets in windows of {batches} batches"
            table.add(name, f"{share:7.2%} padding, {1 - share / plain:.1%} of it saved", padding=share)
        loaders = [open_loader(256, by) for by in (None, buckets)]
        without, bucketed = processor_seconds(*(partial(read_all, loader) for loader in loaders))
        ratio = bucketed / without
        table.add("  256: CPU time of a pass", f"{ratio:6.2f} × the unbucketed one", cpu_ratio=ratio)
        for batches in (64, 256):
            share = resumed_elsewhere(partial(open_loader, batches, buckets), lengths)
            table.add(f"  {batches}: rest of an epoch, 2 to 3 ranks", f"{share:7.2%} padding", padding=share)
        limited = TokenBatches("length", max_tokens=max(options.max_tokens, int(lengths.max())))
        for batches in (64, 256, 2048):
            loader = open_loader(batches, limited, batch_size=1 << 20)
            share, steps = padded_share(lengths, read_all(loader))
            (seconds,) = processor_seconds(partial(plan_next_epoch, loader))
            name, cost = f"stream by tokens, windows of {batches * size} rows", f"{seconds:.2f} s to plan an epoch"
            text = f"{share:7.2%} padding, {steps} batches, {cost}"
            table.add(name, text, padding=share, batches=steps, plan_seconds=seconds)
        for window_rows in (512, 2_048, 8_192, 65_536):
            loader = open_loader(window_rows // size, replace(limited, padding_free=True), batch_size=1 << 20)
            share, steps = filled_share(lengths, read_all(loader), limited.max_tokens)
            (seconds,) = processor_seconds(partial(plan_next_epoch, loader))
            name, cost = f"padding_free, windows of {window_rows} rows", f"{seconds:.2f} s to plan an epoch"
            stay = pairs_that_stay(loader)
            text = f"{share:7.2%} full, {steps} batches, {stay:.0%} of the pairs stay, {cost}"
            table.add(name, text, full=share, batches=steps, pairs_that_stay=stay, plan_seconds=seconds)
            padded = open_loader(window_rows // size, limited, batch_size=1 << 20)
            share, steps = filled_share(lengths, read_all(padded), limited.max_tokens)
            stay = pairs_that_stay(padded)
            text = f"{share:7.2%} full, {steps} batches, {stay:.0%} of the pairs stay"
            table.add("  the same with padding", text, full=share, batches=steps, pairs_that_stay=stay)
    for window_rows in (64 * size, 256 * size, None):
        sampler = TokenBatchSampler(
            np.minimum(lengths, options.max_tokens), options.max_tokens, window_rows=window_rows
        )
        share, steps = padded_share(lengths, (np.array(batch) for batch in sampler))
        (seconds,) = processor_seconds(partial(plan_next_epoch, sampler))
        name, cost = f"sampler by tokens, windows of {window_rows} rows", f"{seconds:.2f} s to plan an epoch"
        text = f"{share:7.2%} padding, {steps} batches, {cost}"
        table.add(name, text, padding=share, batches=steps, plan_seconds=seconds)
    save("length_bucketing", rows_of_data=options.rows, batch_size=size, sigma=options.sigma, rows=table.rows)


if __name__ == "__main__":
    main()
