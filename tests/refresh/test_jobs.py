"""Jobs over data that change: every epoch is audited row by row, through kills, resumes and a move of the data."""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.ranks import RANKS, run_ranks
from tests.refresh.job import EPOCHS, SAVED_EVERY, Run, train
from tests.refresh.sources import KINDS, CopiedTable

Steps = dict[tuple[int, int, int], list[int]]  # (epoch, step, rank): rows


def _run(run: Run) -> None:
    answers = run_ranks(train, run.out / f"meeting-{run.name}", run, start="forkserver")
    assert answers == [None if run.killed_at else "done"] * RANKS


def read_logs(out: Path, *names: str) -> tuple[Steps, dict[int, list[int]], dict[int, set[int]]]:
    """What the ranks received, of later runs in place of earlier ones; what epochs began with; their snapshots."""
    received: Steps = {}
    expected: dict[int, list[int]] = {}
    snapshots = defaultdict(set)
    for name in names:
        for rank in range(RANKS):
            for line in map(json.loads, (out / f"{name}-{rank}.jsonl").read_text().splitlines()):
                received[line["epoch"], line["step"], rank] = line["rows"]
                snapshots[line["epoch"]].add(line["snapshot"])
                if line["expected"] is not None:
                    expected[line["epoch"]] = line["expected"]
    return received, expected, snapshots


def _audit(out: Path, *names: str) -> Steps:
    """Every epoch gave every row that it began with once, in as many steps on both ranks, of one snapshot."""
    received, expected, snapshots = read_logs(out, *names)
    assert set(expected) == set(range(EPOCHS))
    for epoch in range(EPOCHS):
        steps = [{step for e, step, r in received if (e, r) == (epoch, rank)} for rank in range(RANKS)]
        assert steps[0] == steps[1] == set(range(1, len(steps[0]) + 1))
        assert sorted(row for (e, _, _), rows in received.items() if e == epoch for row in rows) == expected[epoch]
        assert len(snapshots[epoch]) == 1
    assert len({len(rows) for rows in expected.values()}) > 2, "the data did change"
    return received


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_five_epochs_over_data_that_change_killed_and_resumed_twice(kind: str, tmp_path: Path) -> None:
    source, out = KINDS[kind](tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    source.create()
    for first in (0, 150, 300):
        source.append(range(first, first + 150))
    _run(Run(source=source, out=out, name="a", killed_at=(1, 2 + SAVED_EVERY)))
    _run(Run(source=source, out=out, name="b", killed_at=(3, 1 + SAVED_EVERY)))

    # The data as they are now, elsewhere: the rest of this epoch is the same there.
    moved = tmp_path / "moved" / "further" / "data"
    shutil.copytree(tmp_path / "data", moved, copy_function=shutil.copy)
    shutil.copytree(out, tmp_path / "out-moved")
    copied: Any = CopiedTable(moved, tmp_path / "data") if kind == "iceberg" else KINDS[kind](moved)
    elsewhere = Run(source=copied, out=tmp_path / "out-moved", name="d", epochs=4, writes=False)
    (tmp_path / "data").rename(tmp_path / "away")
    _run(elsewhere)
    (tmp_path / "away").rename(tmp_path / "data")

    _run(Run(source=source, out=out, name="c"))
    received = _audit(out, "a", "b", "c")
    there, _, _ = read_logs(tmp_path / "out-moved", "d")
    assert {epoch for epoch, _, _ in there} == {3}
    assert there == {place: rows for place, rows in received.items() if place[0] == 3 and place[1] > SAVED_EVERY}


def test_the_audit_finds_a_lost_and_a_repeated_row(tmp_path: Path) -> None:
    for rank in range(RANKS):
        with (tmp_path / f"x-{rank}.jsonl").open("w") as log:
            for epoch in range(EPOCHS):
                rows = list(range(epoch + 1)) if rank == 0 else []
                line = {"epoch": epoch, "step": 1, "rows": rows, "snapshot": 1, "expected": list(range(epoch + 1))}
                log.write(json.dumps(line) + "\n")
    _audit(tmp_path, "x")
    text = (tmp_path / "x-1.jsonl").read_text()
    (tmp_path / "x-1.jsonl").write_text(text.replace('"rows": []', '"rows": [0]', 1))
    with pytest.raises(AssertionError):
        _audit(tmp_path, "x")
