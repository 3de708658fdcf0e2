"""The limits: the best bare readers of the same files on all cores, straight to tensors."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from peer_readers import available, tensors_of

CORES = len(os.sched_getaffinity(0))

Group = tuple[Path, int, pq.FileMetaData]
Cases = dict[str, Callable[[], int]]


def groups_of(folder: Path) -> list[Group]:
    """Every row group of the Parquet files of a folder, with its file's footer."""
    footers = [(path, pq.read_metadata(path)) for path in sorted(folder.glob("*.parquet"))]
    return [(path, group, footer) for path, footer in footers for group in range(footer.num_row_groups)]


def in_threads(read: Callable[[Any], int], tasks: Iterable[Any], threads: int = CORES) -> int:
    """The sum of what `read` counts in all tasks, one thread a core."""
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, tasks))


def read_group(task: Group) -> int:
    """One row group to tensors, in this thread; its rows."""
    path, group, footer = task
    return _group_rows(pq.ParquetFile(path, metadata=footer, pre_buffer=False), group)


def read_few(columns: int, task: Group) -> int:
    """As `read_group`, `columns` columns a call: the bytes that it decodes from stay in the core's cache."""
    path, group, footer = task
    file = pq.ParquetFile(path, metadata=footer, pre_buffer=False)
    names, tensors = file.schema_arrow.names, []
    for first in range(0, len(names), columns):
        table = file.read_row_group(group, names[first : first + columns], use_threads=False)
        tensors += [torch.from_dlpack(column.chunk(0)) for column in table.columns]
    return len(tensors[0])


def read_file(path: Path) -> int:
    """All row groups of a file to tensors, in this thread; their rows."""
    file = pq.ParquetFile(path, pre_buffer=False)
    return sum(_group_rows(file, group) for group in range(file.num_row_groups))


def read_lists(task: Group) -> int:
    """One row group of one column of lists to tensors of values and offsets, in this thread; its values."""
    path, group, footer = task
    table = pq.ParquetFile(path, metadata=footer, pre_buffer=False).read_row_group(group, use_threads=False)
    column = table.column(0).chunk(0)
    torch.from_dlpack(column.offsets)
    return len(torch.from_dlpack(column.values))


def pyarrow_threads(folder: Path) -> int:
    """All row groups, one thread a core, footers included."""
    return in_threads(read_group, groups_of(folder))


def pyarrow_files(folder: Path) -> int:
    """All files, one thread a core: what suits many files of one row group."""
    return in_threads(read_file, sorted(folder.glob("*.parquet")))


def polars_at_once(folder: Path) -> int:
    """All files as one frame of polars, whose threads read them side by side, every column to one tensor."""
    return _rows(tensors_of(sorted(folder.glob("*.parquet")), joined=True))


def polars_frames(folder: Path) -> int:
    """The same files through polars, file by file, every column to a tensor for each row group."""
    return sum(_rows(tensors_of(path)) for path in sorted(folder.glob("*.parquet")))


def table_limits(folder: Path) -> Cases:
    """The ways that may be the limit of a table with large row groups, whose footers are known; see `measure.fastest`.

    Polars reads them each time: it takes no footer that is known.
    """
    groups = groups_of(folder)
    pyarrow = {
        "limit: pyarrow, a thread a core": partial(in_threads, read_group, groups),
        "limit: pyarrow, 4 columns a call": partial(in_threads, partial(read_few, 4), groups),
    }
    return pyarrow | if_installed({"limit: polars, file by file": partial(polars_frames, folder)})


def polars_lists(folder: Path) -> int:
    """One column of lists through polars, file by file, to tensors of values and offsets; its values."""
    import polars as pl

    count = 0
    for path in sorted(folder.glob("*.parquet")):
        for part in pl.read_parquet(path).to_series().get_chunks():
            column = part.to_arrow()
            torch.from_dlpack(column.offsets)
            count += len(torch.from_dlpack(column.values))
    return count


def if_installed(polars: Cases) -> Cases:
    """These cases where polars can be imported; otherwise none, and a line that says so."""
    if available("polars"):
        return polars
    print("polars is not installed: the limit is pyarrow alone")
    return {}


def _group_rows(file: pq.ParquetFile, group: int) -> int:
    table = file.read_row_group(group, use_threads=False)
    tensors = [torch.from_dlpack(column.chunk(0)) for column in table.columns]
    return len(tensors[0])


def _rows(columns: dict[str, list[torch.Tensor]]) -> int:
    return sum(map(len, next(iter(columns.values()))))
