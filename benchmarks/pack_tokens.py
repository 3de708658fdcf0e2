"""How fast does a list column of tokens reach the trainer as packed samples of 2,048 tokens?

python benchmarks/pack_tokens.py [millions of tokens] [runs]

Footers, and the samples of every row group, which are counted once for a data set, are known before the clock starts.
"""

import sys

from bare import groups_of, if_installed, in_threads, polars_lists, read_lists
from data import tokens
from measure import alternate, fastest, report

from torch_dataloader_utils import StructuredDataset, scan_files
from torch_dataloader_utils.samples import pack_tokens

LENGTH = 2048
FIELDS = {"tokens": ("tokens",), "tokens, cu_seqlens": ("tokens", "cu_seqlens"), "all fields": None}


def drain(folder, inventory, batch_size, packing):
    """One pass; touches every batch and nothing in it."""
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), inventory=inventory, batch_size=batch_size, num_workers=0, pack=packing
    )
    return sum(batch.num_rows for batch in loader)


def main() -> None:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    folder = tokens(millions)
    groups, inventory = groups_of(folder), scan_files(str(folder))
    bare = {"limit: pyarrow, a thread a core": lambda: in_threads(read_lists, groups)}
    bare |= if_installed({"limit: polars, file by file": lambda: polars_lists(folder)})
    cases = dict(bare)

    def add(name, batch_size=64, **options):
        fields = options.pop("fields", None)
        chosen = {} if fields is None else {"fields": fields}
        packing = pack_tokens("tokens", LENGTH, **options, **chosen)
        loader, _ = StructuredDataset.create_dataloader(str(folder), inventory=inventory, pack=packing, num_workers=0)
        counted = loader.plan.inventory
        cases[name] = lambda: drain(folder, counted, batch_size, packing)

    for name, fields in FIELDS.items():
        add(f"greedy, {name}, batch 64", fields=fields)
        add(f"greedy, eod, {name}, batch 64", fields=fields, eod=0)
        add(f"greedy, eod, shuffled documents, {name}, batch 64", fields=fields, eod=0, shuffle_documents=True)
    add("greedy, eod, extra token, all fields, batch 64", eod=0, extra_token=True)
    add("greedy, eod, all fields, batch 8", batch_size=8, eod=0)
    add("best fit, eod, tokens, batch 64", fields=("tokens",), eod=0, fill="best_fit")
    add("best fit, eod, all fields, batch 64", eod=0, fill="best_fit")
    count = in_threads(read_lists, groups)
    for name, clock in (("pack_tokens", "wall"), ("pack_tokens_processor", "processor")):
        times = alternate(cases, runs=runs, clock=clock)
        report(
            name,
            times,
            limit=fastest(times, bare),
            unit="tokens",
            amount=count,
            clock=clock,
            length=LENGTH,
            page_cache="warm",
        )


if __name__ == "__main__":
    main()
