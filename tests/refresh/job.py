"""A job of two ranks that trains over data that change meanwhile, saves checkpoints, and may be killed."""

import json
import os
import signal
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.ranks import RANKS
from torch_dataloader_utils import load_inventory, save_inventory

EPOCHS = 5
SAVED_EVERY = 4

# What happens to the data within an epoch, after so many steps. Files of the snapshot that is being read go only once
# the next epoch has begun; those of a directory, which has no snapshots, with the last step.
CHANGES: dict[int, dict[int, tuple[str, ...]]] = {
    0: {2: ("append",)},
    1: {1: ("expire",), 3: ("append", "append")},
    2: {2: ("append", "compact")},
    3: {1: ("expire",), 6: ("append",)},
    4: {2: ("expire",)},
}


@dataclass(frozen=True)
class Run:
    """One start of the job.

    out: where checkpoints and the ranks' logs lie. killed_at: (epoch, step) after which all ranks are killed.
    epochs: after how many it ends. writes: whether the data change; not in a copy.
    """

    source: Any
    out: Path
    name: str
    killed_at: tuple[int, int] | None = None
    epochs: int = EPOCHS
    writes: bool = True
    batch_size: int = 16


def train(rank: int, meeting: str, run: Run, answer: Any) -> None:
    """One rank: it goes on from the last checkpoint, if there is one."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    saved = run.out / "checkpoint.json"
    state = json.loads(saved.read_text()) if saved.exists() else None
    loader, dataset = run.source.open(
        batch_size=run.batch_size,
        shuffle=True,
        num_workers=0,
        num_ranks="auto",
        refresh="epoch",
        identity="content",
        **_place(run, state),
    )
    if state is not None:
        loader.load_state_dict(state["loader"])
    done = 0 if state is None else state["step"]
    with (run.out / f"{run.name}-{rank}.jsonl").open("w") as log:
        for epoch in range(loader.epoch, run.epochs):
            loader.set_epoch(epoch)
            expected = run.source.rows() if rank == 0 and done == 0 and run.writes else None
            dist.barrier()  # the oracle reads what this epoch began with
            for step, batch in enumerate(loader, start=done + 1):
                line = {"epoch": epoch, "step": step, "rows": batch["id"].tolist(), "snapshot": dataset.snapshot_id}
                log.write(json.dumps({**line, "expected": expected}) + "\n")
                log.flush()
                dist.all_reduce(torch.ones(1))
                if rank == 0:
                    for change in _changes(run, epoch, step, is_last=step == len(loader)):
                        _change(run, change)
                    if step % SAVED_EVERY == 0 or step == len(loader):
                        _save(run, loader, dataset, step)
                dist.barrier()
                if run.killed_at == (epoch, step):
                    os.kill(os.getpid(), signal.SIGKILL)
            done = 0
    answer.send("done")
    dist.destroy_process_group()


def _place(run: Run, state: Any) -> dict[str, Any]:
    """Where the loader begins: inside an epoch with its data, else with the newest."""
    if state is None or state["step"] == 0:
        return {}
    if run.source.pin is None:
        return {"inventory": load_inventory(run.out / "inventory.parquet")} if run.writes else {}
    return {run.source.pin: state["snapshot"]}


def _save(run: Run, loader: Any, dataset: Any, step: int) -> None:
    is_end = step == len(loader)
    if run.source.pin is None:
        save_inventory(loader.plan.inventory, run.out / "inventory.parquet")
    saved = {"loader": loader.state_dict(), "snapshot": dataset.snapshot_id, "step": 0 if is_end else step}
    (run.out / "new.json").write_text(json.dumps(saved))
    (run.out / "new.json").rename(run.out / "checkpoint.json")


def _changes(run: Run, epoch: int, step: int, *, is_last: bool) -> list[str]:
    changes = list(CHANGES[epoch].get(step, ())) if run.writes else []
    if run.writes and run.source.pin is None:
        changes = [name for name in changes if name != "compact"]
        changes += ["compact"] * (is_last and "compact" in chain(*CHANGES[epoch].values()))
    return changes


def _change(run: Run, name: str) -> None:
    if name == "append":
        first = 1000 * (1 + len(list(run.out.glob("appended-*"))))
        (run.out / f"appended-{first}").touch()
        run.source.append(range(first, first + 70))
    else:
        getattr(run.source, name)()
