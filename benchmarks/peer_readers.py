"""Other loaders that read Parquet themselves. Each function gives a pass: a call that reads everything once, in rows.

Loaders are built, and worker processes kept, outside of the pass, as ours are; nothing is looked at in a batch. Every
function takes the folder, the rows of a batch and the number of worker processes.
"""

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Pass = Callable[[], int]
NAMESAKE = os.environ.get("BENCH_NAMESAKE", "")


def files_of(folder: Path) -> list[str]:
    """The Parquet files of a folder, in order."""
    return sorted(str(path) for path in folder.glob("*.parquet"))


def drain(batches: Iterable[Mapping[str, Any]]) -> int:
    """Takes all batches; gives their rows."""
    return sum(len(batch["label"]) for batch in batches)


def as_it_is(batch: Any) -> Any:
    """Collates nothing: the batches are made already."""
    return batch


def processes(workers: int, *, start: str = "fork") -> dict[str, Any]:
    """The arguments of a DataLoader about its workers."""
    if workers == 0:
        return {"num_workers": 0}
    return {"num_workers": workers, "persistent_workers": True, "multiprocessing_context": start}


def tensors_of(source: Any, *, joined: bool = False) -> dict[str, list[torch.Tensor]]:
    """Parquet files through polars: a tensor for each column and row group, not copied, or one a column, `joined`."""
    import polars as pl

    frame = pl.read_parquet(source)
    columns = (frame.rechunk() if joined else frame).get_columns()
    return {column.name: [torch.from_dlpack(part.to_arrow()) for part in column.get_chunks()] for column in columns}


class PolarsBatches(IterableDataset):
    """A loader written by hand: a file as a frame, its columns as tensors, slices of each row group's as batches."""

    def __init__(self, files: list[str], batch: int) -> None:
        self.files, self.batch = files, batch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        mine = self.files if worker is None else self.files[worker.id :: worker.num_workers]
        for file in mine:
            columns = tensors_of(file)
            slices = [chain.from_iterable(part.split(self.batch) for part in parts) for parts in columns.values()]
            for batch in zip(*slices, strict=True):
                yield dict(zip(columns, batch, strict=True))


def polars(folder: Path, batch: int, workers: int) -> Pass:
    """Threads of polars do not outlive a fork, hence spawned workers."""
    loader = DataLoader(PolarsBatches(files_of(folder), batch), batch_size=None, **processes(workers, start="spawn"))
    return lambda: drain(loader)


def datasets(folder: Path, batch: int, workers: int) -> Pass:
    """Streamed Parquet of `datasets`, formatted as torch tensors; with workers, through DataLoader."""
    import datasets as hf

    hf.disable_progress_bars()
    stream = hf.load_dataset("parquet", data_files=files_of(folder), split="train", streaming=True).with_format("torch")
    if workers == 0:
        return lambda: drain(stream.iter(batch_size=batch))
    loader = DataLoader(stream.batch(batch), batch_size=None, collate_fn=as_it_is, **processes(workers))
    return lambda: drain(loader)


def ray(folder: Path, batch: int, workers: int) -> Pass:
    """Ray Data on a local cluster of so many CPUs, which stays up, and idle, while others are measured."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray.data

    if not ray.is_initialized():
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
    table = ray.data.read_parquet(files_of(folder))
    return lambda: drain(table.iter_torch_batches(batch_size=batch, device="cpu"))


def litdata_parquet(folder: Path, batch: int, workers: int) -> Pass:
    """Parquet through litdata, row by row as numbers of Python; it writes an index, hence a folder of its own."""
    import litdata
    from litdata.streaming.item_loader import ParquetLoader

    indexed = folder.with_name(f"{folder.name}-indexed")
    if not (indexed / "index.json").exists():
        shutil.copytree(folder, indexed, copy_function=os.link, dirs_exist_ok=True)
        litdata.index_parquet_dataset(str(indexed))
    stream = litdata.StreamingDataset(str(indexed), item_loader=ParquetLoader())
    loader = litdata.StreamingDataLoader(stream, batch_size=batch, **processes(workers, start="spawn"))
    return lambda: drain(loader)


def namesake(folder: Path, batch: int, workers: int) -> Pass:
    """The package index's torch-dataloader-utils, in a process of its own, since both are imported by one name.

    BENCH_NAMESAKE names the folder that it was put into: pip install --no-deps --target FOLDER torch-dataloader-utils.
    """
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import peer_readers; peer_readers.serve_namesake()",
            str(folder),
            str(batch),
            str(workers),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([NAMESAKE, str(Path(__file__).parent)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )

    def ask() -> int:
        child.stdin.write("pass\n")
        if not (rows := child.stdout.readline()):
            raise ChildProcessError("the namesake's process ended; what it wrote is above")
        return int(rows)

    return ask


def serve_namesake() -> None:
    """The process of `namesake`: a pass for every line that comes in, until there are none."""
    import torch_dataloader_utils

    if not Path(torch_dataloader_utils.__file__).is_relative_to(NAMESAKE):
        raise ImportError(f"torch_dataloader_utils is {torch_dataloader_utils.__file__}, not in {NAMESAKE!r}")
    folder, batch, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _, rows = torch_dataloader_utils.StructuredDataset.create_dataloader(
        folder, format="parquet", batch_size=batch, num_workers=workers
    )
    loader = DataLoader(rows, batch_size=None, **processes(workers))
    for _ in sys.stdin:
        print(drain(loader), flush=True)


def available(package: str) -> bool:
    """Whether a peer can be imported; the namesake, whether its folder is named."""
    if package == "torch_dataloader_utils":
        return (Path(NAMESAKE) / package).is_dir() if NAMESAKE else False
    return importlib.util.find_spec(package) is not None
