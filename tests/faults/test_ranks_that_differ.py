"""Ranks of a real process group that read other things: all raise, and name the difference; none waits for ever."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.faults.ranks import RANKS, run_ranks
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.blending import blend

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:A second pass over epoch"),
]

SOME = pc.field("group") < 3

Job = Callable[[Path, int], object]


def write(folder: Path) -> Path:
    """Four files of five row groups each."""
    for file in range(4):
        rows = np.arange(file * 50, file * 50 + 50)
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"row": rows, "group": rows % 7}), folder / f"{file}.parquet", row_group_size=10)
    return folder


def make(table: Any, **options: Any) -> Any:
    """A loader of four batches a rank, unless options say otherwise."""
    chosen = {"batch_size": 25, "shuffle": True, "split_rows": 10, "num_workers": 0, "num_ranks": "auto", **options}
    return StructuredDataset.create_dataloader(table, **chosen)[0]


def train(loader: Any, steps: int = 100) -> list[int]:
    """The rows of a pass, with a collective at each step, as in training."""
    rows = []
    for step, batch in zip(range(steps), loader, strict=False):
        rows += batch["row"].tolist()
        dist.barrier()
        if step + 1 == steps:
            break
    return rows


def set_epochs(table: Path, rank: int) -> None:
    loader = make(table)
    for epoch in range(3):
        if rank == 0:
            loader.set_epoch(epoch)
        train(loader)


def resume_one(table: Path, rank: int) -> None:
    loader = make(table)
    train(loader, steps=2)
    resumed = make(table)
    if rank == 1:
        resumed.load_state_dict(loader.state_dict())
    train(resumed)


def copies(table: Path, rank: int) -> None:
    """Copies under other paths, with other times and, on one rank, a file more."""
    own = table.parent / f"disk{rank}"
    write(own)
    os.utime(own / "0.parquet", (rank, rank))
    assert len(train(make(own))) == 100
    if rank == 1:
        pq.write_table(pa.table({"row": [1], "group": [1]}), own / "4.parquet")
    train(make(own))


def blend_others(table: Path, rank: int) -> None:
    blended = blend([make(table), make(table, shuffle_seed=3)], [1, 1])
    train(blended)
    blended.set_epoch(rank)
    train(blended)


DIFFERENT: dict[str, tuple[Job, str]] = {
    "seed": (lambda table, rank: train(make(table, shuffle_seed=rank)), "ConfigError: shuffle_seed 0 1"),
    "split rows": (lambda table, rank: train(make(table, split_rows=5 + rank)), "ConfigError: split_rows 5 6"),
    "batch size": (lambda table, rank: train(make(table, batch_size=20 + rank)), "ConfigError: batch_size 20 21"),
    "drop last": (lambda table, rank: train(make(table, drop_last=rank == 1)), "ConfigError: drop_last False True"),
    "columns": (lambda table, rank: train(make(table, columns=["row", "group"][: 2 - rank])), "ConfigError: columns"),
    "epoch": (set_epochs, "ConfigError: epoch 1 0"),
    "state": (resume_one, "CheckpointMismatchError: log none"),
    "files": (copies, "DataError: files 4 files with 20 row groups"),
    "names": (
        lambda table, rank: train(make([table / "0.parquet", table / f"{1 + rank}.parquet"])),
        "DataError: files",
    ),
    "workers": (lambda table, rank: train(make(table, num_workers=1 + rank)), "ConfigError: num_workers 1 2"),
    "filter": (lambda table, rank: train(make(table, filters=None if rank else SOME)), "ConfigError: filters"),
    "blend": (blend_others, "ConfigError: blend epoch 0 1"),
    "built in workers": (lambda table, rank: train(make(table, shuffle_seed=rank, num_workers=1)), "shuffle_seed 0 1"),
}


def look_alone(table: Path, rank: int) -> Any:
    """One rank looks at a batch, and evaluates alone, besides training."""
    loader, other = make(table), make(table, shuffle_seed=9, check_ranks=rank == 0)
    if rank == 0:
        next(iter(loader))
        list(make(table, shuffle_seed=11))
    seen = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        seen.append(train(loader, steps=100 if epoch else 2))
        if rank == 0:
            list(other)
    return seen


def pass_alone(table: Path, rank: int) -> Any:
    """One rank makes passes and looks of its own over the loader that it trains with, and builds one more."""
    loader, seen = make(table), []
    if rank == 0:
        list(loader)
    for epoch in range(3):
        if rank == 0:
            loader.set_epoch(100)
            next(iter(loader))
        loader.set_epoch(epoch)
        seen.append(train(loader))
        if rank == 0:
            next(iter(loader))
        for _ in range(2 - rank):
            rebuilt = make(table, shuffle_seed=epoch)
        train(rebuilt)
    return seen


def mean_it(table: Path, rank: int) -> Any:
    """Ranks that read other things on purpose."""
    return train(make(table, shuffle_seed=rank, num_ranks=1, check_ranks=False))


def shared_batches(table: Path, rank: int) -> Any:
    """Tensor parallelism: both ranks read everything; a part of it: each reads what it wants."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    both = train(make(table, num_ranks=1, mesh=mesh))
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "dp"))["dp"]
    train(make(table, num_ranks=1, mesh=alone, shuffle_seed=rank))
    return both


def many_epochs(table: Path, rank: int) -> int:
    """Keys of the store, which do not grow with epochs nor with loaders."""
    loader, store = make(table), dist.distributed_c10d._get_default_store()
    counts = []
    for epoch in range(20):
        loader.set_epoch(epoch)
        train(loader)
        train(make(table))
        dist.barrier()
        counts.append(store.num_keys())
        dist.barrier()
    return max(counts[15:]) - max(counts[10:15])


def mesh_that_differs(table: Path, rank: int) -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    train(make(table, num_ranks=1, mesh=mesh, shuffle_seed=rank))


DIFFERENT["mesh"] = (mesh_that_differs, "ConfigError: shuffle_seed 0 1")
ALIKE: dict[str, Job] = {
    "look alone": look_alone,
    "pass alone": pass_alone,
    "mean it": mean_it,
    "shared batches": shared_batches,
    "many epochs": many_epochs,
}


def _rank(rank: int, meeting: str, table: Path, jobs: dict[str, Job], answer: Any) -> None:
    answers = {}
    store = dist.TCPStore("127.0.0.1", 0, RANKS, is_master=True, wait_for_workers=False) if rank == 0 else None
    if store is not None:
        Path(f"{meeting}.part").write_text(str(store.port))
        Path(f"{meeting}.part").replace(meeting)
    else:
        while not Path(meeting).exists():
            os.sched_yield()
        store = dist.TCPStore("127.0.0.1", int(Path(meeting).read_text()), RANKS, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    for name, job in jobs.items():
        try:
            answers[name] = job(table, rank)
        except Exception as error:  # noqa: BLE001  # gloo's too
            answers[name] = f"{type(error).__name__}: {error}"
        dist.barrier()
    answer.send(answers)
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_that_read_other_things_all_raise_and_name_them(tmp_path: Path) -> None:
    jobs = {name: job for name, (job, _) in DIFFERENT.items()}
    first, second = run_ranks(_rank, tmp_path / "meeting", write(tmp_path / "table"), jobs)
    for name, (_, wanted) in DIFFERENT.items():
        assert first[name] == second[name], name
        assert all(word in first[name] for word in wanted.split()), (name, first[name])
        assert "rank 0" in first[name]
        assert "rank 1" in first[name]


def test_ranks_that_read_on_their_own_are_left_alone(tmp_path: Path) -> None:
    first, second = run_ranks(_rank, tmp_path / "meeting", write(tmp_path / "table"), ALIKE)
    for job, whole in (("look alone", 1), ("pass alone", 0)):
        for one, other in zip(first[job][whole:], second[job][whole:], strict=True):
            assert sorted(one + other) == list(range(200))
    assert sorted(first["mean it"]) == sorted(second["mean it"]) == list(range(200))
    assert first["shared batches"] == second["shared batches"]
    assert first["many epochs"] <= 0
