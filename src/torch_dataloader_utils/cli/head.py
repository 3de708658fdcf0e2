"""`tdu head`: the first batches, as the trainer would get them."""

from typing import Any

import click

from torch_dataloader_utils.cli.options import data_options, dataset_arguments, json_option, plan_options
from torch_dataloader_utils.cli.output import emit_json, print_table
from torch_dataloader_utils.cli.source import DataSource

_EXAMPLES = """\b
Examples:
  tdu head data/
  tdu head data/ --batches 2 --batch-size 4 --shuffle --rank 3 --ranks 8
  tdu head data/ --columns id,label --filter "label == 1" --json
"""

_CELL = 60


@click.command("head", epilog=_EXAMPLES)
@data_options
@plan_options
@click.option("--batches", "num_batches", default=1, show_default=True, help="How many.")
@click.option("--rows", "max_rows", default=10, show_default=True, help="Rows to show of each.")
@click.option("--rank", default=0, show_default=True, help="Whose batches.")
@json_option
def command(
    source: DataSource, planning: dict[str, Any], num_batches: int, max_rows: int, rank: int, as_json: bool
) -> None:
    """The first batches as a table.

    They are the batches that a loader with these options gives this rank first. Shows values of your data.
    """
    from itertools import islice

    dataset = source.dataset(**dataset_arguments(planning), rank=rank, output_format="arrow", decode_threads=1)
    dataset.set_epoch(planning["epoch"])
    batches = list(islice(dataset, num_batches))
    if as_json:
        shown = [{"num_rows": batch.num_rows, "rows": batch.slice(0, max_rows).to_pylist()} for batch in batches]
        emit_json({"rank": rank, "epoch": planning["epoch"], "batches": shown})
        return
    for number, batch in enumerate(batches):
        click.echo(f"batch {number} of rank {rank}, epoch {planning['epoch']}: {batch.num_rows:,} rows")
        rows = [tuple(_cell(value) for value in row.values()) for row in batch.slice(0, max_rows).to_pylist()]
        print_table(batch.schema.names, rows)
        if batch.num_rows > max_rows:
            click.echo(f"... and {batch.num_rows - max_rows:,} more rows (--rows)")
        click.echo()


def _cell(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"
