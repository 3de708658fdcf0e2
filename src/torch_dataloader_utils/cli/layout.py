"""What the layout of Parquet files costs: a sample of their rows, decoded as it is and written anew in other layouts.

    some row groups → decoded as they are                  } by the loader, one thread, in turn
                    → written to a file for each layout,   }
                      and decoded from there               }

Times and bytes are compared a row, so that a part of a huge row group can stand for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils._core.inventory import FileFormat, Int64s, Inventory
from torch_dataloader_utils._core.option_values import Decoding
from torch_dataloader_utils._store import open_store
from torch_dataloader_utils.cli.source import DataSource
from torch_dataloader_utils.errors import ConfigError, plural
from torch_dataloader_utils.formats.parquet.footer import Footer, parquet_footer
from torch_dataloader_utils.formats.task_source import TaskSource
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.tables.reader import Reader

# Projected bytes. Row groups that are smaller than a sample are taken together, neighbours of one another; of larger
# ones, one, and of that no more than _MOST_BYTES are written anew.
_SAMPLE_BYTES = 16 << 20
_MOST_BYTES = 128 << 20
_MOST_GROUPS = 256
# What row groups that exceed _MOST_BYTES are written as, in between the 64 to 256 MiB that `tdu scan` advises.
_GROUP_BYTES = 64 << 20

_ROUNDS = 5
# Two runs of the same decoding differ by some hundredths on a machine that does other work too.
_HELPS = 1.05
_WORTH = 1.1

_CODECS = ("none", "lz4", "zstd")
_NAMES = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4"}
_DICTIONARIES = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# Encodings of values that have to be asked for.
_CHOSEN = ("BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a file is written. codecs, dictionaries, encodings: by the path of a leaf column.

    required: top-level columns. group_rows: rows of a row group.
    """

    codecs: dict[str, str]
    dictionaries: tuple[str, ...]
    encodings: dict[str, str]
    required: frozenset[str]
    group_rows: int
    int96: bool

    def write(self, rows: pa.Table, path: Path) -> int:
        """Write the rows; returns the stored bytes of their column chunks."""
        fields = [each.with_nullable(each.name not in self.required) for each in rows.schema]
        plain = {path: each for path, each in self.encodings.items() if path not in self.dictionaries}
        pq.write_table(
            rows.cast(pa.schema(fields)),
            path,
            row_group_size=self.group_rows,
            compression=self.codecs,
            use_dictionary=list(self.dictionaries),
            column_encoding=plain or None,
            use_deprecated_int96_timestamps=self.int96,
        )
        metadata = pq.read_metadata(path)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return sum(group.column(leaf).total_compressed_size for group in groups for leaf in range(group.num_columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One other layout. text: what is changed. is_codec: whether nothing but compression is."""

    text: str
    layout: Layout
    is_codec: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A way to lay the rows out, and what it costs: decoding by one thread, and stored bytes, both a row."""

    seconds: float
    bytes: float


def measure_layout(source: DataSource, inventory: Inventory) -> dict[str, Any]:
    """What other layouts would give, as a JSON-able dict.

    Raises:
        ConfigError: files of other formats, a filter, or no rows.
        DataError, StoreError: the sample cannot be read.
    """
    _check(source, inventory)
    groups = sample(inventory)
    part = inventory.take_groups(groups)
    as_it_is = TableDataLoader(source.dataset(part, **_options(part.num_rows)))
    footers, stored_bytes = _footers(as_it_is.dataset.pipeline.reader, part)  # type: ignore[arg-type]
    rows = _rows(as_it_is, part)
    now = present_layout(rows, footers[0], part)
    changes = find_changes(rows, now, part)
    with TemporaryDirectory(prefix="tdu-layout-") as folder:
        base, measured = _measure(as_it_is, stored_bytes, rows, changes, Path(folder))
        kept = _best_of(changes, base, measured)
        if len(kept) > 1:
            changes = [*changes, _together(now, kept)]
            base, measured = _measure(as_it_is, stored_bytes, rows, changes, Path(folder))
    return {
        "sample": part.task(0).where,
        "row_groups": part.num_groups,
        "rows": part.num_rows,
        "stored_bytes": stored_bytes,
        "decode_seconds": base.seconds * part.num_rows,
        "read_by": as_it_is.metrics().describe_chunks(),
        "changes": [_figures(change, base, each) for change, each in zip(changes, measured, strict=True)],
    }


def advice(report: dict[str, Any]) -> str:
    """What to do about it, in one line."""
    changes = [each for each in report["changes"] if not each["only_codec"]]
    best = max(changes, key=lambda each: each["times_as_fast"], default=None)
    if best is None or (best["times_as_fast"] < _WORTH and best["of_bytes"] > 1 / _WORTH):
        return "Nothing to gain by writing these files anew, but by the codec, see above."
    return (
        f"Written anew with {best['change']}: {best['times_as_fast']:.1f} times as fast to decode, "
        f"{best['of_bytes']:.0%} of the bytes."
    )


def sample(inventory: Inventory) -> Int64s:
    """The numbers of the row groups to look at: from one of median size on, as many as make up a sample."""
    sizes = np.where(inventory.groups.physical_rows != 0, inventory.groups.projected_bytes, -1)
    order = np.argsort(sizes, kind="stable")
    filled = order[np.searchsorted(sizes[order], 0) :]
    first = int(filled[len(filled) // 2])
    total = np.cumsum(inventory.groups.projected_bytes[first : first + _MOST_GROUPS])
    count = max(1, int(np.searchsorted(total, _SAMPLE_BYTES, side="right")))
    return np.arange(first, first + count)


def _check(source: DataSource, inventory: Inventory) -> None:
    if not (inventory.files.formats == FileFormat.PARQUET).all():
        raise ConfigError("--layout is for Parquet files, and there are others. Leave it out.")
    if source.filter_text is not None:
        raise ConfigError("--layout looks at whole row groups: leave --filter out, or --layout.")
    if not inventory.rows_are_known or inventory.num_rows == 0:
        raise ConfigError("--layout needs rows to look at, and there are none. Leave it out.")


def _options(num_rows: int) -> dict[str, Any]:
    """One thread decodes; all rows of the sample are one batch."""
    return {
        "output_format": "arrow",
        "batch_size": max(1, num_rows),
        "num_workers": 0,
        "decoding": Decoding(threads=1),
    }


def _rows(loader: TableDataLoader, part: Inventory) -> pa.Table:
    """The first rows of the sample, as many as are written anew, without columns that no file holds."""
    partitions = [column.name for column in part.files.partitions]
    batches: Iterator[pa.RecordBatch] = iter(loader)
    table = pa.Table.from_batches([next(batches)]).drop_columns(partitions)
    share = _MOST_BYTES / max(1, int(part.groups.projected_bytes.sum()))
    return table.slice(0, max(1, int(min(1.0, share) * table.num_rows)))


def _footers(reader: Reader, part: Inventory) -> tuple[list[Footer], int]:
    """The footer of each row group's file, and the stored bytes of the columns that are read."""
    footers, stored_bytes = [], 0
    for number in range(part.num_groups):
        task, spec = part.task(number), reader.spec
        source = TaskSource(
            task=task,
            store=open_store(task.path, spec.access),
            page_checksums=spec.page_checksums,
            max_row_group_bytes=spec.max_row_group_bytes,
        )
        footer = parquet_footer(source)
        group = footer.row_group(task)
        leaves = footer.columns.leaves_of(
            [name for name in reader.projection.stored.names if name in footer.columns.leaves]
        )
        stored_bytes += sum(group.column(leaf).total_compressed_size for leaf in leaves)
        footers.append(footer)
    return footers, stored_bytes


def present_layout(rows: pa.Table, footer: Footer, part: Inventory) -> Layout:
    """The layout of the first row group of the sample. Columns that its file lacks are written as pyarrow does."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows.slice(0, 0), sink)
    written = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    paths = [written.column(index).path for index in range(len(written))]
    leaves = [leaf for name in rows.column_names for leaf in footer.columns.leaves.get(name, ())]
    group, schema = footer.row_group(part.task(0)), footer.metadata.schema
    # Only columns that the files do not have under their names (of Iceberg tables, renamed) make a difference here.
    chunks = list(map(group.column, leaves)) if len(leaves) == len(paths) else []
    known = dict(zip(paths, chunks, strict=False))
    return Layout(
        codecs={path: _codec(known[path].compression) if path in known else "snappy" for path in paths},
        dictionaries=tuple(path for path in paths if path not in known or _DICTIONARIES & set(known[path].encodings)),
        encodings={path: each for path in known for each in _CHOSEN if each in known[path].encodings},
        required=frozenset(
            name
            for name in rows.column_names
            if all(schema.column(leaf).max_definition_level == 0 for leaf in footer.columns.leaves.get(name, (0,)))
        ),
        group_rows=-(-rows.num_rows // part.num_groups),
        int96=any(schema.column(leaf).physical_type == "INT96" for leaf in leaves),
    )


def _codec(name: str) -> str:
    return _NAMES.get(name, name.lower())


def find_changes(rows: pa.Table, now: Layout, part: Inventory) -> list[Change]:
    """The layouts that are worth a look, each with one change to the present one."""
    numbers = [name for name in rows.column_names if _is_number(rows.schema.field(name).type)]
    changes = []
    distinct = [name for name in numbers if name in now.dictionaries and _is_nearly_distinct(rows[name])]
    if distinct:
        left = tuple(path for path in now.dictionaries if path not in distinct)
        text = f"no dictionaries for {plural(len(distinct), 'column')} of mostly distinct numbers"
        changes.append(Change(text=text, layout=replace(now, dictionaries=left)))
    full = [name for name in numbers if name not in now.required and rows[name].null_count == 0]
    if full:
        text = f"{plural(len(full), 'optional column')} without nulls as required"
        changes.append(Change(text=text, layout=replace(now, required=now.required.union(full))))
    if part.num_groups > 1:
        text = f"1 row group in place of {part.num_groups}"
        changes.append(Change(text=text, layout=replace(now, group_rows=rows.num_rows)))
    size = int(part.groups.projected_bytes.sum())
    if part.num_groups == 1 and size > _MOST_BYTES:
        text = f"row groups of {format_bytes(_GROUP_BYTES)} in place of {format_bytes(size)}"
        fewer = max(1, part.num_rows * _GROUP_BYTES // size)
        changes.append(Change(text=text, layout=replace(now, group_rows=fewer)))
    present = set(now.codecs.values())
    for codec in _CODECS:
        if present != {codec}:
            layout = replace(now, codecs=dict.fromkeys(now.codecs, codec))
            text = f"codec {codec} in place of {', '.join(sorted(present))}"
            changes.append(Change(text=text, layout=layout, is_codec=True))
    return changes


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(data_type)) and data_type != pa.bool_()


def _is_nearly_distinct(column: pa.ChunkedArray) -> bool:
    return bool(2 * pc.count_distinct(column).as_py() > len(column) - column.null_count)


def _measure(
    as_it_is: TableDataLoader, stored_bytes: int, rows: pa.Table, changes: Sequence[Change], folder: Path
) -> tuple[Measured, list[Measured]]:
    """The present layout and each other one, decoded in turn; one round that does not count first."""
    num_rows = as_it_is.dataset.planner.inventory.num_rows
    loaders, sizes = [as_it_is], [stored_bytes / num_rows]
    for number, change in enumerate(changes):
        path = folder / f"{number}.parquet"
        sizes.append(change.layout.write(rows, path) / rows.num_rows)
        loaders.append(TableDataLoader(DataSource(paths=(str(path),)).dataset(**_options(rows.num_rows))))
    seconds: list[list[float]] = [[] for _ in loaders]
    for number in range(_ROUNDS + 1):
        for loader, times in zip(loaders, seconds, strict=True):
            before = loader.metrics()
            loader.set_epoch(number)
            came = sum(batch.num_rows for batch in loader)
            if number:
                times.append((loader.metrics() - before).decode_seconds / came)
    first, *others = (Measured(seconds=median(times), bytes=size) for times, size in zip(seconds, sizes, strict=True))
    return first, others


def _best_of(changes: Sequence[Change], base: Measured, measured: Sequence[Measured]) -> list[Change]:
    """The changes that help, in decoding or bytes. A codec is a question of the store, and is left as it is."""
    return [
        change
        for change, each in zip(changes, measured, strict=True)
        if not change.is_codec
        and each.seconds * each.bytes * _HELPS < base.seconds * base.bytes
        and each.seconds < base.seconds * _HELPS
    ]


def _together(now: Layout, changes: Sequence[Change]) -> Change:
    """All of these changes in one."""
    layout = now
    for change in changes:
        differs = [name for name in Layout.__slots__ if getattr(change.layout, name) != getattr(now, name)]
        layout = replace(layout, **{name: getattr(change.layout, name) for name in differs})
    return Change(text=" and ".join(change.text for change in changes), layout=layout)


def _figures(change: Change, base: Measured, measured: Measured) -> dict[str, Any]:
    saved, more = base.seconds - measured.seconds, measured.bytes - base.bytes
    return {
        "change": change.text,
        "only_codec": change.is_codec,
        "times_as_fast": base.seconds / measured.seconds,
        "of_bytes": measured.bytes / base.bytes,
        # Fewer seconds of decoding for more bytes, or the other way round: the store's speed at which both are equal.
        "breaks_even_at_mb_per_second": more / saved / 1e6 if saved * more > 0 else None,
    }
