"""The cost of the shape stage: conversion, batches, window shuffles, slabs; beside bare torch where there is a limit.

    python benchmarks/shape_blocks.py [--rounds 25]

A block is one row group of 65,536 rows: 40 float32, 10 int64 and one int8 column, as a dict of 51 tensors and
stacked into two matrices and one column; and one list column of 20 to 200 int32 a row. Every round times all ways in
turn, one thread; printed are the median and the least of the rounds.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from measure import alternate, print_machine, save

from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.shape.slab import SlabLayout, TensorBatchCodec

BLOCK_ROWS = 65_536
FLOATS = [f"f{i}" for i in range(40)]
INTEGERS = [f"i{i}" for i in range(10)]
STACK = {"floats": FLOATS, "integers": INTEGERS}
Ways = dict[str, tuple[Callable[[], Any], float]]


def make_numbers(rows: int, random: np.random.Generator) -> pa.RecordBatch:
    """The 51 columns."""
    columns: dict[str, Any] = {name: random.standard_normal(rows).astype(np.float32) for name in FLOATS}
    columns |= {name: random.integers(0, 1 << 40, rows) for name in INTEGERS}
    columns["label"] = random.integers(0, 5, rows).astype(np.int8)
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns.values()], list(columns))


def make_lists(rows: int, random: np.random.Generator) -> pa.RecordBatch:
    """One list column, 110 values a row on average."""
    offsets = np.concatenate([[0], np.cumsum(random.integers(20, 200, rows))]).astype(np.int32)
    values = random.integers(0, 50_000, offsets[-1]).astype(np.int32)
    return pa.RecordBatch.from_arrays([pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))], ["tokens"])


def exhaust(batches: Any) -> None:
    """Takes every batch, as a loop over a loader does."""
    for _ in batches:
        pass


def bare_split(tensors: dict[str, torch.Tensor], batch_rows: int) -> None:
    """The limit: Tensor.split of every column and a dict a batch."""
    names = list(tensors)
    for pieces in zip(*[tensor.split(batch_rows) for tensor in tensors.values()], strict=True):
        dict(zip(names, pieces, strict=True))


def bare_gather(blocks: list[dict[str, torch.Tensor]], order: torch.Tensor) -> list[torch.Tensor]:
    """The way one would write first: join the blocks' columns, then index."""
    return [torch.cat([block[name] for block in blocks])[order] for name in blocks[0]]


def tabular_ways(random: np.random.Generator) -> Ways:
    """Conversion, batches and window shuffles of the 51 columns; times are divided by the number given."""
    ways: Ways = {}
    batch = make_numbers(BLOCK_ROWS, random)
    quarters = [batch.slice(start, BLOCK_ROWS // 4) for start in range(0, BLOCK_ROWS, BLOCK_ROWS // 4)]
    order = random.permutation(BLOCK_ROWS)
    for label, stack in (("dict", None), ("stacked", STACK)):
        shaper = make_shaper("torch", batch.schema, stack=stack)
        block = shaper.block([batch])
        ways[f"{label}: block of 65,536 rows"] = (lambda s=shaper: s.block([batch]), 1)
        for rows in (1_024, 8_192):
            count = BLOCK_ROWS / rows
            tensors = dict(block.to_batch())
            ways[f"{label}: batch of {rows}"] = (lambda b=block, r=rows: exhaust(b.split(r)), count)
            ways[f"{label}: batch of {rows}, bare Tensor.split"] = (lambda t=tensors, r=rows: bare_split(t, r), count)
        parts = [shaper.block([quarter]) for quarter in quarters]
        dicts = [dict(part.to_batch()) for part in parts]
        ways[f"{label}: gather 65,536 rows from 4 blocks"] = (lambda s=shaper, p=parts: s.gather(p, order), 1)
        index = torch.from_numpy(order)
        ways[f"{label}: the same by torch.cat and []"] = (lambda d=dicts, i=index: bare_gather(d, i), 1)
        ways[f"{label}: concat of 4 blocks"] = (lambda s=shaper, p=parts: s.concat(p), 1)
    return ways


def slab_ways(random: np.random.Generator) -> Ways:
    """Writing one batch to a slab and viewing it again."""
    ways: Ways = {}
    codec = TensorBatchCodec()
    numbers = make_numbers(BLOCK_ROWS, random)
    for label, stack in (("dict", None), ("stacked", STACK)):
        for rows in (1_024, 8_192):
            batches = list(make_shaper("torch", numbers.schema, stack=stack).block([numbers]).split(rows))
            layout = SlabLayout.of(batches[0])
            slab = torch.zeros(layout.num_bytes, dtype=torch.uint8)

            def write(batches: Any = batches, slab: torch.Tensor = slab, layout: SlabLayout = layout) -> None:
                for batch in batches:
                    codec.write(batch, lambda _: slab, layout)

            def view(batches: Any = batches, slab: torch.Tensor = slab, layout: SlabLayout = layout) -> None:
                _, descriptor = codec.write(batches[0], lambda _: slab, layout) or (None, None)
                for _ in batches:
                    codec.view(layout, descriptor, [slab])

            ways[f"{label}: write a batch of {rows} to a slab"] = (write, len(batches))
            ways[f"{label}: view a batch of {rows} in a slab"] = (view, len(batches))
    return ways


def list_ways(random: np.random.Generator) -> Ways:
    """Batches and window shuffles of the list column."""
    lists = make_lists(BLOCK_ROWS, random)
    shaper = make_shaper("torch", lists.schema)
    block = shaper.block([lists])
    parts = [shaper.block([lists.slice(start, BLOCK_ROWS // 4)]) for start in range(0, BLOCK_ROWS, BLOCK_ROWS // 4)]
    order = random.permutation(BLOCK_ROWS)
    return {
        "lists: batch of 1,024": (lambda: exhaust(block.split(1_024)), 64),
        "lists: gather 65,536 rows from 4 blocks": (lambda: shaper.gather(parts, order), 1),
    }


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print_machine()
    print(f"{rounds} rounds, 1 thread")
    random = np.random.default_rng(0)
    ways = tabular_ways(random) | slab_ways(random) | list_ways(random)
    times = alternate({name: call for name, (call, _) in ways.items()}, runs=rounds)
    microseconds = {name: [run / ways[name][1] * 1e6 for run in runs] for name, runs in times.items()}
    for name, seen in microseconds.items():
        rows = "" if "65,536 rows from" not in name else f"  {BLOCK_ROWS / np.median(seen):6.1f} M rows/s"
        print(f"{name:48s} median {np.median(seen):10.1f} us  least {min(seen):10.1f} us{rows}")
    save("shape_blocks", rounds=rounds, microseconds=microseconds)


if __name__ == "__main__":
    main()
