"""`tdu state`: a saved state in words."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils.cli.options import DataCommand, json_option, optional_data_options
from torch_dataloader_utils.cli.output import emit_json, print_facts
from torch_dataloader_utils.cli.source import DataSource
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, plural

if TYPE_CHECKING:
    from torch_dataloader_utils._core.inventory import Inventory
    from torch_dataloader_utils._core.position import Position
    from torch_dataloader_utils.plan.planner import Planner

_EXAMPLES = """\b
Examples:
  tdu state loader.json                  epoch, order, columns, steps
  tdu state loader.json data/            and the rows done and left
  tdu state loader.json --inventory inventory.parquet --json

The file holds the value of loader.state_dict(), alone or anywhere inside a JSON document.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Rows of the epoch done and left, over all ranks, and the steps left on the state's topology.

    remaining_steps: None if the state names no topology, as at the start of an epoch of one rank.
    """

    total_rows: int
    done_rows: int
    remaining_rows: int
    remaining_steps: int | None
    dropped_rows: int


@click.command("state", cls=DataCommand, epilog=_EXAMPLES)
@click.argument("state_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@optional_data_options
@json_option
def command(state_file: Path, source: DataSource | None, as_json: bool) -> None:
    """Show a saved state: the epoch, the rows done and the rows left.

    With the data (PATHS or --inventory), shows rows too, and refuses a state of other data.
    """
    found = list(find_states(_load(state_file)))
    if not found:
        raise CheckpointMismatchError(
            f"{state_file} holds no loader state. Save json.dumps(loader.state_dict()), alone or in another document."
        )
    inventory = None if source is None else source.inventory()
    reports = [{"at": place, **describe(state, inventory)} for place, state in found]
    if as_json:
        emit_json({"states": reports})
        return
    for number, report in enumerate(reports):
        if number:
            click.echo()
        print_facts(_in_words(report))


def find_states(document: Any, place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every loader state in a JSON document with its place ("loader.train", "loaders.0")."""
    if isinstance(document, dict) and {"fingerprint", "log", "epoch", "version"} <= set(document):
        yield place, document
        return
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(document, dict):
        entries = document.items()
    elif isinstance(document, list):
        entries = enumerate(document)
    for key, value in entries:
        yield from find_states(value, f"{place}.{key}" if place else str(key))


def describe(state: Mapping[str, Any], inventory: "Inventory | None") -> dict[str, Any]:
    """Return the state as a JSON-able report; with the inventory also rows.

    Raises:
        CheckpointMismatchError: the state was changed, or is a state of other data.
    """
    from torch_dataloader_utils._core.options import PlanOptions, Topology
    from torch_dataloader_utils._core.state import Identity, check_intact, decode_state
    from torch_dataloader_utils.plan.planner import Planner

    check_intact(state)
    options = PlanOptions(**dict(state["options"]))
    planner = None if inventory is None else Planner(inventory=inventory, options=options)
    identity = Identity(fingerprint=state["fingerprint"], options=options) if planner is None else planner.identity
    position, worker = decode_state(state, identity, Topology())
    remains = None if planner is None or worker is not None else _remains(planner, position)
    return {
        "epoch": state["epoch"],
        "options": dict(state["options"]),
        "fingerprint": state["fingerprint"],
        "settings": dict(state.get("settings", ())),
        "worker": worker,
        "topologies": [{**asdict(segment.topology), "steps": segment.steps} for segment in position.segments],
        "rows": None if remains is None else asdict(remains),
    }


def _remains(planner: "Planner", position: "Position") -> Remains | None:
    """Return the rows left under the state's own topology; None if the state alone does not determine them.

    Row counts, lengths for a token budget, or the code of a split strategy may be missing.
    """
    from torch_dataloader_utils._core.program import rows_of_batches

    if planner.options.max_tokens_per_batch is not None or planner.options.strategy:
        return None
    known = position.segments or position.before
    here = planner.counted(position).under(known[-1].topology if known else position.topology)
    plan = planner.plan(here)
    if plan.steps is None:
        return None
    ranks = range(plan.topology.num_ranks)
    programs = [program for rank in ranks for program in plan.programs(rank)]
    repeated = plan.repeated_rows
    remaining = max(0, sum(rows_of_batches(program.batching) for program in programs) - repeated)
    total = plan.inputs.chunks.num_rows
    return Remains(
        total_rows=total,
        done_rows=total - remaining - plan.dropped_rows,
        remaining_rows=remaining,
        remaining_steps=plan.steps - here.done if known else None,
        dropped_rows=plan.dropped_rows,
    )


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no JSON ({error}). Pass the JSON of loader.state_dict(); other checkpoints are not opened, "
            "because reading a pickle executes it."
        ) from error


def _in_words(report: dict[str, Any]) -> list[tuple[str, str]]:
    options = report["options"]
    order = "shuffled" if options.get("shuffle") else "stored order"
    windows = ", rows in windows of the default size" if options.get("default_windows") else ""
    if options.get("shuffle_rows"):
        windows = f", rows in windows of {options['shuffle_rows']:,}"
    facts = [
        *([("state", report["at"])] if report["at"] else []),
        ("epoch", str(report["epoch"])),
        ("order", f"{order}{windows}, seed {options['seed']}"),
        ("data", report["fingerprint"]),
        *((name, text) for name, text in report["settings"].items() if name == "columns"),
    ]
    if report["worker"] is not None:
        facts.append(("of", f"worker {report['worker']} of a DataLoader; the steps count this worker alone"))
    facts += [("received" if not n else "then", _segment(entry)) for n, entry in enumerate(report["topologies"])]
    if not report["topologies"]:
        facts.append(("received", "nothing of this epoch"))
    return [*facts, *_rows_in_words(report["rows"])]


def _segment(entry: dict[str, Any]) -> str:
    steps = entry["steps"]
    size = f"{plural(entry['num_ranks'], 'rank')} × {plural(entry['num_workers'], 'worker')}"
    topology = f"{size}, batch {entry['batch_size']:,}"
    known = [steps] * entry["num_ranks"] if isinstance(steps, int) else [each for each in steps if each is not None]
    count = f"{min(known):,} to {max(known):,} steps (ranks differ)"
    if isinstance(steps, int):
        count = plural(steps, "step")
    if len(known) < entry["num_ranks"]:
        finished = entry["num_ranks"] - len(known)
        return f"{count} on {topology}; {finished:,} of the ranks took all of theirs"
    return f"{count} on {topology}: at most {sum(known) * entry['batch_size']:,} rows"


def _rows_in_words(rows: dict[str, Any] | None) -> list[tuple[str, str]]:
    if rows is None:
        return []
    total = max(1, rows["total_rows"])
    steps = "" if rows["remaining_steps"] is None else f", {rows['remaining_steps']:,} steps on the last topology"
    facts = [
        ("done", f"{rows['done_rows']:,} of {rows['total_rows']:,} rows ({rows['done_rows'] / total:.1%})"),
        ("remains", f"{rows['remaining_rows']:,} rows{steps}"),
    ]
    return [*facts, ("left out", f"{rows['dropped_rows']:,} rows (drop_last)")] if rows["dropped_rows"] else facts
