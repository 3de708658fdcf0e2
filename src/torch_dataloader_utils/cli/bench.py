"""`tdu bench`: throughput of loaders on the user's own data, beside the bare reader, and advice."""

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils.cli.options import SHUFFLE, DataCommand, data_options, json_option
from torch_dataloader_utils.cli.output import emit_json, print_facts, print_table, say
from torch_dataloader_utils.cli.source import DataSource
from torch_dataloader_utils.errors import ConfigError

if TYPE_CHECKING:
    from torch_dataloader_utils._core.inventory import Inventory
    from torch_dataloader_utils._observe.metrics import Metrics
    from torch_dataloader_utils.stream.loader import TableDataLoader
    from torch_dataloader_utils.tables.reader import Reader

_EXAMPLES = """\b
Examples:
  tdu bench data/
  tdu bench data/ --columns x,y,label --batch-sizes 1024,8192 --workers 0,2,4
  tdu bench data/ --seconds 20 --rounds 5 --json
"""

# Processes cost memory, start-up time and a copy of each batch, so they must win by more than noise.
_WORTH_PROCESSES = 1.05


def _above_zero(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not value > 0:  # NaN too, which click's ranges let through
        raise click.BadParameter(f"{value} is not above 0.", context, parameter)
    return value


@click.command("bench", cls=DataCommand, epilog=_EXAMPLES)
@data_options
@click.option("--batch-sizes", default="1024,8192", show_default=True, metavar="N,N", help="Rows per batch.")
@click.option("--workers", default="0,2", show_default=True, metavar="N,N", help="0: threads; N: N worker processes.")
@SHUFFLE[0]
@SHUFFLE[1]
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

    Each setting alternates with the bare reader (one thread per core, no batches), so that all see the same machine.
    One uncounted round warms the page cache and starts worker processes.
    """
    from torch_dataloader_utils._runtime.threads import available_cpus

    inventory = source.inventory()
    sizes, counts = _numbers(batch_sizes, "--batch-sizes", 1), _numbers(workers, "--workers", 0)
    settings = [{"num_workers": count, "batch_size": size} for count in counts for size in sizes]
    loaders = [_loader(source, inventory, **setting, **options) for setting in settings]
    speeds, runs = _measure(loaders, source.reader(inventory), inventory, rounds, most_seconds)
    row_mb = int(inventory.groups.projected_bytes.sum()) / max(1, inventory.num_rows) / 1e6
    limit = median(speeds)
    results = [{**setting, **_result(found, limit, row_mb)} for setting, found in zip(settings, runs, strict=True)]
    report = {
        "source": inventory.source,
        "cores": available_cpus(),
        "limit": {"rows_per_second": limit, "mb_per_second": limit * row_mb},
        "results": results,
        "recommendation": recommend(results),
    }
    if as_json:
        emit_json(report)
    else:
        _print(report, runs[0][-1].describe_chunks())


def _loader(source: DataSource, inventory: "Inventory", num_workers: int, **options: Any) -> "TableDataLoader":
    """Return a loader with persistent worker processes, so that only the first run starts processes."""
    from torch_dataloader_utils.stream.loader import TableDataLoader

    dataset = source.dataset(inventory, num_workers=num_workers, **options)
    return TableDataLoader(dataset, num_workers=num_workers, persistent_workers=num_workers > 0)


def _measure(
    loaders: "list[TableDataLoader]", reader: "Reader", inventory: "Inventory", rounds: int, most_seconds: float
) -> "tuple[list[float], list[list[Metrics]]]":
    """Return rows per second of the bare reader, and the metrics of each loader, for each round after the first."""
    from torch_dataloader_utils._observe.work_bar import work_bar

    speeds: list[float] = []
    runs: list[list[Metrics]] = [[] for _ in loaders]
    with work_bar("runs") as on_progress:
        for number in range(rounds + 1):
            speeds.append(reader_speed(reader, inventory, most_seconds))
            for place, (loader, found) in enumerate(zip(loaders, runs, strict=True), start=1):
                found.append(_run(loader, number, most_seconds))
                if on_progress is not None:
                    on_progress(number * len(loaders) + place, (rounds + 1) * len(loaders))
    return speeds[1:], [found[1:] for found in runs]


def reader_speed(reader: "Reader", inventory: "Inventory", most_seconds: float) -> float:
    """Return the rows per second of reading alone: row groups decoded by one thread per core, no batches."""
    from torch_dataloader_utils._runtime.parallel import map_in_order, threads_for
    from torch_dataloader_utils._runtime.threads import available_cpus

    def count(group: int) -> int:
        return int(reader.read(inventory.task(group)).num_rows)

    threads = available_cpus()
    begin, rows, seconds = perf_counter(), 0, 0.0
    with threads_for(threads, "tdu-bench") as pool:  # work in progress ends before the next run begins
        for number in map_in_order(count, range(inventory.num_groups), pool, 4 * threads):
            rows += number
            seconds = perf_counter() - begin
            if seconds > most_seconds:
                break
    return rows / seconds if seconds else 0.0


def _run(loader: "TableDataLoader", epoch: int, most_seconds: float) -> "Metrics":
    """Return the metrics of one pass, or of its first `most_seconds`."""
    loader.set_epoch(epoch)
    before, begin = loader.metrics(), perf_counter()
    for _ in loader:
        if perf_counter() - begin > most_seconds:
            break
    return loader.metrics() - before


def _result(runs: "list[Metrics]", limit: float, row_mb: float) -> dict[str, Any]:
    speed = median(run.rows_per_second for run in runs)
    return {
        "rows_per_second": speed,
        "mb_per_second": speed * row_mb,
        "of_limit": speed / limit if limit else 0.0,
        "column_chunks": runs[-1].column_chunks,
        "diagnosis": runs[-1].diagnosis,
    }


def recommend(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fastest engine for each batch size. (Training decides the batch size, not speed.)

    Threads are recommended unless processes are more than 5 % faster.
    """
    advice = []
    for size in sorted({each["batch_size"] for each in results}):
        chosen = max((each for each in results if each["batch_size"] == size), key=_worth)
        engine = f"num_workers={chosen['num_workers']}" if chosen["num_workers"] else "threads (num_workers=0)"
        text = f"batch_size={size:,}: {engine}, {chosen['rows_per_second']:,.0f} rows/s"
        advice.append({key: chosen[key] for key in ("batch_size", "num_workers", "diagnosis")} | {"text": text})
    return advice


def _worth(result: dict[str, Any]) -> float:
    speed: float = result["rows_per_second"]
    return speed if result["num_workers"] else speed * _WORTH_PROCESSES


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
    speed = f"{limit['rows_per_second']:,.0f} rows/s, {limit['mb_per_second']:,.0f} MB/s"
    facts = [("source", report["source"]), ("limit", f"reading without batches on {report['cores']} cores: {speed}")]
    print_facts([*facts, *([("decoded", decoders)] if decoders else [])])
    say()
    rows = [
        (
            str(row["num_workers"] or "threads"),
            f"{row['batch_size']:,}",
            f"{row['rows_per_second']:,.0f}",
            f"{row['mb_per_second']:,.0f}",
            f"{row['of_limit']:.2f}",
        )
        for row in report["results"]
    ]
    print_table(["workers", "batch", "rows/s", "MB/s", "of limit"], rows)
    for advice in report["recommendation"]:
        say()
        say(f"Recommended for {advice['text']}")
        say(advice["diagnosis"] or "")
