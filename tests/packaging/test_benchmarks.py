"""The scripts of `make bench` find all they take from the library and from each other, and run, on small data."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
SMALL = {
    "blend": ["0.02", "1"],
    "columns_at_once": ["0.02", "1"],
    "cores": ["0.02", "1", "2"],
    "device": ["0.02", "1", "1"],
    "goals": ["0.02", "1"],
    "host_cache": ["--epochs", "2", "--latency", "0"],
    "host_cache_on_paper": ["--terabytes", "0.1", "--hosts", "4", "--epochs", "5"],
    "images": ["40", "1"],
    "import_time": [],
    "lanes": ["0.02", "1"],
    "length_bucketing": ["--rows", "5000"],
    "memory": ["8", "0.02", "1"],
    "many_objects": ["--objects", "40", "--rounds", "1"],
    "observing": [],
    "pack_tokens": ["1", "1"],
    "packing_schedules": ["--seeds", "1", "--rounds", "1"],
    "packing_trl": ["1", "1"],
    "padding_saved": ["--items", "5000", "--epochs", "1"],
    "peers": ["0.02", "1"],
    "planning": ["10000"],
    "random_rows": ["--rows", "20000"],
    "ray_workers": ["0.02", "1"],
    "read_row_groups": ["--rounds", "1", "--groups", "1"],
    "remote": ["--files", "1", "--rows", "4000", "--rounds", "1"],
    "resume": ["0.05", "1"],
    "sequences": ["1", "10"],
    "shape_blocks": ["--rounds", "1"],
    "shuffle_once": ["0.02", "1"],
    "shuffle_quality": [],
    "slow_link": ["--latency", "0", "--connection-mb", "10000", "--link-mb", "10000", "--rounds", "1"],
    "small_files": ["20", "1"],
    "tabular": ["0.02", "1"],
    "token_indexes": ["--tokens", "1000000", "--rounds", "1"],
    "tokens": ["1", "1"],
    "trainer": ["0.02", "1", "4096"],
    "workers": ["0.02", "1"],
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_benchmark_can_be_imported(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(script.parent)
    assert "__doc__" in runpy.run_path(str(script), run_name="imported")


def test_all_scripts_that_make_bench_runs_are_known_here() -> None:
    assert sorted(SMALL) == [script.stem for script in SCRIPTS if "\nif __name__" in script.read_text()]


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "BENCH_DATA": str(tmp_path / "data"), "BENCH_RESULTS": str(tmp_path / "results")}
    command = [sys.executable, str(FOLDER / f"{name}.py"), *SMALL[name]]
    environment["RAY_ADDRESS"] = "local"  # not the cluster of another test
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
