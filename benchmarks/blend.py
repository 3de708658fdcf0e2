"""The cost of blending: two streams blended, against the same two drained one after the other.

python benchmarks/blend.py [GiB of the table] [runs]

Both halves of a table of 51 columns, batches of 1,024 rows, in threads. Wall clock and processor seconds of the process
are both shown: on a machine with other work the second says more. The picks alone are measured too, without any data.
"""

import sys

from data import tabular
from measure import alternate, report, save

from torch_dataloader_utils import StructuredDataset, blend, scan_files
from torch_dataloader_utils.megatron.corpora import blend_by_weight

ROWS = 1024
PICKS = 10_000_000


def drain(loader) -> int:
    """One pass; touches every batch and nothing in it."""
    return sum(batch.num_rows for batch in loader)


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    paths = sorted(map(str, tabular(gib).glob("*.parquet")))
    halves = [paths[0::2], paths[1::2]]
    inventories = [scan_files(half) for half in halves]

    def loaders():
        return [
            StructuredDataset.create_dataloader(half, inventory=inventory, batch_size=ROWS, num_workers=0)[0]
            for half, inventory in zip(halves, inventories, strict=True)
        ]

    def blended(per, weights=(0.5, 0.5)):
        return drain(blend(loaders(), weights, per=per, stop="all_exhausted"))

    limit = "sources one after the other"
    cases = {
        limit: lambda: sum(map(drain, loaders())),
        "blend, whole batches": lambda: blended("batch"),
        "blend, mixed rows": lambda: blended("sample"),
    }
    rows = cases[limit]()
    for name, clock in (("blend", "wall"), ("blend_processor", "processor")):
        times = alternate(cases, runs=runs, clock=clock)
        report(name, times, limit=limit, unit="rows", amount=rows, clock=clock, gib=gib, page_cache="warm")
    picks = alternate({"picks": lambda: blend_by_weight([0.7, 0.2, 0.1], PICKS)}, runs=runs, clock="processor")["picks"]
    print(f"  {PICKS / min(picks):,.0f} picks of three data sets a processor second, map-style index")
    save("blend_picks", picks=PICKS, processor_seconds=picks)


if __name__ == "__main__":
    main()
