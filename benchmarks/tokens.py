"""How fast do documents (list<int32>) reach the trainer as values and offsets?

python benchmarks/tokens.py [million tokens] [runs]
"""

import sys

from bare import groups_of, in_threads, read_lists
from data import tokens
from measure import alternate, report

from torch_dataloader_utils import StructuredDataset


def bare_lists(folder):
    """The limit; it reads the footers too, as a pass here begins with a scan."""
    return in_threads(read_lists, groups_of(folder))


def drain(folder, **options):
    loader, _ = StructuredDataset.create_dataloader(str(folder), **options)
    return sum(len(batch["tokens"].values) for batch in loader)


def main() -> None:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = tokens(millions)
    count = bare_lists(folder)
    cases = {"limit: pyarrow, a thread a core": lambda: bare_lists(folder)}
    for batch in (64, 512):
        cases[f"threads, ragged, batch {batch}"] = lambda b=batch: drain(folder, num_workers=0, batch_size=b)
        cases[f"2 processes, ragged, batch {batch}"] = lambda b=batch: drain(folder, num_workers=2, batch_size=b)
    report("tokens", alternate(cases, runs=runs), limit=next(iter(cases)), unit="tokens", amount=count)


if __name__ == "__main__":
    main()
