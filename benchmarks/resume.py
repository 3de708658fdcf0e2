"""How long does the first batch take after a resume at 90 % of an epoch, against the first batch of a new loader?

python benchmarks/resume.py [GiB] [runs]

The inventory is known, the page cache warm. Threads, with chunks shuffled and with rows shuffled too.
"""

import sys

from data import tabular
from measure import alternate, report

from torch_dataloader_utils import StructuredDataset, scan_files


def first_batch(folder, inventory, state=None, **options):
    loader, _ = StructuredDataset.create_dataloader(str(folder), inventory=inventory, num_workers=0, **options)
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    next(batches)
    batches.close()


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    folder = tabular(gib)
    inventory = scan_files(str(folder))
    for name, options in {
        "resume": {"shuffle": "chunks"},
        "resume_shuffled_rows": {"shuffle": True, "shuffle_rows": 65_536},
    }.items():
        loader, _ = StructuredDataset.create_dataloader(str(folder), inventory=inventory, num_workers=0, **options)
        for step, _ in enumerate(loader, start=1):
            if step == len(loader) * 9 // 10:
                break
        state = loader.state_dict()
        cases = {
            "limit: first batch of a new loader": lambda o=options: first_batch(folder, inventory, **o),
            "first batch after a resume at 90 %": lambda o=options, s=state: first_batch(folder, inventory, s, **o),
            "the same on 3 ranks, other batch size": lambda o=options, s=state: first_batch(
                folder, inventory, s, **o, num_ranks=3, rank=1, batch_size=500
            ),
        }
        report(name, alternate(cases, runs=runs), limit=next(iter(cases)), unit="batches", amount=1)


if __name__ == "__main__":
    main()
