"""Does what the ranks received add up? The claims of the README, checked on one training run."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any


class AuditError(Exception):
    """A claim does not hold."""


def audit(received: Path, *, num_rows: int, num_ranks: int, num_epochs: int) -> list[str]:
    """The properties that hold, a line each.

    Raises:
        AuditError: a row is missing or came twice, ranks took different steps, epochs came in one order, or the
            loss did not fall.
    """
    epochs = [[_load(received, epoch, rank) for rank in range(num_ranks)] for epoch in range(num_epochs)]
    lines = []
    for epoch, ranks in enumerate(epochs):
        _check_rows(epoch, ranks, num_rows)
        steps = _equal_steps(epoch, ranks)
        shares = " + ".join(f"{len(rank['row_ids']):,}" for rank in ranks)
        lines.append(f"epoch {epoch}: {shares} = {num_rows:,} rows, each once; {steps} steps on every rank")
    losses = [ranks[0]["loss"] for ranks in epochs]
    if not all(later < earlier for earlier, later in pairwise(losses)):
        raise AuditError(f"the loss did not fall: {losses}")
    lines.append("loss: " + " -> ".join(f"{loss:.3f}" for loss in losses))
    orders = {tuple(ranks[0]["row_ids"]) for ranks in epochs}
    if len(orders) != num_epochs:
        raise AuditError("two epochs gave rank 0 the same rows in the same order, with shuffle on")
    return lines


def _load(received: Path, epoch: int, rank: int) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((received / f"epoch{epoch}-rank{rank}.json").read_text())
    return report


def _check_rows(epoch: int, ranks: list[dict[str, Any]], num_rows: int) -> None:
    times = Counter(row for rank in ranks for row in rank["row_ids"])
    missing = [row for row in range(num_rows) if row not in times]
    repeated = [row for row, count in times.items() if count > 1]
    unknown = [row for row in times if not 0 <= row < num_rows]
    if missing or repeated or unknown:
        raise AuditError(
            f"epoch {epoch}: {len(missing)} rows missing {missing[:5]}, {len(repeated)} repeated {repeated[:5]}, "
            f"{len(unknown)} unknown {unknown[:5]}"
        )


def _equal_steps(epoch: int, ranks: list[dict[str, Any]]) -> int:
    steps = [rank["steps"] for rank in ranks]
    planned = [rank["planned_steps"] for rank in ranks]
    if len(set(steps)) != 1 or steps != planned:
        raise AuditError(f"epoch {epoch}: ranks took {steps} steps, len(loader) said {planned}")
    return int(steps[0])
