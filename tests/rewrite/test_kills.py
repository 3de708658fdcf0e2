"""A shuffle that is killed at any moment is continued by the same call, with the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rewrite.tables import contents, write_files

pytestmark = [pytest.mark.processes, pytest.mark.slow]

# The process is killed just before the n-th time that a file gets its name or a directory is removed, for every n. Each
# try is a fork of a process whose libraries have started no thread yet.
SCRIPT = """
import os, signal, sys
from pathlib import Path
import pyarrow
pyarrow.set_cpu_count(1)
pyarrow.set_io_thread_count(1)
from torch_dataloader_utils import shuffle_table
import torch_dataloader_utils.datasets.structured

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
sizes = {"file_bytes": 4_500, "row_group_bytes": 1_500}

def run(name, memory, deaths=0):
    pid = os.fork()
    if pid == 0:
        seen = 0
        def count(event, arguments):
            nonlocal seen
            if event in ("os.rename", "shutil.rmtree"):
                seen += 1
                if seen == deaths:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(count)
        try:
            shuffle_table(source, folder / name, memory=memory, **sizes)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

deaths = 1
while (code := run(f"at-{deaths}", 9_000, deaths)) == -signal.SIGKILL:
    is_whole = (folder / f"at-{deaths}").exists()
    print(deaths, is_whole, run(f"at-{deaths}", 9_000 if deaths % 2 else 20_000), flush=True)
    deaths += 1
# One target that is killed again and again, each time after one more job.
again = 0
while run("again", 9_000, 4) == -signal.SIGKILL:
    again += 1
print("end", code, again, flush=True)
"""


def test_a_shuffle_killed_before_any_step_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    write_files(tmp_path / "source", [[50, 1], [49]])
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path / "source", tmp_path / "out"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    *tries, end = (line.split() for line in done.stdout.splitlines())
    # job.json, a receipt for each spill file, two names for each output file, the record, the table, the remains.
    assert len(tries) >= 10, done.stdout
    assert {code for _, _, code in tries} == {"0"}, done.stderr
    assert end[:2] == ["end", "0"]
    assert int(end[2]) >= 3
    assert [whole for _, whole, _ in tries] == ["False"] * (len(tries) - 1) + ["True"]
    expected = contents(tmp_path / "out" / f"at-{len(tries) + 1}")
    for target in (tmp_path / "out").iterdir():
        assert contents(target) == expected
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "again",
        *(f"at-{n + 1}" for n in range(len(tries) + 1)),
    }
