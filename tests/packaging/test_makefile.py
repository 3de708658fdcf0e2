"""The commands of the README on a fresh checkout, as make would run them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.processes, pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")]


def steps(target: str, environment: Path) -> tuple[str, str]:
    """What make would run for a target, and what it complains about."""
    command = ["make", "--dry-run", target, f"VENV={environment}"]
    # Nothing of the make that runs these tests.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "TIER"))}
    done = subprocess.run(command, cwd=ROOT, check=True, timeout=300, capture_output=True, text=True, env=environ)
    return done.stdout, done.stderr


@pytest.mark.parametrize("target", ["demo", "quick", "test", "docs", "bench"])
def test_each_target_makes_its_environment_before_it_runs(target: str, tmp_path: Path) -> None:
    commands, complaints = steps(target, tmp_path / "venv")
    assert complaints == ""
    assert commands.index("-m venv") < commands.index("--editable .") < commands.rindex(f"{tmp_path}/venv/bin/")


def test_benchmarks_say_where_their_results_are(tmp_path: Path) -> None:
    assert "results: benchmarks/results/" in steps("bench", tmp_path / "venv")[0]
