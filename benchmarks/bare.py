"""The limits: the best bare readers of the same files on all cores, straight to tensors."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import torch
from peer_readers import available

CORES = len(os.sched_getaffinity(0))


def groups_of(folder: Path) -> list[tuple[Path, int, pq.FileMetaData]]:
    """Every row group of the Parquet files of a folder, with its file's footer."""
    footers = [(path, pq.read_metadata(path)) for path in sorted(folder.glob("*.parquet"))]
    return [(path, group, footer) for path, footer in footers for group in range(footer.num_row_groups)]


def read_group(task: tuple[Path, int, pq.FileMetaData]) -> int:
    """One row group to tensors, in this thread."""
    path, group, footer = task
    file = pq.ParquetFile(path, metadata=footer, pre_buffer=False)
    table = file.read_row_group(group, use_threads=False)
    tensors = [torch.from_dlpack(column.chunk(0)) for column in table.columns]
    return len(tensors[0])


def pyarrow_threads(folder: Path, threads: int = CORES) -> int:
    """All row groups, one thread a core."""
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read_group, groups_of(folder)))


def polars_at_once(folder: Path) -> int:
    """All files as one frame of polars, whose threads read them side by side, every column to a tensor."""
    return _polars_rows(sorted(folder.glob("*.parquet")))


def polars_frames(folder: Path) -> int:
    """The same files through polars, file by file, every column to a tensor."""
    return sum(map(_polars_rows, sorted(folder.glob("*.parquet"))))


def limits(folder: Path, name: str, polars: Callable[[Path], int]) -> dict[str, Callable[[], int]]:
    """What may be the limit: pyarrow and, where it is installed, `polars` under its name; see `measure.fastest`."""
    cases = {"limit: pyarrow, a thread a core": partial(pyarrow_threads, folder)}
    if available("polars"):
        cases[name] = partial(polars, folder)
    else:
        print("polars is not installed: limit is pyarrow alone")
    return cases


def _polars_rows(source: Path | list[Path]) -> int:
    import polars as pl

    frame = pl.read_parquet(source)
    tensors = [torch.from_numpy(frame[name].to_numpy(writable=True)) for name in frame.columns]
    return len(tensors[0])
