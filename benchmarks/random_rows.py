"""The cost of rows by number: single rows and whole batches, with a cache that holds the data and one that does not.

CPU time (all threads) a row, the best of five alternating calls, so that other work on the machine disturbs it
little. The data is 50 float32 columns and a label.

    python benchmarks/random_rows.py [--rows 200000] [--group-rows 20000] [--batch-size 1024]
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import alternate, print_machine, save
from torch.utils.data import default_collate

from torch_dataloader_utils import RowDataset

RUNS = 5


def write_features(path: Path, num_rows: int, group_rows: int) -> None:
    """50 columns of float32 and a label."""
    generator = np.random.default_rng(0)
    columns: dict[str, Any] = {f"f{number}": generator.random(num_rows, np.float32) for number in range(50)}
    pq.write_table(pa.table({**columns, "label": generator.integers(0, 2, num_rows)}), path, row_group_size=group_rows)


def collate_rows(rows: RowDataset, indices: list[int]) -> Any:
    """Rows as DataLoader asks a map-style data set for them."""
    return default_collate(rows.__getitems__(indices))


def microseconds_a_row(cases: dict[str, Callable[[], Any]], rows: int) -> dict[str, float]:
    """The best of each case, printed too; a call gives `rows` rows."""
    times = alternate(cases, runs=RUNS, clock="processor")
    best = {name: min(spent) / rows * 1e6 for name, spent in times.items()}
    for name, spent in best.items():
        print(f"{name:<58} {spent:9.2f} µs a row")
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--group-rows", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=1024)
    options = parser.parse_args()
    print_machine()
    print(options)
    size = options.batch_size
    with tempfile.TemporaryDirectory() as name:
        write_features(Path(name) / "features.parquet", options.rows, options.group_rows)
        warm = RowDataset(name, cache_bytes="1GiB")
        cold = RowDataset(name, cache_bytes=0)
        random = np.random.default_rng(1).integers(0, options.rows, size).tolist()
        near = list(range(options.group_rows // 2, options.group_rows // 2 + size))
        best = microseconds_a_row(
            {
                "random batch, all in the cache: take": partial(warm.take, random),
                "random batch, all in the cache: rows, then default_collate": partial(collate_rows, warm, random),
                "neighbouring rows, in the cache: take": partial(warm.take, near),
                "random batch, nothing in the cache: take": partial(cold.take, random),
            },
            size,
        )
        singly = {"single rows, in the cache: rows[i]": lambda: [warm[index] for index in random]}
        best |= microseconds_a_row(singly, size)
        decoded = cold.cache_info().misses / (1 + RUNS)
        print(f"nothing in the cache: {decoded:.0f} row groups decoded for a batch")
    save("random_rows", **vars(options), microseconds_a_row=best, row_groups_decoded_for_a_batch=decoded)


if __name__ == "__main__":
    main()
