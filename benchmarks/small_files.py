"""2,000 small files: how long to the first batch, and how fast is a whole pass, the first one and later ones?

A first batch and a first pass find no footer kept of an earlier one: they read links to the files, under paths that are
new to the process.

python benchmarks/small_files.py [files] [runs]
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
from bare import CORES, if_installed, polars_at_once, pyarrow_files, read_group
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


def first_pass(tables, batch):
    """A pass over the next table, and its inventory, that no pass has read."""
    folder, inventory = next(tables)
    return whole_pass(folder, batch, inventory)


def linked(folder: Path, place: str, count: int) -> Iterator[Path]:
    """So many folders of links to the files, below `place`."""
    for number in range(count):
        links = Path(place, str(number))
        links.mkdir()
        for file in folder.glob("*.parquet"):
            (links / file.name).hardlink_to(file)
        yield links


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = small_files(count)
    with TemporaryDirectory(dir=folder.parent) as place:
        unread = iter(list(linked(folder, place, runs + 1)))
        cases = {
            "limit: all footers and one row group": lambda: footers_and_first_group(folder),
            "first batch": lambda: first_batch(next(unread)),
            "first batch, footers: scan alone": lambda: scan_files(str(folder)),
        }
        times = alternate(cases, runs=runs)
    report("small_files_first_batch", times, limit=next(iter(cases)), unit="files", amount=count)
    rows = whole_pass(folder, 256)
    bare = {"limit: pyarrow, a thread a core": partial(pyarrow_files, folder)}
    bare |= if_installed({"limit: polars, all files at once": partial(polars_at_once, folder)})
    cases = dict(bare)
    batches = (256, 8192)
    with TemporaryDirectory(dir=folder.parent) as place:
        fresh = list(linked(folder, place, 2 * len(batches) * (runs + 1)))
        inventory = scan_files(str(folder))  # after the links: each one changes the time of the file
        unread = iter([(links, scan_files(str(links))) for links in fresh[::2]])
        unseen = iter([(links, None) for links in fresh[1::2]])
        for batch in batches:
            cases[f"first pass, inventory given, batch {batch}"] = partial(first_pass, unread, batch)
            cases[f"first pass, scan included, batch {batch}"] = partial(first_pass, unseen, batch)
            cases[f"later pass, inventory given, batch {batch}"] = partial(whole_pass, folder, batch, inventory)
            cases[f"later pass, scan included, batch {batch}"] = partial(whole_pass, folder, batch)
        times = alternate(cases, runs=runs)
    report("small_files_pass", times, limit=fastest(times, bare), unit="rows", amount=rows)


if __name__ == "__main__":
    main()
