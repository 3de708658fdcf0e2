"""`tdu verify`: reads everything once, and checks the plan of all ranks."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils.cli.options import DataCommand, data_options, json_option, plan_arguments, plan_options
from torch_dataloader_utils.cli.output import emit_json, format_rows, map_groups, print_facts, say
from torch_dataloader_utils.cli.source import DataSource
from torch_dataloader_utils.errors import LoaderError, plural

if TYPE_CHECKING:
    from torch_dataloader_utils._core.inventory import Inventory
    from torch_dataloader_utils.cli.coverage import Coverage
    from torch_dataloader_utils.tables.reader import Reader

_EXAMPLES = """\b
Examples:
  tdu verify data/
  tdu verify data/ --ranks 64 --workers 8 --shuffle --shuffle-rows 65536
  tdu verify --inventory inventory.parquet        are the files unchanged since the scan?
  tdu verify data/ --no-read --ranks 1024         the plan alone
"""

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Row group that cannot be read as planned. error: class name of the error. message: text of the error."""

    path: str
    row_group: int
    error: str
    message: str


@click.command("verify", cls=DataCommand, epilog=_EXAMPLES)
@data_options
@plan_options
@click.option("--no-read", "skips_reading", is_flag=True, help="Check the plan only.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, source: DataSource, planning: dict[str, Any], skips_reading: bool, as_json: bool
) -> None:
    """Read everything once; check counts, checksums and the plan.

    Decodes every row group like a loader. Checks row counts against the footer, pages against checksums (if the writer
    stored any), and files against the scanned identity. Then adds up the lanes of all ranks: each row must be delivered
    once. With exit code 1, the output names the bad row groups.
    """
    from torch_dataloader_utils.cli.coverage import check_coverage
    from torch_dataloader_utils.plan.planner import plan_epoch

    inventory = source.inventory()
    rows, faults = (0, []) if skips_reading else read_all(inventory, source.reader(inventory))
    coverage = check_coverage(plan_epoch(inventory, **plan_arguments(planning)))
    is_good = not faults and coverage.is_exact
    if as_json:
        emit_json(
            {
                "ok": is_good,
                "source": inventory.source,
                "num_row_groups": inventory.num_groups,
                "rows_read": None if skips_reading else rows,
                "faults": [asdict(fault) for fault in faults],
                "plan": {**asdict(coverage), "is_exact": coverage.is_exact},
            }
        )
    else:
        _print(inventory, None if skips_reading else rows, faults, coverage, planning)
    ctx.exit(0 if is_good else 1)


def read_all(inventory: "Inventory", reader: "Reader") -> tuple[int, list[Fault]]:
    """Return (delivered rows, row groups that cannot be read), in the order of the inventory."""
    from torch_dataloader_utils._store import redact

    def read(group: int) -> int | Fault:
        task = inventory.task(group)
        try:
            return int(reader.read(task).num_rows)
        except LoaderError as error:
            return Fault(path=redact(task.path), row_group=task.ordinal, error=type(error).__name__, message=str(error))

    rows, faults = 0, []
    for result in map_groups(read, inventory.num_groups, "reading"):
        if isinstance(result, Fault):
            faults.append(result)
        else:
            rows += result
    return rows, faults


def _print(
    inventory: "Inventory", rows: int | None, faults: list[Fault], coverage: "Coverage", planning: dict[str, Any]
) -> None:
    good = inventory.num_groups - len(faults)
    facts = [("source", inventory.source)]
    if rows is not None:
        facts.append(
            ("read", f"{good:,} of {inventory.num_groups:,} row groups without errors, {format_rows(rows)} rows")
        )
    ranks = f"{plural(planning['num_ranks'], 'rank')} × {plural(planning['num_workers'], 'worker')}"
    facts.append(("plan", f"{ranks}: {_verdict(coverage)}"))
    print_facts(facts)
    for fault in faults[:_SHOWN]:
        say()
        say(f"{fault.error}: {fault.message}")
    if len(faults) > _SHOWN:
        click.echo(f"\n... and {len(faults) - _SHOWN:,} more row groups (--json lists all)")


def _verdict(coverage: "Coverage") -> str:
    if not coverage.is_exact:
        return (
            f"WRONG: {coverage.missing_rows:,} rows missing, {coverage.repeated_rows:,} repeated, near "
            f"{', '.join(coverage.where)}. If you pass a split strategy of your own, fix it; else please report this."
        )
    remarks = []
    if coverage.allowed_missing:
        remarks.append(f"{coverage.allowed_missing:,} rows left out by --drop-last")
    if coverage.allowed_repeated:
        remarks.append(f"{coverage.allowed_repeated:,} repeated, so that every rank takes the last step")
    return ", ".join([f"{coverage.delivered_rows:,} rows delivered, each exactly once", *remarks])
