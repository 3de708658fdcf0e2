"""The cost of lanes, which make global batches the same on any number of ranks.

python benchmarks/lanes.py [GiB] [runs]

The limit is the same loader without lanes. Batches of 1,024 rows are taken as micro-batches, one lane after the other.
"""

import sys

from data import tabular
from measure import alternate, report
from tabular import passes

from torch_dataloader_utils import Lanes

BATCH = 1024


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = tabular(gib)
    options = {"batch_size": BATCH, "num_workers": 0, "shuffle": "chunks"}
    limit = "no lanes"
    cases = {limit: passes(folder, **options)}
    for num_lanes, lane_rows in [(8, BATCH), (8, 256), (16, 128)]:
        name = f"{num_lanes} lanes, micro-batches of {lane_rows} rows"
        cases[name] = passes(folder, lanes=Lanes(num_lanes, rows=lane_rows), **options)
    rows = cases[limit]()
    report("lanes", alternate(cases, runs=runs), limit=limit, unit="rows", amount=rows, gib=gib, page_cache="warm")


if __name__ == "__main__":
    main()
