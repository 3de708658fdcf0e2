"""Page of `tdu plan --draw plan.html`: facts, timeline and table of a plan, in one file without scripts."""

from html import escape
from typing import Any

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils.plan.pictures.svg import STYLE, draw_timeline, file_hue, hsl
from torch_dataloader_utils.plan.pictures.timeline import Timeline

_LEGEND_FILES = 12

_STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--text); background: var(--page);
  margin: 2rem auto; max-width: 1240px; padding: 0 1.2rem; }
h1 { font-size: 1.35rem; margin: 0; } .source { color: var(--quiet); margin: .1rem 0 1.2rem; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: .7rem;
  margin-bottom: 1.4rem; }
.fact { background: var(--card); border-radius: 8px; padding: .6rem .8rem; }
.fact b { display: block; font-size: 1.15rem; font-weight: 600; } .fact span { color: var(--quiet); font-size: .82rem; }
.fact.bad b { color: var(--mean); }
svg { width: 100%; height: auto; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .8rem 0 1.4rem; font-size: .82rem;
  color: var(--quiet); }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: .4rem;
  vertical-align: -1px; }
.legend i.shared { background: repeating-linear-gradient(45deg, var(--quiet) 0 3px, transparent 3px 6px); }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--quiet); }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; margin-top: .6rem; }
th, td { padding: .15rem .9rem .15rem 0; text-align: right; } th { color: var(--quiet); font-weight: 500; }
""".strip()


def plan_page(summary: dict[str, Any], timeline: Timeline) -> str:
    """Return the page. summary: see plan.summarize."""
    title = f"Plan of epoch {summary['epoch']}"
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{STYLE}\n{_STYLE}</style></head><body>",
            f'<h1>{title}</h1><p class="source">{escape(summary["source"])}</p>',
            _facts(summary, timeline),
            draw_timeline(timeline),
            _legend(timeline),
            _table(timeline),
            "</body></html>\n",
        ]
    )


def _facts(summary: dict[str, Any], timeline: Timeline) -> str:
    topology = f"{summary['num_ranks']:,} × {summary['num_workers']}"
    rows = "unknown" if summary["num_rows"] is None else f"{summary['num_rows']:,}"
    cards = [
        (rows, f"rows in {summary['num_row_groups']:,} row groups, {summary['num_files']:,} files", False),
        (topology, f"ranks × workers, batch {summary['batch_size']:,}", False),
        _steps(summary),
        (f"{summary['cuts']:,}", f"row ranges moved to balance ranks, {summary['moved_rows']:,} rows", False),
        (
            f"{timeline.imbalance:.2f} ×",
            f"heaviest worker by the mean, bytes{timeline.shown_ranks_note}",
            timeline.imbalance > 1.25,
        ),
        (_order(summary), f"order, seed {summary['seed']}", False),
    ]
    if summary["dropped_rows"] or summary["repeated_rows"]:
        cards.append((f"{summary['dropped_rows']:,} / {summary['repeated_rows']:,}", "rows dropped / repeated", True))
    body = "".join(
        f'<div class="fact{" bad" if is_bad else ""}"><b>{escape(value)}</b><span>{escape(text)}</span></div>'
        for value, text, is_bad in cards
    )
    return f'<div class="facts">{body}</div>'


def _steps(summary: dict[str, Any]) -> tuple[str, str, bool]:
    if summary["steps"] is None:
        return "inexact", "row counts are not known: steps may differ", True
    least, most = summary["steps"]
    if least == most:
        return f"{most:,}", "steps on every rank", False
    return f"{least:,} to {most:,}", "steps: ranks differ", True


def _order(summary: dict[str, Any]) -> str:
    chunks = "shuffled chunks" if summary["shuffle"] else "stored order"
    return f"{chunks}, windows of {summary['shuffle_rows']:,}" if summary["shuffle_rows"] else chunks


def _legend(timeline: Timeline) -> str:
    entries = []
    if len(timeline.files) > 1:
        for file, name in enumerate(timeline.files[:_LEGEND_FILES]):
            entries.append(f'<span><i style="background:{hsl(file_hue(file))}"></i>{escape(name)}</span>')
        if len(timeline.files) > _LEGEND_FILES:
            entries.append(f"<span>and {len(timeline.files) - _LEGEND_FILES:,} more files, a colour each</span>")
    else:
        entries.append("<span>one bar is one row group; colours alternate</span>")
    if timeline.shared_groups:
        entries.append('<span><i class="shared"></i>hatched: a row group shared by several workers</span>')
    if timeline.shown_ranks < timeline.num_ranks:
        entries.append(f"<span>the first {timeline.shown_ranks} of {timeline.num_ranks:,} ranks</span>")
    return f'<div class="legend">{"".join(entries)}</div>'


def _table(timeline: Timeline) -> str:
    rows = "".join(
        f"<tr><td>{w.rank}</td><td>{w.worker}</td><td>{w.num_rows:,}</td>"
        f"<td>{'?' if w.num_batches is None else format(w.num_batches, ',')}</td><td>{format_bytes(w.num_bytes)}</td>"
        f"<td>{sum(map(len, w.lanes)):,}</td></tr>"
        for w in timeline.workers
    )
    head = "".join(f"<th>{name}</th>" for name in ("rank", "worker", "rows", "batches", "bytes", "bars"))
    return f"<details><summary>All workers as a table</summary><table><tr>{head}</tr>{rows}</table></details>"
