"""How fast do documents (list<int32>) reach the trainer as values and offsets?

python benchmarks/tokens.py [million tokens] [runs]

A pass begins with a scan, and starts its workers; the limits read the footers too.
"""

import sys

from bare import groups_of, if_installed, in_threads, polars_lists, read_lists
from data import tokens
from measure import alternate, fastest, report

from torch_dataloader_utils import StructuredDataset


def bare_lists(folder):
    """All lists by pyarrow, one thread a core, footers included; their values."""
    return in_threads(read_lists, groups_of(folder))


def drain(folder, **options):
    loader, _ = StructuredDataset.create_dataloader(str(folder), **options)
    return sum(len(batch["tokens"].values) for batch in loader)


def main() -> None:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = tokens(millions)
    count = bare_lists(folder)
    bare = {"limit: pyarrow, a thread a core": lambda: bare_lists(folder)}
    bare |= if_installed({"limit: polars, file by file": lambda: polars_lists(folder)})
    cases = dict(bare)
    for batch in (64, 512):
        cases[f"threads, ragged, batch {batch}"] = lambda b=batch: drain(folder, num_workers=0, batch_size=b)
        cases[f"2 processes, ragged, batch {batch}"] = lambda b=batch: drain(folder, num_workers=2, batch_size=b)
    times = alternate(cases, runs=runs)
    report("tokens", times, limit=fastest(times, bare), unit="tokens", amount=count, page_cache="warm")


if __name__ == "__main__":
    main()
