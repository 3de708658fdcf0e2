"""`shuffle_table`: scatter, gather, compare both sides, publish."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.batches import take_rows
from torch_dataloader_utils._core.arguments import check_executor, check_function, check_integer, parse_bytes
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.paths import check_path, redact
from torch_dataloader_utils._core.row_group_task import GroupRows
from torch_dataloader_utils._core.units import RowSpace
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._runtime.threads import Executor
from torch_dataloader_utils._store import is_local
from torch_dataloader_utils.datasets.files import Files
from torch_dataloader_utils.datasets.open import open_loader
from torch_dataloader_utils.errors import ConfigError, CorruptFileError, NoDataError
from torch_dataloader_utils.rewrite.checksums import add_sums
from torch_dataloader_utils.rewrite.layout import choose_writing, in_schema, with_required
from torch_dataloader_utils.rewrite.order import RowOrder
from torch_dataloader_utils.rewrite.output import OutputJob, OutputReceipt
from torch_dataloader_utils.rewrite.pending import PendingTable
from torch_dataloader_utils.rewrite.spill import (
    SpillFile,
    SpillJob,
    SpillReceipt,
    check_writable,
    output_sizes,
    plain_schema,
    read_spilled,
)
from torch_dataloader_utils.rewrite.work import Work
from torch_dataloader_utils.stream.dataset import TableDataset
from torch_dataloader_utils.tables.reader import Reader

# In the key of every shuffle: raise it when the same rows would be written in another order or layout.
_VERSION = 2
_MIB = 1 << 20
_LEAST_GROUP_BYTES, _MOST_GROUP_BYTES, _GROUPS = 8 * _MIB, 128 * _MIB, 1024
_SAMPLE_ROWS = 16_384
# Rows that are read of a few row groups to know the bytes of a decoded row.
_MEASURED_ROWS = 4_096
# An output job holds its rows as fragments, joined, and a row group of them in order.
_SHARES_OF_MEMORY = 3
# Text of joined fragments has 32-bit offsets.
_MOST_HELD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleReport:
    """Report of a shuffled table.

    Attributes:
        path: directory of the table.
        num_rows: number of rows.
        num_files: number of Parquet files.
        num_bytes: number of bytes of all files.
        checksums: name and checksum of each column, the same of the rows read and of the rows written.
        reused_jobs: number of jobs that an earlier call had finished.
    """

    path: str
    num_rows: int
    num_files: int
    num_bytes: int
    checksums: tuple[tuple[str, str], ...]
    reused_jobs: int


def shuffle_table(
    source: Files | TableDataset,
    target: str | os.PathLike[str],
    *,
    seed: int = 42,
    memory: int | str = "1GiB",
    file_bytes: int | str = "256MiB",
    row_group_bytes: int | str | None = None,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> ShuffleReport:
    """Write the rows of a table in random order, as Parquet files of a layout that loaders read fast.

    The order of rows depends on the inventory of the source and on `seed` alone. The rows are those that a loader
    delivers, after deletes and filter. The target appears as a whole, after the rows that were written have been read
    back and compared with the rows that were read. After a failure the same call continues; the work so far lies in
    `<target>.shuffling`, which takes as much disk as the decoded rows until the target appears. A column of the files
    that loaders cannot deliver is an error, unless columns= of the data set names the columns to write.

    Args:
        source: path of files or a table, as `open_loader` accepts it; or a data set with columns and filters, such as
            StructuredDataset("trips/", columns=["fare"], output_format="arrow").
        target: path of a local directory that does not exist or is empty.
        seed: number that chooses the order.
        memory: bytes of rows that a job may hold, an int or text such as "4GiB". A process needs some 200 MiB more, and
            a row group that is not Parquet, or has a filter or deletes by key, is decoded whole.
        file_bytes: decoded bytes of an output file, about.
        row_group_bytes: decoded bytes of a row group, about; None: a 1,024th of the table, from 8 MiB to 128 MiB.
        executor: executor of the jobs, such as ProcessPoolExecutor(4), each with its own `memory`; None runs the jobs
            here, one by one.
        on_progress: function called after each job with (jobs done, jobs in all).

    Returns:
        The report. If the target is the result of the same call, nothing is written.

    Raises:
        ConfigError: a target that exists with other content, lies in a store or inside the source, or is being written
            by another process; row counts that are not known; columns that no loader delivers; memory below three row
            groups; another argument out of range.
        NoDataError: no rows. DataError, StoreError: the source cannot be read.
        UnsupportedFeatureError: a column that Parquet cannot hold.
        CorruptFileError: the rows that were written are not the rows that were read.
        OSError: the disk is full or failed.
    """
    check_executor(executor)
    check_function("on_progress", on_progress)
    check_integer("seed", seed)
    sizes = _Sizes(
        memory=parse_bytes("memory", memory, least=1),
        file_bytes=parse_bytes("file_bytes", file_bytes, least=1),
        row_group_bytes=None if row_group_bytes is None else parse_bytes("row_group_bytes", row_group_bytes, least=1),
    )
    dataset = source if isinstance(source, TableDataset) else open_loader(source, output_format="arrow").dataset
    shuffle = _Shuffle.of(dataset, _local(target), seed, sizes)
    record = shuffle.table.finished()
    if record is None:
        with shuffle.table.opened():
            record = shuffle.run(executor, on_progress)
    return ShuffleReport(
        path=str(shuffle.table.target),
        num_rows=record["rows"],
        num_files=len(record["files"]),
        num_bytes=sum(record["files"].values()),
        checksums=tuple(record["checksums"].items()),
        reused_jobs=record.get("reused_jobs", record["jobs"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Sizes in bytes of decoded rows; see `shuffle_table`."""

    memory: int
    file_bytes: int
    row_group_bytes: int | None

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that one step of a job works on."""
        return min(self.memory // _SHARES_OF_MEMORY, _MOST_HELD_BYTES)

    def cut(self, num_rows: int, row_bytes: float) -> "_Cut":
        """Return how many output files there are, and how many rows a row group has at most.

        row_bytes: Decoded bytes of a row, on average.

        Raises:
            ConfigError: memory does not hold three row groups.
        """
        num_bytes = num_rows * row_bytes
        group_bytes = self.row_group_bytes or min(max(num_bytes / _GROUPS, _LEAST_GROUP_BYTES), _MOST_GROUP_BYTES)
        group_bytes = max(1, min(group_bytes, self.file_bytes, num_bytes))
        if group_bytes > self.held_bytes:
            raise ConfigError(
                f"memory={self.memory} holds less than {_SHARES_OF_MEMORY} row groups of {int(group_bytes)} bytes. "
                "Pass more memory, or a smaller row_group_bytes."
            )
        outputs = max(1, min(num_rows, round(num_bytes / self.file_bytes)))
        return _Cut(self.file_bytes, row_bytes, outputs, max(1, int(group_bytes / row_bytes)))


class _Cut(NamedTuple):
    """Cut of the rows into files and row groups. The bytes are decoded bytes; `group_rows` is the most of any group."""

    file_bytes: int
    row_bytes: float
    outputs: int
    group_rows: int


def _local(target: str | os.PathLike[str]) -> Path:
    path = check_path("target", target)
    if not is_local(path):
        raise ConfigError(
            f"target={redact(path)} is not a local directory. Write to a local or shared directory, and copy the "
            'result with the tool of the store, such as "aws s3 cp --recursive". The source may lie in a store.'
        )
    return Path(path.removeprefix("file://")).expanduser().absolute()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shuffle:
    """Everything that the jobs depend on.

    starts: Number of the first row of each row group, and of all rows.
    """

    inventory: Inventory
    reader: Reader
    starts: list[int]
    schema: pa.Schema
    order: RowOrder
    table: PendingTable
    sizes: _Sizes
    cut: _Cut

    @classmethod
    def of(cls, dataset: TableDataset, target: Path, seed: int, sizes: _Sizes) -> "_Shuffle":
        """Plan a shuffle. Reads some rows, to know how many bytes they take."""
        inventory, reader = _stored_rows(dataset)
        _check_outside(inventory, target)
        starts = RowSpace.of(inventory.groups).group_start.tolist()
        schema, row_bytes = _measure(inventory, reader)
        cut = sizes.cut(starts[-1], row_bytes)
        facts = (inventory.fingerprint(), schema.serialize().to_pybytes().hex(), seed, *cut)
        digest = blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
        job = {"version": _VERSION, "seed": seed, "outputs": cut.outputs, "digest": digest}
        return cls(
            inventory=inventory,
            reader=reader,
            starts=starts,
            schema=schema,
            order=RowOrder(seed=seed, outputs=cut.outputs),
            table=PendingTable(target, job),
            sizes=sizes,
            cut=cut,
        )

    def run(self, executor: Executor | None, on_progress: OnProgress | None) -> dict[str, Any]:
        """Run both passes, compare both sides and publish the table. Return its record."""
        spills = list(self._spill_jobs())
        work = Work(executor, on_progress, len(spills) + self.order.outputs)
        spilled = work.run(spills)
        jobs = self._output_jobs(spilled)
        written = work.run(jobs)
        checksums = self._compare(spilled, written)
        facts = {"source": self.inventory.source, "rows": self.starts[-1], "checksums": checksums, "jobs": work.total}
        record = self.table.publish(facts)
        return {**record, "reused_jobs": work.reused}

    def _spill_jobs(self) -> Iterator[SpillJob]:
        """Yield a job for each run of neighbouring row groups with the rows of an output file, or one row group."""
        groups: list[int] = []
        rows, number = 0, 0
        for group in np.flatnonzero(self.inventory.groups.live_rows).tolist():
            groups.append(group)
            rows += int(self.inventory.groups.live_rows[group])
            if rows * self.cut.row_bytes >= self.cut.file_bytes:
                yield self._spill_job(number, groups)
                groups, rows, number = [], 0, number + 1
        if groups:
            yield self._spill_job(number, groups)

    def _spill_job(self, number: int, groups: Sequence[int]) -> SpillJob:
        return SpillJob(
            receipt=self.table.receipt(f"spill-{number:05d}"),
            reader=self.reader,
            groups=tuple((self.inventory.task(group), self.starts[group]) for group in groups),
            order=self.order,
            schema=self.schema.serialize().to_pybytes(),
            held_bytes=self.sizes.held_bytes,
            read_rows=max(1, int(self.sizes.held_bytes / 2 / self.cut.row_bytes)),
        )

    def _output_jobs(self, receipts: Sequence[SpillReceipt]) -> list[OutputJob]:
        directory, outputs = self.table.directory, self.cut.outputs
        spills = tuple(SpillFile(str(directory / each.file), each.index_start, each.rounds) for each in receipts)
        written = with_required(self.schema, {tuple(place) for receipt in receipts for place in receipt.nulls})
        job = partial(
            OutputJob,
            spills=spills,
            outputs=outputs,
            group_rows=self.cut.group_rows,
            spilled=self.schema.serialize().to_pybytes(),
            written=written.serialize().to_pybytes(),
            writing=self._choose_writing(spills, written),
        )
        jobs = []
        for output, (num_rows, num_bytes) in enumerate(output_sizes(spills, outputs).T.tolist()):
            path, edges = self.table.output(output), self._edges(output, num_bytes)
            receipt = self.table.receipt(path.stem)
            jobs.append(job(path=path, receipt=receipt, output=output, edges=edges, num_rows=num_rows))
        return jobs

    def _choose_writing(self, spills: Sequence[SpillFile], written: pa.Schema) -> dict[str, Any]:
        """Return the writer's options for the first rows of the first output file."""
        count = min(_SAMPLE_ROWS, self.cut.group_rows)
        stop = max(1, min(self.order.edge(1), (count << 64) // self.starts[-1]))
        sample = read_spilled(spills, 0, self.cut.outputs, self.schema, 0, stop)
        return choose_writing(in_schema(take_rows(sample.rows, sample.order), written))

    def _edges(self, output: int, num_bytes: int) -> tuple[int, ...]:
        """Return the words at which the rows of an output file are divided into steps that fit into memory."""
        steps = max(1, -(-num_bytes // self.sizes.held_bytes))
        low, high = self.order.edge(output), self.order.edge(output + 1)
        return (*(low + (high - low) * step // steps for step in range(steps)), high)

    def _compare(self, spilled: Sequence[SpillReceipt], written: Sequence[OutputReceipt]) -> dict[str, str]:
        """Return the checksum of each column.

        Raises:
            CorruptFileError: both sides differ.
        """
        read_rows, written_rows = (sum(each.rows for each in side) for side in (spilled, written))
        read, back = (reduce(add_sums, [each.sums for each in side]) for side in (spilled, written))
        wrong = [name for name, old, new in zip(self.schema.names, read, back, strict=True) if old != new]
        if wrong or not read_rows == written_rows == self.starts[-1]:
            raise CorruptFileError(
                f"{self.table.directory}: of {self.starts[-1]:,} rows, {read_rows:,} were read and {written_rows:,} "
                f"written, and the values differ in {wrong or 'no column'}. A disk or memory has damaged a file. "
                "Remove the directory and run the shuffle again."
            )
        return {name: f"{total:016x}" for name, total in zip(self.schema.names, read, strict=True)}


def _stored_rows(dataset: TableDataset) -> tuple[Inventory, Reader]:
    """Return the inventory of a data set, and a reader of its columns."""
    reader, inventory = dataset.pipeline.reader, dataset.planner.inventory
    if not isinstance(reader, Reader) or dataset.pipeline.functions or dataset.planner.options.stop_row is not None:
        raise ConfigError(
            "A shuffle writes stored rows: pass a whole data set, not a shard, without pack, transform and collate_fn."
        )
    if not inventory.rows_are_known:
        raise ConfigError("A shuffle needs known row counts: leave count_rows=False out.")
    if inventory.left_out:
        raise ConfigError(
            f"{inventory.source}: a shuffle writes all columns, and {'; '.join(inventory.left_out)}. Read them, or "
            "name the columns to write with columns= of the data set."
        )
    if not inventory.num_rows:
        raise NoDataError(f"{inventory.source} has no rows to shuffle. Check the path and the filter.")
    return inventory, reader


def _check_outside(inventory: Inventory, target: Path) -> None:
    source = Path(inventory.source.partition("**")[0])
    if source.is_dir() and source.resolve() in target.resolve().parents:
        raise ConfigError(
            f"{target} would lie inside its source {source}, whose readers would read rows twice. Pass another target."
        )


def _measure(inventory: Inventory, reader: Reader) -> tuple[pa.Schema, float]:
    """Return the plain schema of the rows, and the bytes of a row: of the first rows of three row groups.

    Raises:
        UnsupportedFeatureError: a column that Parquet cannot hold.
    """
    live = np.flatnonzero(inventory.groups.live_rows)
    picked = {int(live[at]) for at in (0, len(live) // 2, len(live) - 1)}
    rows = [reader.read(inventory.task(group), GroupRows(0, _MEASURED_ROWS)) for group in sorted(picked)]
    count = sum(each.num_rows for each in rows)
    schema = plain_schema(rows[0].schema)
    for each in rows:
        check_writable(each, schema)
    return schema, max(1.0, sum(each.nbytes for each in rows) / count)
