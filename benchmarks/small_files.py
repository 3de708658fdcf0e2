"""2,000 small files: how long to the first batch, and how fast is a whole pass?

python benchmarks/small_files.py [files] [runs]
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow.parquet as pq
from bare import CORES, limits, polars_at_once, read_group
from data import small_files
from measure import alternate, fastest, report

from torch_dataloader_utils import StructuredDataset, scan_files


def footers_and_first_group(folder):
    """The limit of a first batch: every footer read in parallel, then one row group."""
    paths = sorted(folder.glob("*.parquet"))
    with ThreadPoolExecutor(CORES) as pool:
        footers = list(pool.map(pq.read_metadata, paths))
    return read_group((paths[0], 0, footers[0]))


def first_batch(folder):
    loader, _ = StructuredDataset.create_dataloader(str(folder), num_workers=0, batch_size=256)
    batches = iter(loader)
    next(batches)
    batches.close()


def whole_pass(folder, batch, inventory=None):
    options = {"num_workers": 0, "batch_size": batch, "inventory": inventory}
    loader, _ = StructuredDataset.create_dataloader(str(folder), **options)
    return sum(batch.num_rows for batch in loader)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = small_files(count)
    cases = {
        "limit: all footers and one row group": lambda: footers_and_first_group(folder),
        "first batch": lambda: first_batch(folder),
        "first batch, footers: scan alone": lambda: scan_files(str(folder)),
    }
    times = alternate(cases, runs=runs)
    report("small_files_first_batch", times, limit=next(iter(cases)), unit="files", amount=count)
    inventory = scan_files(str(folder))
    rows = whole_pass(folder, 256)
    bare = limits(folder, "polars, all files at once", polars_at_once)
    cases = dict(bare)
    for batch in (256, 8192):
        cases[f"whole pass, scan included, batch {batch}"] = partial(whole_pass, folder, batch)
        cases[f"whole pass, inventory given, batch {batch}"] = partial(whole_pass, folder, batch, inventory)
    times = alternate(cases, runs=runs)
    report("small_files_pass", times, limit=fastest(times, bare), unit="rows", amount=rows)


if __name__ == "__main__":
    main()
