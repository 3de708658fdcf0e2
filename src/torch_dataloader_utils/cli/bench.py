"""`tdu bench`: throughput of each way to load the user's own data, and which to choose."""

from statistics import median
from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils.cli.options import data_options, json_option
from torch_dataloader_utils.cli.output import emit_json, print_facts, print_table
from torch_dataloader_utils.cli.source import DataSource
from torch_dataloader_utils.errors import ConfigError

if TYPE_CHECKING:
    from torch_dataloader_utils._core.inventory import Inventory
    from torch_dataloader_utils.cli.measure import Rate, Setting

_EXAMPLES = """\b
Examples:
  tdu bench data/
  tdu bench data/ --columns x,y,label --batch-sizes 1024,8192 --workers 0,2,4
  tdu bench data/ --seconds 20 --rounds 5 --json
"""

# Processes cost memory, start-up and a copy of each batch: they must win by more than noise.
_WORTH_PROCESSES = 1.05
# Below this part of the limit a batch costs more than the reading of its rows.
_COSTLY_BATCHES = 0.5


def _above_zero(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not value > 0:  # NaN too, which click's ranges let through
        raise click.BadParameter(f"{value} is not above 0.", context, parameter)
    return value


@click.command("bench", epilog=_EXAMPLES)
@data_options
@click.option("--batch-sizes", default="1024,8192", show_default=True, metavar="N,N", help="Rows per batch.")
@click.option("--workers", default="0,2", show_default=True, metavar="N,N", help="0: threads; N: N worker processes.")
@click.option("--shuffle", is_flag=True, help="Permute chunks.")
@click.option("--shuffle-rows", type=int, metavar="N", help="Permute rows in windows of about N.")
@click.option(
    "--output-format", type=click.Choice(["torch", "numpy", "arrow", "dict"]), default="torch", show_default=True
)
@click.option(
    "--seconds", "most_seconds", default=5.0, callback=_above_zero, show_default=True, help="Longest time of one run."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each setting; the median counts.",
)
@json_option
def command(
    source: DataSource,
    batch_sizes: str,
    workers: str,
    most_seconds: float,
    rounds: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure throughput on your data, and recommend settings.

    Each way to load alternates with bare pyarrow (a thread a core, nothing done with the rows), so that all see the
    same machine; one uncounted round warms the page cache and starts worker processes.
    """
    from torch_dataloader_utils._runtime.threads import available_cpus
    from torch_dataloader_utils.cli.measure import Setting, describe_limit

    inventory = source.inventory()
    sizes, counts = _numbers(batch_sizes, "--batch-sizes", 1), _numbers(workers, "--workers", 0)
    settings = [Setting(num_workers=count, batch_size=size) for count in counts for size in sizes]
    limits, rates = measure(source, inventory, settings, rounds, most_seconds, options)
    bytes_per_row = int(inventory.groups.projected_bytes.sum()) / max(1, inventory.num_rows)
    limit = median(rate.rows_per_second for rate in limits)
    rows = [_row(setting, rates[setting], limit, bytes_per_row) for setting in settings]
    decoders = rates[settings[0]][-1].metrics.describe_chunks()
    advice = recommend(rows)
    report = {
        "source": inventory.source,
        "cores": available_cpus(),
        "limit": {
            "of": describe_limit(inventory),
            "rows_per_second": limit,
            "mb_per_second": limit * bytes_per_row / 1e6,
        },
        "results": rows,
        "recommendation": advice,
    }
    if as_json:
        emit_json(report)
    else:
        _print(report, decoders)


def measure(
    source: DataSource,
    inventory: "Inventory",
    settings: "list[Setting]",
    rounds: int,
    most_seconds: float,
    options: dict[str, Any],
) -> "tuple[list[Rate], dict[Setting, list[Rate]]]":
    """(runs of the limit, runs of each setting): one round that does not count, then `rounds` that do, alternating."""
    from torch_dataloader_utils._runtime.threads import available_cpus
    from torch_dataloader_utils.cli.measure import build_loader, time_bare_reader, time_loader

    loaders = {setting: build_loader(source, inventory, setting, **options) for setting in settings}
    limits: list[Rate] = []
    rates: dict[Setting, list[Rate]] = {setting: [] for setting in settings}
    for number in range(rounds + 1):
        limit = time_bare_reader(inventory, source, available_cpus(), most_seconds)
        runs = {setting: time_loader(loader, number, most_seconds) for setting, loader in loaders.items()}
        if number:
            limits.append(limit)
            for setting, run in runs.items():
                rates[setting].append(run)
    return limits, rates


def recommend(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each batch size (which training decides, not speed) the fastest engine.

    Threads, where processes win by less than 5 %.
    """
    advice = []
    for size in sorted({row["batch_size"] for row in rows}):
        candidates = [row for row in rows if row["batch_size"] == size]
        chosen = max(candidates, key=_worth)
        engine = "threads (num_workers=0)" if chosen["num_workers"] == 0 else f"num_workers={chosen['num_workers']}"
        text = f"batch_size={size:,}: {engine}, {chosen['rows_per_second']:,.0f} rows/s"
        if chosen["of_limit"] < _COSTLY_BATCHES:
            text += "; making batches costs more than reading: stack= columns, or take larger batches"
        advice.append({"batch_size": size, "num_workers": chosen["num_workers"], "text": text})
    return advice


def _worth(row: dict[str, Any]) -> float:
    speed: float = row["rows_per_second"]
    return speed if row["num_workers"] else speed * _WORTH_PROCESSES


def _row(setting: "Setting", runs: "list[Rate]", limit: float, bytes_per_row: float) -> dict[str, Any]:
    speed = median(run.rows_per_second for run in runs)
    return {
        "engine": setting.engine,
        "num_workers": setting.num_workers,
        "batch_size": setting.batch_size,
        "rows_per_second": speed,
        "mb_per_second": speed * bytes_per_row / 1e6,
        "microseconds_per_batch": 1e6 * setting.batch_size / speed if speed else 0.0,
        "of_limit": speed / limit if limit else 0.0,
        "seconds": [run.seconds for run in runs],
        "column_chunks": runs[-1].metrics.column_chunks,
    }


def _numbers(text: str, option: str, least: int) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise ConfigError(
            f"{option} {text!r}: give whole numbers of at least {least}, such as {least + 1},{least + 2}."
        )
    return numbers


def _print(report: dict[str, Any], decoders: str) -> None:
    limit = report["limit"]
    print_facts(
        [
            ("source", report["source"]),
            (
                "limit",
                f"{limit['of']}, {report['cores']} cores: {limit['rows_per_second']:,.0f} rows/s, "
                f"{limit['mb_per_second']:,.0f} MB/s",
            ),
            *([("decoded", decoders)] if decoders else []),
        ]
    )
    click.echo()
    rows = [
        (
            row["engine"],
            str(row["num_workers"]),
            f"{row['batch_size']:,}",
            f"{row['rows_per_second']:,.0f}",
            f"{row['mb_per_second']:,.0f}",
            f"{row['microseconds_per_batch']:,.0f}",
            f"{row['of_limit']:.2f}",
        )
        for row in report["results"]
    ]
    print_table(["engine", "workers", "batch", "rows/s", "MB/s", "µs a batch", "of limit"], rows, left=["engine"])
    click.echo()
    for advice in report["recommendation"]:
        click.echo(f"Recommended for {advice['text']}")
