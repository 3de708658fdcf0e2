"""How fast does a table of 51 columns reach the trainer, by engine, batch size, form and shuffle?

python benchmarks/tabular.py [GiB] [runs]
"""

import sys

from bare import polars_frames, pyarrow_threads
from data import STACK, tabular
from measure import alternate, report

from torch_dataloader_utils import StructuredDataset


def drain(folder, **options):
    """One pass; touches every batch and nothing in it."""
    loader, _ = StructuredDataset.create_dataloader(str(folder), **options)
    rows = sum(batch.num_rows for batch in loader)
    del loader
    return rows


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = tabular(gib)
    rows = pyarrow_threads(folder)
    cases = {"limit: pyarrow, a thread a core": lambda: pyarrow_threads(folder)}
    try:
        polars_frames(folder)
        cases["polars, file by file"] = lambda: polars_frames(folder)
    except ImportError:
        print("polars is not installed: limit is pyarrow alone")
    for batch in (1024, 8192):
        options = {"batch_size": batch}
        cases[f"threads, dict, batch {batch}"] = lambda o=options: drain(folder, num_workers=0, **o)
        cases[f"threads, stacked, batch {batch}"] = lambda o=options: drain(folder, num_workers=0, stack=STACK, **o)
        cases[f"2 processes, dict, batch {batch}"] = lambda o=options: drain(folder, num_workers=2, **o)
        shuffle = {**options, "shuffle": True, "shuffle_rows": 65_536}
        cases[f"threads, rows shuffled, batch {batch}"] = lambda o=shuffle: drain(folder, num_workers=0, **o)
        cases[f"threads, rows shuffled, stacked, batch {batch}"] = lambda o=shuffle: drain(
            folder, num_workers=0, stack=STACK, **o
        )
    times = alternate(cases, runs=runs)
    fastest = min(list(cases)[:2], key=lambda name: sorted(times[name])[len(times[name]) // 2])
    limit = fastest if "polars" in fastest or "limit" in fastest else next(iter(cases))
    report("tabular", times, limit=limit, unit="rows", amount=rows, gib=gib, page_cache="warm")


if __name__ == "__main__":
    main()
