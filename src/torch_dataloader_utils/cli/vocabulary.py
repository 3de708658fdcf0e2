"""`tdu vocabulary`: counts the values of a column, for `Vocabulary.load`."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from torch_dataloader_utils.cli.options import DataCommand, data_options, json_option
from torch_dataloader_utils.cli.output import emit_json, map_groups, print_facts, print_table, say
from torch_dataloader_utils.cli.source import DataSource
from torch_dataloader_utils.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils._core.inventory import Inventory
    from torch_dataloader_utils.tables.reader import Reader

_EXAMPLES = """\b
Examples:
  tdu vocabulary data/ --columns city --save city.parquet
  tdu vocabulary data/ --columns tags --min-count 5 --most 100000 --save tags.parquet
"""

_SHOWN = 10
# Counts are merged when the pending counts outnumber the distinct values by this much.
_LEAST_PENDING = 1 << 20


@click.command("vocabulary", cls=DataCommand, epilog=_EXAMPLES)
@data_options
@click.option("--min-count", type=click.IntRange(min=1), default=1, show_default=True, help="Leave out rarer values.")
@click.option("--most", type=click.IntRange(min=1), metavar="N", help="Keep only the N most frequent values.")
@click.option("--save", "save_path", metavar="FILE", help="Write a Parquet file for Vocabulary.load.")
@json_option
def command(source: DataSource, min_count: int, most: int | None, save_path: str | None, as_json: bool) -> None:
    """Count the values of a column, and save them as a vocabulary.

    The column (--columns) holds text, binary values, integers, or lists. The most frequent values come first; values of
    equal count are sorted, so the order of files has no effect. Nulls are not counted. Shows values of your data.
    """
    if source.columns is None or len(source.columns) != 1:
        raise ConfigError("tdu vocabulary counts one column: pass --columns NAME.")
    inventory = source.inventory()
    with _file_at(save_path) as file:  # before anything is counted
        counts = count_values(inventory, source.reader(inventory), source.columns[0])
        kept = chosen(counts, min_count, most)
        if file is not None:
            import pyarrow.parquet as pq

            pq.write_table(kept, file)
    shown = kept.slice(0, _SHOWN).to_pylist()
    facts = {
        "column": source.columns[0],
        "values": counts.num_rows,
        "kept": kept.num_rows,
        "items": _total(counts),
        "items_kept": _total(kept),
    }
    if as_json:
        emit_json({**facts, "first": shown, **({"saved": save_path} if save_path else {})})
        return
    print_facts(
        [(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else value) for name, value in facts.items()]
    )
    click.echo()
    print_table(["value", "count"], [(str(row["value"]), f"{row['count']:,}") for row in shown], left=["value"])
    if save_path is not None:
        say()
        say(f"Saved to {save_path}. Use it with Vocabulary.load({save_path!r})")


def count_values(inventory: "Inventory", reader: "Reader", name: str) -> "pa.Table":
    """Return the columns `value` and `count`: each non-null value of a column, or of a field of a struct, in any order.

    reader: Reads that column alone.

    Raises:
        ConfigError: the column holds other values than text, bytes, integers or lists of these.
    """
    import pyarrow as pa

    merged, pending, pending_rows = None, [], 0

    def count(group: int) -> pa.Table:
        return _counts(reader.read(inventory.task(group)), name)

    for counts in map_groups(count, inventory.num_groups, "counting"):
        pending.append(counts)
        pending_rows += counts.num_rows
        if pending_rows > _LEAST_PENDING + (0 if merged is None else merged.num_rows):
            merged, pending, pending_rows = _added(pending, merged), [], 0
    empty = pa.table({"value": pa.array([], pa.large_string()), "count": pa.array([], pa.int64())})
    return _added(pending, merged) if pending or merged is not None else empty


def chosen(counts: "pa.Table", min_count: int, most: int | None) -> "pa.Table":
    """Return the values to keep, by falling count, then by value."""
    import pyarrow.compute as pc

    kept = counts.filter(pc.greater_equal(counts["count"], min_count))
    kept = kept.sort_by([("count", "descending"), ("value", "ascending")])
    return kept if most is None else kept.slice(0, most)


def _counts(rows: "pa.RecordBatch", name: str) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.compute as pc

    from torch_dataloader_utils._arrow.schema import is_list, nested_path, values_at
    from torch_dataloader_utils.shape.encode import vocabulary_values
    from torch_dataloader_utils.shape.raw_numbers import plain

    array = plain(values_at(rows, nested_path(rows.schema, name)))
    while is_list(array.type):
        array = plain(array.flatten())
    counted = pc.value_counts(vocabulary_values(array.drop_null(), f"Column {name!r}"))
    return pa.table({"value": counted.field("values"), "count": counted.field("counts")})


def _added(pending: list["pa.Table"], merged: "pa.Table | None") -> "pa.Table":
    import pyarrow as pa

    parts = pending if merged is None else [merged, *pending]
    summed = pa.concat_tables(parts).group_by("value").aggregate([("count", "sum")])
    return pa.table({"value": summed["value"], "count": summed["count_sum"]})


def _total(counts: "pa.Table") -> int:
    import pyarrow.compute as pc

    return int(pc.sum(counts["count"]).as_py() or 0)


def _file_at(path: str | None) -> AbstractContextManager[BinaryIO | None]:
    """Open the file to write, which appears once it is complete; None without a path."""
    from torch_dataloader_utils._runtime.publish import write_atomically

    return nullcontext() if path is None else write_atomically(Path(path).resolve())
