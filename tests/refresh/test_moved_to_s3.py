"""Files that were copied from a local directory to S3: a job that was killed in an epoch goes on there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.discover.datasets import WRITERS
from tests.faults.ranks import RANKS, run_ranks
from tests.refresh.job import SAVED_EVERY, Run, train
from tests.refresh.sources import Files
from tests.refresh.test_jobs import Steps, read_logs
from tests.store.moto_server import MotoS3, moto_s3
from torch_dataloader_utils.errors import CheckpointMismatchError

OPTIONS: dict[str, Any] = {"batch_size": 40, "shuffle": True, "num_workers": 0, "identity": "content"}


@pytest.fixture(scope="module")
def s3() -> Iterator[MotoS3]:
    with moto_s3() as made:
        yield made


def write_files(folder: Path, kind: str, first: int = 1000) -> None:
    """Four files in two directories; rows are numbered from `first` on, all of as many digits."""
    for file in range(4):
        path = folder / f"day={file // 2}" / f"part-{file}"
        path.parent.mkdir(parents=True, exist_ok=True)
        start = first + 400 * file
        WRITERS[kind][1](path, pa.table({"id": pa.array(range(start, start + 400), pa.int64())}))


def upload(folder: Path, s3: MotoS3, key: str) -> str:
    """Copy all files below a key; their URL."""
    for file in folder.rglob("part-*"):
        s3.put(f"{key}/{file.relative_to(folder)}", file.read_bytes())
    return f"s3://bucket/{key}"


def run(job: Run) -> None:
    answers = run_ranks(train, job.out / f"meeting-{job.name}", job, start="forkserver")
    assert answers == [None if job.killed_at else "done"] * RANKS


def whole_epoch(source: Files, epoch: int) -> Steps:
    """What every rank receives at every step of an epoch that nothing stops."""
    steps: Steps = {}
    for rank in range(RANKS):
        loader, _ = source.open(num_ranks=RANKS, rank=rank, **OPTIONS)
        loader.set_epoch(epoch)
        steps |= {(epoch, step, rank): batch["id"].tolist() for step, batch in enumerate(loader, start=1)}
    return steps


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_job_killed_on_local_files_goes_on_with_their_copies_on_s3(kind: str, s3: MotoS3, tmp_path: Path) -> None:
    write_files(tmp_path / "data", kind)
    local = Files(str(tmp_path / "data"), WRITERS[kind][0], {})
    expected = whole_epoch(local, 1)
    out = tmp_path / "out"
    out.mkdir()
    job = Run(source=local, out=out, name="local", killed_at=(1, SAVED_EVERY + 2), writes=False, batch_size=40)
    run(job)
    there = upload(tmp_path / "data", s3, f"{kind}/else where")
    (tmp_path / "data").rename(tmp_path / "gone")
    run(
        replace(job, source=replace(local, path=there, storage_options=s3.options), name="s3", killed_at=None, epochs=2)
    )

    before, _, _ = read_logs(out, "local")
    after, _, _ = read_logs(out, "s3")
    assert min(after) == (1, SAVED_EVERY + 1, 0)
    epoch = {place: rows for place, rows in {**before, **after}.items() if place[0] == 1}
    assert epoch == expected
    assert sorted(row for rows in epoch.values() for row in rows) == list(range(1000, 2600))


@pytest.mark.slow
@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", WRITERS)
def test_other_data_under_the_same_names_on_s3_are_refused(kind: str, s3: MotoS3, tmp_path: Path) -> None:
    write_files(tmp_path / "here", kind)
    write_files(tmp_path / "there", kind, first=3000)
    state = Files(str(tmp_path / "here"), WRITERS[kind][0], {}).open(**OPTIONS)[0].state_dict()
    others = Files(upload(tmp_path / "there", s3, f"{kind}/other"), WRITERS[kind][0], s3.options)
    with pytest.raises(CheckpointMismatchError, match="files by digest"):
        others.open(**OPTIONS)[0].load_state_dict(state)
