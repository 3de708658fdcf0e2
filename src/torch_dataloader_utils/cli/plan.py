"""`tdu plan`: the plan of an epoch as a table, as JSON, or as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils.cli.options import DataCommand, data_options, json_option, plan_arguments, plan_options
from torch_dataloader_utils.cli.output import emit_json, format_rows, print_facts, print_table, say
from torch_dataloader_utils.cli.source import DataSource
from torch_dataloader_utils.errors import plural

if TYPE_CHECKING:
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan
    from torch_dataloader_utils.plan.pictures.timeline import Timeline

_EXAMPLES = """\b
Examples:
  tdu plan data/ --ranks 8 --workers 4 --batch-size 1024 --shuffle
  tdu plan data/ --ranks 8 --workers 4 --shuffle --draw plan.html
  tdu plan --inventory inventory.parquet --ranks 1024 --workers 8 --json
  tdu plan data/ --ranks 2 --save plan.parquet
  tdu plan data/ --ranks 64 --shuffle --cache-bytes 500GiB --host-ranks 8
"""


def _local_file(_context: click.Context, _option: click.Parameter, value: str | None) -> Path | None:
    if value is not None and "://" in value:
        raise click.BadParameter("a plan is written to this machine. Give a path, not a URL.")
    return None if value is None else Path(value)


def _picture_file(context: click.Context, option: click.Parameter, value: str | None) -> Path | None:
    path = _local_file(context, option, value)
    if path is not None and path.suffix.lower() not in (".html", ".svg"):
        raise click.BadParameter(
            f"{path.name!r} is neither a page nor a picture. Give a name that ends in .html or .svg."
        )
    return path


@click.command("plan", cls=DataCommand, epilog=_EXAMPLES)
@data_options
@plan_options
@click.option(
    "--draw", "draw_path", metavar="FILE", callback=_picture_file, help="Draw a page (.html) or a picture (.svg)."
)
@click.option(
    "--save",
    "save_path",
    metavar="FILE",
    callback=_local_file,
    help="Write all row ranges to a Parquet file.",
)
@click.option(
    "--max-ranks", type=click.IntRange(min=1), default=32, show_default=True, help="Ranks to show and to draw."
)
@click.option("--cache-bytes", metavar="SIZE", help="Forecast what a cache of this size on each host would save.")
@click.option("--host-ranks", type=click.IntRange(min=1), metavar="N", help="Ranks per host, for --cache-bytes.")
@json_option
def command(
    source: DataSource,
    planning: dict[str, Any],
    draw_path: Path | None,
    save_path: Path | None,
    max_ranks: int,
    cache_bytes: str | None,
    host_ranks: int | None,
    as_json: bool,
) -> None:
    """Show what each rank and worker reads, the steps and the imbalance.

    A loader with the same options follows the same plan. Only metadata is read.
    """
    from torch_dataloader_utils.plan.explain import describe_cache
    from torch_dataloader_utils.plan.pictures.timeline import make_timeline
    from torch_dataloader_utils.plan.planner import plan_epoch

    plan = plan_epoch(source.inventory(), **plan_arguments(planning))
    timeline = make_timeline(plan, max_ranks)
    summary = {**summarize(plan), "cache": describe_cache(plan, cache_bytes, host_ranks) or None}
    if draw_path is not None:
        from torch_dataloader_utils.cli.plan_page import plan_page
        from torch_dataloader_utils.plan.pictures.svg import plan_picture

        is_page = draw_path.suffix.lower() == ".html"
        draw_path.write_text(plan_page(summary, timeline) if is_page else plan_picture(timeline), encoding="utf-8")
    if save_path is not None:
        import pyarrow.parquet as pq

        pq.write_table(plan.to_arrow(), save_path)
    if as_json:
        drawn = {"shown_ranks": timeline.shown_ranks, "imbalance": timeline.imbalance, "workers": _workers(timeline)}
        emit_json({**summary, **drawn})
        return
    _print(summary, timeline)
    for path in (draw_path, save_path):
        if path is not None:
            say(f"Wrote {path}")


def summarize(plan: "EpochPlan") -> dict[str, Any]:
    """Return facts of the plan as a JSON-able dict. steps: (least, most) over the ranks; None if not known."""
    from torch_dataloader_utils.plan.explain import describe_mixing

    inputs, topology, counts = plan.inputs, plan.topology, plan.assignment.counts
    options = inputs.options
    return {
        "source": plan.inventory.source,
        "fingerprint": plan.fingerprint,
        "epoch": plan.epoch,
        "seed": options.seed,
        "shuffle": options.shuffle,
        "shuffle_rows": options.shuffle_rows,
        "num_ranks": topology.num_ranks,
        "num_workers": topology.num_workers,
        "batch_size": topology.batch_size,
        "is_exact": plan.is_exact,
        "num_files": plan.inventory.num_files,
        "num_row_groups": plan.inventory.num_groups,
        "num_rows": plan.inventory.num_rows if plan.inventory.rows_are_known else None,
        "num_chunks": len(inputs.chunks),
        "mixing": describe_mixing(plan) or None,
        "steps": None if plan.rank_steps is None else (min(plan.rank_steps), max(plan.rank_steps)),
        "rank_rows": None if plan.rank_rows is None else (min(plan.rank_rows), max(plan.rank_rows)),
        "cuts": 0 if counts is None else counts.cuts,
        "moved_rows": 0 if counts is None else counts.moved_rows,
        "dropped_rows": plan.dropped_rows,
        "repeated_rows": plan.repeated_rows,
        "notes": list(plan.inventory.notes),
    }


def _workers(timeline: "Timeline") -> list[dict[str, Any]]:
    return [
        {
            "rank": worker.rank,
            "worker": worker.worker,
            "rows": worker.num_rows,
            "batches": worker.num_batches,
            "bytes": worker.num_bytes,
        }
        for worker in timeline.workers
    ]


def _print(summary: dict[str, Any], timeline: "Timeline") -> None:
    shuffle = "shuffled" if summary["shuffle"] else "in stored order"
    windows = f", windows of {summary['shuffle_rows']:,} rows" if summary["shuffle_rows"] else ""
    facts = [
        ("source", summary["source"]),
        ("rows", f"{format_rows(summary['num_rows'])} in {plural(summary['num_row_groups'], 'row group')}"),
        (
            "order",
            f"epoch {summary['epoch']}, {plural(summary['num_chunks'], 'chunk')} {shuffle}{windows}, "
            f"seed {summary['seed']}",
        ),
        *((name, summary[name]) for name in ("mixing", "cache") if summary[name]),
        ("steps", _steps(summary)),
        (
            "balancing",
            f"{plural(summary['moved_rows'], 'row')} moved between ranks, in {plural(summary['cuts'], 'range')}",
        ),
        ("imbalance", f"heaviest worker {timeline.imbalance:.2f} × the mean of the bytes{timeline.shown_ranks_note}"),
        *(("note", note) for note in summary["notes"]),
    ]
    if summary["dropped_rows"]:
        facts.append(("left out", f"{plural(summary['dropped_rows'], 'row')} (--drop-last)"))
    if summary["repeated_rows"]:
        facts.append(("repeated", f"{plural(summary['repeated_rows'], 'row')}, so that every rank takes the last step"))
    print_facts(facts)
    click.echo()
    rows = [
        (
            str(worker.rank),
            str(worker.worker),
            f"{worker.num_rows:,}",
            "?" if worker.num_batches is None else f"{worker.num_batches:,}",
            format_bytes(worker.num_bytes),
            f"{sum(map(len, worker.lanes)):,}",
        )
        for worker in timeline.workers
    ]
    print_table(["rank", "worker", "rows", "batches", "bytes", "reads"], rows)
    if timeline.shown_ranks < timeline.num_ranks:
        click.echo(f"... and {plural(timeline.num_ranks - timeline.shown_ranks, 'more rank')} (--max-ranks)")


def _steps(summary: dict[str, Any]) -> str:
    if summary["steps"] is None:
        return "not known: row counts are missing, ranks may differ"
    least, most = summary["steps"]
    batch = f"batches of {summary['batch_size']:,}"
    return f"{most:,} on every rank, {batch}" if least == most else f"{least:,} to {most:,}: ranks DIFFER, {batch}"
