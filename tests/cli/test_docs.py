"""Every `tdu` line of the how-to runs, on the demo's data, after the Python that stands before it."""

import shlex
from pathlib import Path

from examples.demo.data import write_trips

from tests.cli.shell import tdu
from tests.docs.code_blocks import code_blocks

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md"
# Needs a catalog, a bucket or a shell of the reader's own.
NOT_HERE = ("://", "--catalog", "db.events")


def test_commands_of_the_page_run(tmp_path, monkeypatch):
    write_trips(tmp_path / ".demo" / "trips", tmp_path / ".demo" / "trips.orc")
    monkeypatch.chdir(tmp_path)
    ran = []
    for block in code_blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, str(PAGE), "exec"), {"__name__": "__page__"})
        for line in block.text.splitlines() if block.language == "bash" else ():
            if line.startswith("tdu ") and not any(part in line for part in NOT_HERE):
                assert tdu(*shlex.split(line)[1:]).stdout
                ran.append(line.split()[1])
    assert {"scan", "plan", "verify", "bench", "head", "state"} <= set(ran)
    assert Path("plan.html").exists()
