"""How fast does a table of 51 columns reach the trainer, by engine, batch size, form and shuffle?

python benchmarks/tabular.py [GiB] [runs] [layout]

layout: see `data.LAYOUTS`. A second table has the processor time of this process, against pyarrow; worker processes are
not in it. Loaders are built, and the limits know the footers, before the clock starts.
"""

import itertools
import sys

from bare import table_limits
from data import LAYOUTS, STACK, tabular
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
    layout = sys.argv[3] if len(sys.argv) > 3 else LAYOUTS[0]
    folder = tabular(gib, layout)
    bare = table_limits(folder)
    rows = next(iter(bare.values()))()
    in_threads, in_processes = {}, {}
    for batch in (1024, 8192):
        options = {"num_workers": 0, "batch_size": batch}
        shuffle = {"shuffle": True, "shuffle_rows": 65_536, **options}
        in_threads[f"threads, dict, batch {batch}"] = passes(folder, **options)
        in_threads[f"threads, stacked, batch {batch}"] = passes(folder, stack=STACK, **options)
        in_threads[f"threads, rows shuffled, batch {batch}"] = passes(folder, **shuffle)
        in_threads[f"threads, rows shuffled, stacked, batch {batch}"] = passes(folder, stack=STACK, **shuffle)
        workers = {"num_workers": 2, "persistent_workers": True, "batch_size": batch}
        in_processes[f"2 processes, dict, batch {batch}"] = passes(folder, **workers)
        in_processes[f"2 processes, stacked, batch {batch}"] = passes(folder, stack=STACK, **workers)
        in_processes[f"2 processes, light transform, batch {batch}"] = passes(folder, transform=add_sum, **workers)
    name = "tabular" if layout == LAYOUTS[0] else f"tabular_{layout}"
    facts = {"unit": "rows", "amount": rows, "gib": gib, "layout": layout, "page_cache": "warm"}
    times = alternate(bare | in_threads | in_processes, runs=runs)
    report(name, times, limit=fastest(times, bare), **facts)
    pyarrow = {case: read for case, read in bare.items() if "pyarrow" in case}
    times = alternate(pyarrow | in_threads, runs=runs, clock="processor")
    report(f"{name}_processor", times, limit=fastest(times, pyarrow), clock="processor", **facts)


if __name__ == "__main__":
    main()
