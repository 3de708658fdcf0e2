"""Every example as its reader would start it, in an empty directory; each audits the rows it received."""

import contextlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from examples.trips import find_trips

from tests.gloo_threads import check_ended, python_path
from tests.store.moto_server import BUCKET, running_moto

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
EPOCHS = [f"epoch {epoch}: 20,015 + 20,015 = 40,030 rows, each once" for epoch in range(2)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all of them run in, so that the data is written once."""
    return tmp_path_factory.mktemp("home")


def run(home: Path, module: str, num_processes: int | None = 2, *arguments: str, **environment: str) -> list[str]:
    """The lines that an example prints; under torchrun unless it starts its processes itself (None)."""
    command = [sys.executable, "-m"]
    fixed = {"PYTHONPATH": python_path(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    fixed["RAY_ADDRESS"] = "local"  # not the cluster of another test
    if num_processes is not None:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes), "-m"]
    done = subprocess.run(
        [*command, f"examples.{module}", *arguments],
        cwd=home,
        timeout=300,
        env={**os.environ, **fixed, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    check_ended(done.stdout)
    return done.stdout.splitlines()


def check_validation(lines: list[str], times: int = 1) -> None:
    """Check that validations counted each row once, and that errors are far below 5.6, that of the mean fare."""
    found = re.findall(r"validation: mean error (\d+\.\d+) over ([\d,]+) rows", "\n".join(lines))
    assert [rows for _, rows in found] == ["5,003"] * times
    assert all(float(error) < 4 for error, _ in found)


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip where one of these is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")


def test_examples_are_short() -> None:
    long = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "examples").glob("*_train.py")}
    assert long
    assert max(long.values()) < 100, long


def test_ddp_goes_on_from_its_checkpoint_on_one_rank(home: Path) -> None:
    lines = run(home, "ddp_train", 2, "--epochs", "2")
    assert [line for line in lines if "each once" in line] == EPOCHS
    check_validation(lines, 2)
    lines = run(home, "ddp_train", 1, "--epochs", "3")
    assert lines[0] == "epoch 2: 40,030 = 40,030 rows, each once"
    check_validation(lines)


def test_a_job_that_loses_hosts_is_exact(home: Path) -> None:
    lines = run(home, "prove", None)
    assert sum("kill -9" in line for line in lines) == 2
    assert sum("40,030 of 40,030 came exactly once" in line for line in lines) == 2


@needs("s3fs", "moto")
def test_ddp_reads_from_a_store(home: Path) -> None:
    with running_moto() as (server, client):
        for path in Path(find_trips(home / ".demo")).rglob("*.parquet"):
            client.upload_file(str(path), BUCKET, str(path.relative_to(home / ".demo")))
        store = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
        }
        data = ["--data", f"s3://{BUCKET}/trips", "--checkpoint", "store.pt", "--epochs", "1"]
        lines = run(home, "ddp_train", 2, *data, **store)
    assert [line for line in lines if "each once" in line] == EPOCHS[:1]


@needs("torchtitan")
def test_torchtitan_saves_the_loader_and_goes_on_with_another_number_of_ranks(home: Path) -> None:
    assert sum("stops after 5,120 rows" in line for line in run(home, "titan_train", 2)) == 2
    lines = run(home, "titan_train", 3)
    assert "epoch 0: 20,170 + 9,930 + 9,930 = 40,030 rows, each once" in lines
    check_validation(lines)


@needs("grain", "jax")
def test_jax_goes_on_in_the_middle_of_an_epoch(home: Path) -> None:
    lines = run(home, "jax_train", None)
    assert lines[-2] == "40,030 rows, each once, in spite of a stop after step 60"
    check_validation(lines)


def test_a_forecast_is_better_than_last_week(home: Path) -> None:
    (line,) = run(home, "forecast", None)
    found, naive = map(float, re.findall(r"0\.\d+", line))
    assert found < 0.9 * naive


def test_fsdp2_stops_in_an_epoch_and_goes_on_with_another_number_of_ranks(home: Path) -> None:
    first = run(home, "fsdp2_train")
    assert first[0] == EPOCHS[0]
    assert "after 5,120 rows" in " ".join(first)
    second = run(home, "fsdp2_train", num_processes=3)
    assert [line for line in second if "each once" in line] == [
        "epoch 1: 20,170 + 9,930 + 9,930 = 40,030 rows, each once",
        "epoch 2: 13,343 + 13,344 + 13,343 = 40,030 rows, each once",
    ]
    check_validation([*first, *second], 3)


def test_packed_training(home: Path) -> None:
    lines = run(home, "packed_training", None, "--communicate")
    assert [line.split()[:2] for line in lines] == [["step", str(step)] for step in range(0, 20, 4)]


def losses(lines: list[str]) -> list[float]:
    return [float(line.removeprefix("loss ")) for line in lines if line.startswith("loss ")]


@needs("transformers")
@pytest.mark.parametrize("program", ["pretrain", "dpo", pytest.param("recommend", marks=needs("torchrec"))])
def test_a_short_program_learns(home: Path, program: str) -> None:
    found = losses(run(home, f"short.{program}", None))
    assert len(found) > 10
    assert found[-1] < 0.7 * found[0]


@needs("transformers")
def test_short_fine_tuning_goes_on_where_it_stopped(home: Path) -> None:
    first, second = (losses(run(home, "short.sft")) for _ in range(2))
    assert len(first) == len(second) == 8
    assert second[-1] < second[0] < first[-1] < first[0]


@needs("transformers", "pyiceberg")
def test_fine_tuning_reads_an_iceberg_table(tmp_path: Path) -> None:
    from examples.short.parts import write
    from pyiceberg.catalog.sql import SqlCatalog

    with contextlib.chdir(tmp_path):
        talks = pq.read_table(write("talks"), columns=["messages"])
    (tmp_path / "lake").mkdir()
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=str(tmp_path / "lake"))
    catalog.create_namespace("db")
    table = catalog.create_table("db.talks", talks.schema)
    table.append(talks)
    found = losses(run(tmp_path, "short.sft", 2, table.location().removeprefix("file://")))
    assert len(found) == 8
    assert found[-1] < found[0]


@needs("PIL")
@pytest.mark.parametrize("arguments", [[], ["--threads"]])
def test_images(home: Path, arguments: list[str]) -> None:
    lines = run(home, "images", None, *arguments)
    assert lines == [f"epoch {epoch}: 600 images, each once, with its own row" for epoch in range(2)]


@needs("accelerate")
def test_accelerate(home: Path) -> None:
    lines = run(home, "accelerate_train")
    assert [line for line in lines if "each once" in line] == EPOCHS[:1]
    assert sum("of 40,030 rows" in line for line in lines) == 1
    lines = run(home, "accelerate_train", 3)
    assert [line for line in lines if "each once" in line] == [
        "epoch 1: 20,170 + 9,930 + 9,930 = 40,030 rows, each once"
    ]
    check_validation(lines)


@needs("lightning")
def test_lightning(home: Path) -> None:
    lines = run(home, "lightning_train", None) + run(home, "lightning_train", None, "--resume")
    assert [line for line in lines if "each once" in line] == [
        EPOCHS[0],
        "epoch 1: 20,512 + 9,759 + 9,759 = 40,030 rows, each once",
    ]
    check_validation(lines, 2)


@needs("transformers", "accelerate")
def test_transformers(home: Path) -> None:
    lines = run(home, "transformers_train") + run(home, "transformers_train", 3, "--resume")
    assert [line for line in lines if "each once" in line] == [
        EPOCHS[0],
        "epoch 1: 20,512 + 9,759 + 9,759 = 40,030 rows, each once",
    ]
    check_validation(lines)


@needs("ray")
def test_ray(home: Path) -> None:
    lines = run(home, "ray_train", num_processes=None)
    text = "\n".join(lines)
    assert "epoch 0: 13,344 + 13,343 + 13,343 = 40,030 rows, each once" in text
    assert "epoch 1: 27,695 + 12,335 = 40,030 rows, each once" in text
    check_validation(sorted(set(lines)), 2)  # Ray may repeat lines of its workers


@needs("ray")
def test_ray_tokenize(home: Path) -> None:
    lines = run(home, "ray_tokenize", num_processes=None)
    assert [line for line in lines if line.startswith("epoch")] == [
        f"epoch {epoch}: 3,000 texts, each once, from 2 actors" for epoch in range(2)
    ]


@needs("matplotlib")
def test_throughput_plot(home: Path) -> None:
    run(home, "plot_loader", num_processes=None)
    assert (home / ".demo" / "loader.png").read_bytes().startswith(b"\x89PNG")
