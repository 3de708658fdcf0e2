"""One rank of a job that may be killed at any moment. On each host:

torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:29500 --rdzv-backend c10d \
    -m examples.prove.train DATA RUN

Every rank reads its rows of DATA, and takes part in one all-reduce a step. Rank 0 saves the state of the loader in RUN
for all ranks. Started again, with any number of ranks, the job goes on from this state.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"

from torch_dataloader_utils import open_loader


def train(data: str, run: Path, *, epochs: int, batch_size: int, save_every_steps: int, step_seconds: float) -> None:
    """Read all epochs that are left, with a record of the rows of every step in RUN/audits."""
    loader: Any = open_loader(
        data, batch_size=batch_size, shuffle=True, num_ranks="auto", num_workers=2, audit=run / "audits"
    )
    state = saved_state(run / "state.json")
    if state is not None:
        loader.load_state_dict(state)
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)  # keeps a loaded position that is in this epoch
        for step, _ in enumerate(loader, start=1):
            dist.all_reduce(torch.ones(1))
            time.sleep(step_seconds)
            if step % save_every_steps == 0:
                save(run / "state.json", loader.state_dict())
        save(run / "state.json", loader.state_dict())
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {len(loader)} steps on {dist.get_world_size()} ranks", flush=True)


def saved_state(path: Path) -> dict[str, Any] | None:
    """Return rank 0's saved state on every rank: the other hosts need not see the file."""
    states: list[Any] = [None]
    if dist.get_rank() == 0 and path.exists():
        states = [json.loads(path.read_text())]
    dist.broadcast_object_list(states)
    return states[0]


def save(path: Path, state: dict[str, Any]) -> None:
    """Write the state on rank 0, whole or not at all. It is the same on every rank."""
    if dist.get_rank() == 0:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(state))
        partial.replace(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="files, a directory or a table, under the same path on every host")
    parser.add_argument("run", type=Path, help="folder of the state and the records; each host may have its own")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--save-every-steps", type=int, default=10)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="time of a step, to have time for a kill")
    given = vars(parser.parse_args())
    dist.init_process_group("gloo")
    try:
        train(**given)
    finally:
        dist.destroy_process_group()
