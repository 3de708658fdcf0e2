"""One rank: FSDP2 and meshes, a distributed checkpoint, and Accelerate in all the ways it meets a loader."""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from tests.integrations.jobs import BATCH_ROWS
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.accelerate import prepare


def make_loader(table: Path, **options: Any) -> Any:
    """A shuffled loader of this rank, which it finds out itself unless told."""
    options = {"batch_size": BATCH_ROWS, "shuffle": True, "split_rows": 9, "num_ranks": "auto", **options}
    return StructuredDataset.create_dataloader(table, **options)[0]


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """Something to train on."""
    loss: torch.Tensor = model(batch["x"][:, None]).square().mean()
    return loss


def fsdp2(table: Path, folder: Path) -> dict[str, Any]:
    """Train with fully_shard; checkpoint with torch.distributed.checkpoint after three steps."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",))
    model = fully_shard(nn.Linear(1, 4), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = make_loader(table, num_ranks=1, mesh=mesh)
    steps = []
    for step, batch in enumerate(loader, start=1):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(batch["row"].tolist())
        if step == 3:
            dcp.save({"model": model.state_dict(), "loader": loader}, checkpoint_id=folder / "checkpoint")
    return {"steps": steps}


def meshes(table: Path) -> dict[str, Any]:
    """What the ranks of a tensor-parallel group see, and those of a replicated one."""
    shared = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    split = init_device_mesh("cpu", (2, 1, 1), mesh_dim_names=("dp_replicate", "dp_shard", "cp"))
    rows = {}
    for name, mesh in {"shared": shared, "split": split, "part": split["dp_replicate", "dp_shard"]}.items():
        rows[name] = [batch["row"].tolist() for batch in make_loader(table, mesh=mesh)]
    return rows


def accelerate_plainly(table: Path, folder: Path) -> dict[str, Any]:
    """`accelerator.prepare` only: two epochs of accumulated training, a saved state in the second."""
    accelerator = Accelerator(
        gradient_accumulation_steps=3, dataloader_config=DataLoaderConfiguration(dispatch_batches=True)
    )
    loader = make_loader(table)
    model = nn.Linear(1, 1)
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3), loader)
    report: dict[str, Any] = {"is_same": prepared is loader, "steps": [], "synced": [], "ends": [], "rest": []}
    for epoch in range(2):
        prepared.set_epoch(epoch)
        for batch in prepared:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
            report["steps"].append(batch["row"].tolist())
            report["synced"].append(accelerator.sync_gradients)
            report["ends"].append(accelerator.gradient_state.end_of_dataloader)
            if len(report["steps"]) == 10:
                accelerator.save_state(str(folder / "accelerate"))
                accelerator.wait_for_everyone()
    report["is_left"] = accelerator.gradient_state.active_dataloader is None
    accelerator.load_state(str(folder / "accelerate"))
    report["rest"] = [batch["row"].tolist() for batch in prepared]
    prepared.place("meta")
    report["device"] = next(iter(prepared))["x"].device.type
    accelerator.free_memory()
    return report


def accelerate_gather(table: Path) -> dict[str, Any]:
    """Rows as `gather_for_metrics` returns them: unequal batches, repeated rows, nested tensors, objects."""
    accelerator = Accelerator()
    loader = prepare(accelerator, make_loader(table))
    # Of these the first rank repeats a row, of those the last one.
    first = prepare(accelerator, make_loader(table, batch_size=1, split_rows=11, shuffle_seed=0))
    last = prepare(accelerator, make_loader(table, batch_size=1))
    report: dict[str, Any] = {
        "rows": [],
        "pairs": [],
        "first": [],
        "last": [],
        "names": [],
        "repeats": {},
        "agree": True,
    }
    for batch in loader:
        rows, (twice, _) = accelerator.gather_for_metrics((batch["row"], [2 * batch["row"], batch["x"].sum()]))
        report["rows"].append(rows.tolist())
        report["pairs"].append(twice.tolist())
        report["names"] += accelerator.gather_for_metrics([str(row) for row in batch["row"].tolist()])
    for name, ones in {"first": first, "last": last}.items():
        report["repeats"][name] = ones.plan.padding_rows(accelerator.process_index)
        for batch in ones:
            gathered = accelerator.gather_for_metrics(batch)["row"].tolist()
            report[name].append(gathered)
            names = accelerator.gather_for_metrics([str(row) for row in batch["row"].tolist()])
            report["agree"] &= names == [str(row) for row in gathered]
    unplaced = make_loader(table)
    report["is_same"] = prepare(accelerator, unplaced, device_placement=[False]) is unplaced
    return report


if __name__ == "__main__":
    given_table, given_folder = map(Path, sys.argv[1:])
    dist.init_process_group("gloo")
    whole_report = {
        "fsdp2": fsdp2(given_table, given_folder),
        "meshes": meshes(given_table),
        "plain": accelerate_plainly(given_table, given_folder),
        "gather": accelerate_gather(given_table),
    }
    (given_folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(whole_report))
    # Else gloo's threads outlive the group: docs/how-to/ddp.md, "When a job ends".
    _clear_sharding_prop_cache()
    gc.collect()
    dist.destroy_process_group()
