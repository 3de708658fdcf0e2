"""`tdu head`: the first batches of a rank, as a trainer receives them."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils._core.option_values import Decoding
from torch_dataloader_utils.cli.options import DataCommand, data_options, dataset_arguments, json_option, plan_options
from torch_dataloader_utils.cli.output import emit_json, print_table
from torch_dataloader_utils.cli.source import DataSource

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils.stream.dataset import TableDataset

_EXAMPLES = """\b
Examples:
  tdu head data/
  tdu head data/ --batches 2 --batch-size 4 --shuffle --rank 3 --ranks 8
  tdu head data/ --columns id,label --filter "label == 1" --json
"""

_CELL = 60


@click.command("head", cls=DataCommand, epilog=_EXAMPLES)
@data_options
@plan_options
@click.option(
    "--batches", "num_batches", type=click.IntRange(min=1), default=1, show_default=True, help="Number of batches."
)
@click.option(
    "--rows", "max_rows", type=click.IntRange(min=0), default=10, show_default=True, help="Rows to show per batch."
)
@click.option("--rank", default=0, show_default=True, help="Rank to show.")
@json_option
def command(
    source: DataSource, planning: dict[str, Any], num_batches: int, max_rows: int, rank: int, as_json: bool
) -> None:
    """Show the first batches as a table.

    A loader with the same options delivers the same batches first on this rank. Shows values of your data.
    """
    dataset = source.dataset(
        **dataset_arguments(planning), rank=rank, output_format="arrow", decoding=Decoding(threads=1)
    )
    dataset.set_epoch(planning["epoch"])
    batches = _first_batches(dataset, num_batches)
    if as_json:
        shown = [{"num_rows": batch.num_rows, "rows": _rows(batch, max_rows)} for batch in batches]
        emit_json({"rank": rank, "epoch": planning["epoch"], "batches": shown})
        return
    for number, batch in enumerate(batches):
        rows = [tuple(_cell(value) for value in row.values()) for row in _rows(batch, max_rows)]
        click.echo(f"batch {number} of rank {rank}, epoch {planning['epoch']}: {batch.num_rows:,} rows")
        print_table(batch.schema.names, rows)
        if batch.num_rows > max_rows:
            click.echo(f"... and {batch.num_rows - max_rows:,} more rows (--rows)")
        click.echo()


def _first_batches(dataset: "TableDataset", count: int) -> list[Any]:
    """Return the first batches of the rank: workers in rotation, as in a loader, but in this process."""
    from torch_dataloader_utils.stream.worker import WorkerStream

    works = dataset.plan.worker_inputs(dataset.rank)
    with ExitStack() as stack:
        streams = [iter(WorkerStream(work, dataset.pipeline, dataset.stages.decode)) for work in works[:count]]
        for stream in streams:
            stack.callback(stream.close)
        taken = (next(streams[number % len(works)], None) for number in range(count))
        return [batch for batch in taken if batch is not None]


def _rows(batch: "pa.RecordBatch", most: int) -> list[dict[str, Any]]:
    """Return the first rows of a batch. SchemaError: Python has no values for a column."""
    from torch_dataloader_utils.shape.arrow_types import python_objects

    first, names = batch.slice(0, most), batch.schema.names
    columns = [
        [_shortest(value, column.type) for value in python_objects(column, name)]
        for name, column in zip(names, first.columns, strict=True)
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _shortest(value: Any, data_type: "pa.DataType") -> Any:
    """Return a float32 or float16 as its shortest text: 0.1, not 0.10000000149011612; also inside of lists."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_float32(data_type) or pa.types.is_float16(data_type):
        return float(str(data_type.to_pandas_dtype()(value)))
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_fixed_size_list(data_type):
        return [_shortest(each, data_type.value_type) for each in value]
    return value


def _cell(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"
