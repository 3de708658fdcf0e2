"""How fast do other loaders read the same table into tensors? Only those that are installed are measured.

python benchmarks/peers.py [GiB] [runs]
"""

import importlib.util
import sys

from bare import polars_frames, pyarrow_threads
from data import tabular
from measure import alternate, report
from tabular import passes
from torch.utils.data import DataLoader


def as_it_is(batch):
    """Collates nothing: the batches are made already."""
    return batch


def huggingface(folder, batch, workers):
    """Streamed Parquet of `datasets`, formatted as torch tensors; with workers, through DataLoader."""
    import datasets

    files = sorted(str(path) for path in folder.glob("*.parquet"))
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True).with_format("torch")
    if workers == 0:
        return sum(len(rows["label"]) for rows in stream.iter(batch_size=batch))
    loader = DataLoader(stream.batch(batch), batch_size=None, num_workers=workers, collate_fn=as_it_is)
    return sum(len(rows["label"]) for rows in loader)


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 0.25
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = tabular(gib)
    rows = pyarrow_threads(folder)
    cases = {"limit: pyarrow, a thread a core": lambda: pyarrow_threads(folder)}
    if importlib.util.find_spec("polars"):
        cases["polars, file by file"] = lambda: polars_frames(folder)
    for batch in (1024, 8192):
        cases[f"this library, threads, batch {batch}"] = passes(folder, num_workers=0, batch_size=batch)
        processes = {"num_workers": 2, "persistent_workers": True, "batch_size": batch}
        cases[f"this library, 2 processes, batch {batch}"] = passes(folder, **processes)
        if importlib.util.find_spec("datasets"):
            cases[f"datasets, streaming, batch {batch}"] = lambda b=batch: huggingface(folder, b, 0)
            cases[f"datasets, streaming, 2 processes, batch {batch}"] = lambda b=batch: huggingface(folder, b, 2)
    report("peers", alternate(cases, runs=runs), limit=next(iter(cases)), unit="rows", amount=rows, gib=gib)


if __name__ == "__main__":
    main()
