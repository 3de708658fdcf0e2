"""Measurements of `tdu bench`: passes of a loader, and bare reading of the same row groups, which limits its speed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any

import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import FileFormat, Inventory
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._runtime.parallel import map_in_order, threads_for
from torch_dataloader_utils.cli.source import DataSource
from torch_dataloader_utils.stream.loader import TableDataLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One timed run: rows delivered in so many seconds; metrics: of a loader."""

    rows: int
    seconds: float
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def rows_per_second(self) -> float:
        """Rows divided by seconds."""
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to load. num_workers: 0 is threads of the trainer's process."""

    num_workers: int
    batch_size: int

    @property
    def engine(self) -> str:
        """The threads or processes of this setting, in words."""
        return "threads" if self.num_workers == 0 else "processes"


def build_loader(source: DataSource, inventory: Inventory, setting: Setting, **options: Any) -> TableDataLoader:
    """A loader whose worker processes stay alive from run to run, so that their start is not timed."""
    dataset = source.dataset(inventory, num_workers=setting.num_workers, batch_size=setting.batch_size, **options)
    return TableDataLoader(dataset, num_workers=setting.num_workers, persistent_workers=setting.num_workers > 0)


def time_loader(loader: TableDataLoader, epoch: int, most_seconds: float) -> Rate:
    """One pass, or the first `most_seconds` of it."""
    loader.set_epoch(epoch)
    before = loader.metrics()
    begin = perf_counter()
    batches = iter(loader)
    for _ in batches:
        if perf_counter() - begin > most_seconds:
            break
    seconds = perf_counter() - begin
    did = loader.metrics() - before
    batches.close()  # type: ignore[attr-defined]  # a generator
    return Rate(rows=did.rows, seconds=seconds, metrics=did)


def time_bare_reader(inventory: Inventory, source: DataSource, threads: int, most_seconds: float) -> Rate:
    """The limit: row groups decoded in `threads` threads, nothing else done with them; see `describe_limit`."""
    begin = perf_counter()
    rows = 0
    for count in _bare(inventory, source, threads):
        rows += count
        if perf_counter() - begin > most_seconds:
            break
    return Rate(rows=rows, seconds=perf_counter() - begin)


def describe_limit(inventory: Inventory) -> str:
    """The limit, in words: pyarrow where it can read these rows by itself, else our own reader."""
    if _is_plain_parquet(inventory):
        return "pyarrow row groups"
    return "row groups read, no batches"


def _bare(inventory: Inventory, source: DataSource, threads: int) -> Iterator[int]:
    read = _parquet_reader(inventory, source) if _is_plain_parquet(inventory) else _any_reader(inventory, source)
    with threads_for(threads, "tdu-bench") as pool:
        try:
            yield from map_in_order(read, range(inventory.num_groups), pool, max(1, inventory.num_groups))
        except GeneratorExit:
            return  # the time is up: what is under way ends before the next run begins


def _is_plain_parquet(inventory: Inventory) -> bool:
    """Whether pyarrow alone reads the rows that a loader delivers: all rows of local files, under their own names."""
    files = inventory.files
    is_parquet = bool((files.formats == FileFormat.PARQUET).all())
    is_bare = not files.extras and not inventory.row_filter
    return is_parquet and is_bare and inventory.num_files > 0 and "://" not in files.paths[0]


def _parquet_reader(inventory: Inventory, source: DataSource) -> Callable[[int], int]:
    """Row groups as pyarrow reads them, with each footer parsed once."""
    footer = cache(pq.read_metadata)
    partitions = {column.name for column in inventory.files.partitions}
    stored = None if source.columns is None else [name for name in source.columns if name not in partitions]

    def read(group: int) -> int:
        task = inventory.task(group)
        file = pq.ParquetFile(task.path, metadata=footer(task.path), pre_buffer=False)
        return int(file.read_row_group(task.ordinal, columns=stored, use_threads=False).num_rows)

    return read


def _any_reader(inventory: Inventory, source: DataSource) -> Callable[[int], int]:
    """Our reader and nothing after it, where pyarrow alone cannot read what the inventory names."""
    reader = source.reader(inventory)
    return lambda group: int(reader.read(inventory.task(group)).num_rows)
