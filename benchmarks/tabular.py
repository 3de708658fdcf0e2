"""How fast does a table of 51 columns reach the trainer, by engine, batch size, form and shuffle?

python benchmarks/tabular.py [GiB] [runs]

Loaders are built, and the limits know the footers, before the clock starts.
"""

import itertools
import sys

from bare import table_limits
from data import STACK, tabular
from measure import alternate, fastest, report

from torch_dataloader_utils import StructuredDataset


def passes(folder, **options):
    """Passes over one loader, an epoch each; touches every batch and nothing in it.

    The loader is built before the clock starts and keeps its workers, as in every epoch but the first.
    """
    loader, _ = StructuredDataset.create_dataloader(str(folder), **options)
    epochs = itertools.count()

    def drain():
        loader.set_epoch(next(epochs))
        return sum(batch.num_rows for batch in loader)

    return drain


def add_sum(batch):
    """A light transform."""
    batch["sum"] = batch["f0"] + batch["f1"]
    return batch


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = tabular(gib)
    bare = table_limits(folder)
    rows = next(iter(bare.values()))()
    cases = dict(bare)
    for batch in (1024, 8192):
        options = {"batch_size": batch}
        processes = {"num_workers": 2, "persistent_workers": True, **options}
        shuffle = {"num_workers": 0, "shuffle": True, "shuffle_rows": 65_536, **options}
        cases[f"threads, dict, batch {batch}"] = passes(folder, num_workers=0, **options)
        cases[f"threads, stacked, batch {batch}"] = passes(folder, num_workers=0, stack=STACK, **options)
        cases[f"2 processes, dict, batch {batch}"] = passes(folder, **processes)
        cases[f"2 processes, light transform, batch {batch}"] = passes(folder, transform=add_sum, **processes)
        cases[f"threads, rows shuffled, batch {batch}"] = passes(folder, **shuffle)
        cases[f"threads, rows shuffled, stacked, batch {batch}"] = passes(folder, stack=STACK, **shuffle)
    times = alternate(cases, runs=runs)
    report("tabular", times, limit=fastest(times, bare), unit="rows", amount=rows, gib=gib, page_cache="warm")


if __name__ == "__main__":
    main()
