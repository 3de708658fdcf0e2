"""`tdu audit`: the rows that a job gave, compared with its data."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torch_dataloader_utils.cli.options import json_option
from torch_dataloader_utils.cli.output import emit_json, print_facts, say
from torch_dataloader_utils.errors import plural

if TYPE_CHECKING:
    from torch_dataloader_utils.cli.job_audit import EpochAudit, RowRange

_EXAMPLES = """\b
Examples:
  tdu audit audits/train                 loaders were made with audit="audits/train"
  tdu audit audits/train --json
"""

_SHOWN = 20


@click.command("audit", epilog=_EXAMPLES)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@click.pass_context
def command(ctx: click.Context, folder: Path, as_json: bool) -> None:
    """Compare the rows that a job gave with its data, from the records of audit=.

    Follows the job through stops, resumes and changes of topology. In every epoch each row must come once and all ranks
    must take equal steps, as planned; a step that a resume repeats counts once. With exit code 1, the output names the
    rows that came twice or never.
    """
    from torch_dataloader_utils.cli.job_audit import audit_job

    audit = audit_job(folder)
    if as_json:
        emit_json({"ok": audit.is_exact, **asdict(audit)})
    else:
        say(f"{audit.passes:,} passes in {plural(audit.files, 'record')}")
        for epoch in audit.epochs:
            say()
            _print(epoch)
    ctx.exit(0 if audit.is_exact else 1)


def _print(epoch: "EpochAudit") -> None:
    is_complete = epoch.state == "complete"
    replayed = [("replayed", f"{plural(epoch.replayed, 'row')}, given again after a resume; counted once")]
    print_facts(
        [
            ("epoch", f"{epoch.epoch} of data {epoch.data}, seed {epoch.seed}: {epoch.state}"),
            ("steps", f"{epoch.steps:,} on {', then '.join(epoch.topologies)}"),
            ("rows", f"{epoch.once:,} of {epoch.rows:,} came exactly once{_exceptions(epoch) if is_complete else ''}"),
            *(replayed if epoch.replayed else []),
            *([("behind", _behind(epoch))] if epoch.behind else []),
            *(("WRONG", problem) for problem in epoch.problems),
        ]
    )
    for rows in epoch.wrong[:_SHOWN] if epoch.problems else ():
        say(_row_range(rows))
    if epoch.problems and len(epoch.wrong) > _SHOWN:
        say(f"... and {len(epoch.wrong) - _SHOWN:,} more ranges of rows (--json lists up to 1,000)")


def _behind(epoch: "EpochAudit") -> str:
    fewest = sorted(epoch.behind, key=lambda each: each[1])
    named = ", ".join(f"rank {rank} ({plural(count, 'step')})" for rank, count in fewest[:_SHOWN])
    more = f", and {len(fewest) - _SHOWN:,} more" if len(fewest) > _SHOWN else ""
    return f"fewer recorded steps than other ranks, since the last resume: {named}{more}"


def _exceptions(epoch: "EpochAudit") -> str:
    found = []
    if epoch.never:
        found.append(f"{epoch.never:,} never (drop_last leaves out {epoch.dropped:,})")
    if epoch.again:
        found.append(f"{epoch.again:,} again (the plan repeats {epoch.repeated:,})")
    return "".join(f", {each}" for each in found)


def _row_range(rows: "RowRange") -> str:
    times = "never" if rows.times == 0 else f"{rows.times:,} times"
    return f"{rows.path} row group {rows.row_group}, rows {rows.start:,} to {rows.stop:,}: {times}"
