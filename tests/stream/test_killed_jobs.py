"""Ranks killed with SIGKILL in the middle of an epoch and started again on another number of ranks."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.stream.tables import write_table
from torch_dataloader_utils.cli.job_audit import audit_job

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def start(folder, table, run, topology, last_step):
    ranks, workers, batch_size = topology
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        + [str(Path(__file__).with_name("killed_job.py")), str(folder), str(table)]
        + [str(value) for value in (run, workers, batch_size, last_step)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def kill(job, waiting):
    """SIGKILL to torchrun and to its ranks, which have written their ids."""
    ranks = [int(path.read_text()) for path in waiting if path.exists()]
    processes = [psutil.Process(pid) for pid in (job.pid, *ranks)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # workers end by themselves when their rank does
            process.kill()
    psutil.wait_procs(processes, timeout=30)


def received(folder, run, upto):
    rows = []
    for log in folder.glob(f"rows-{run}-*.jsonl"):
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        rows += [row for entry in entries if entry["step"] <= upto for row in entry["rows"]]
    return rows


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "topologies", [[(3, 1, 7), (2, 0, 16), (4, 0, 5)], [(1, 2, 9), (2, 1, 8)]], ids=["3x1-2x0-4x0", "1x2-2x1"]
)
def test_the_union_over_kills_and_restarts_is_the_table(tmp_path, topologies):
    table = tmp_path / "table"
    table.mkdir()
    total = write_table(table, [[100, 37, 60], [22, 150], [1], [80, 80, 80]])
    rows = []
    for run, topology in enumerate(topologies):
        is_last = run == len(topologies) - 1
        job = start(tmp_path, table, run, topology, 0 if is_last else 4 + run)
        waiting = [tmp_path / f"waiting-{run}-{rank}" for rank in range(topology[0])]
        try:
            if is_last:
                output, _ = job.communicate(timeout=240)
                assert job.returncode == 0, output.decode()
            else:
                wait_for(waiting, job)
        finally:
            if job.poll() is None:
                kill(job, waiting)
            job.stdin.close()
            job.stdout.close()
            job.wait(timeout=30)
        checkpoint = json.loads((tmp_path / "checkpoint.json").read_text())
        assert len(json.dumps(checkpoint["state"])) < 1000
        rows += received(tmp_path, run, checkpoint["step"] if not is_last else 10**9)
    assert Counter(rows) == Counter(range(total))
    audit = audit_job(tmp_path / "audits")
    assert audit.is_exact, audit
    assert [(epoch.state, epoch.once) for epoch in audit.epochs] == [("complete", total)]


def wait_for(paths, job):
    """Until all files are there; the job must not end before."""
    while not all(path.exists() for path in paths):
        if job.poll() is not None:
            pytest.fail(job.stdout.read().decode())
        time.sleep(0.05)  # polling another process; nothing is asserted about time
