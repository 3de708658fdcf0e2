"""The cost of worker processes, by their number, the size of batches and their form.

    python benchmarks/workers.py [GiB] [runs] [most workers]

The table of 51 columns. Workers are persistent, and each loader's start before the clock does.
"""

import sys

from bare import table_limits
from data import STACK, tabular
from measure import alternate, fastest, report
from tabular import passes

FORMS = {
    "dict": {},
    "stacked": {"stack": STACK},
    "rows shuffled": {"shuffle": True, "shuffle_rows": 65_536},
    "rows shuffled, stacked": {"shuffle": True, "shuffle_rows": 65_536, "stack": STACK},
}


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    most = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    folder = tabular(gib)
    bare = table_limits(folder)
    rows = next(iter(bare.values()))()
    for workers in range(1, most + 1):
        cases = dict(bare)
        for batch in (256, 1024, 8192):
            options = {"num_workers": workers, "persistent_workers": True, "batch_size": batch}
            for form, more in FORMS.items():
                cases[f"{form}, batch {batch}"] = passes(folder, **options, **more)
        times = alternate(cases, runs=runs)
        name, limit = f"workers_{workers}", fastest(times, bare)
        report(name, times, limit=limit, unit="rows", amount=rows, gib=gib, workers=workers, page_cache="warm")


if __name__ == "__main__":
    main()
