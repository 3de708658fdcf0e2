"""A training job for test_killed_jobs: under torchrun, every rank logs the rows of each step; rank 0 saves states."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from torch_dataloader_utils import StructuredDataset


def main():
    folder, table, run, num_workers, batch_size, last_step = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    dist.init_process_group("gloo")
    loader, _ = StructuredDataset.create_dataloader(
        table,
        batch_size=batch_size,
        shuffle=True,
        shuffle_rows=64,
        split_rows=50,
        num_workers=num_workers,
        num_ranks="auto",
        audit=folder / "audits",
    )
    checkpoint = folder / "checkpoint.json"
    if checkpoint.exists():
        loader.load_state_dict(json.loads(checkpoint.read_text())["state"])
    steps = torch.tensor([len(loader)])
    with (folder / f"rows-{run}-{dist.get_rank()}.jsonl").open("w") as log:
        for step, batch in enumerate(loader, start=1):
            log.write(json.dumps({"step": step, "rows": batch["row"].tolist()}) + "\n")
            log.flush()
            dist.all_reduce(steps)
            if dist.get_rank() == 0:
                temporary = checkpoint.with_suffix(".tmp")
                temporary.write_text(json.dumps({"run": run, "step": step, "state": loader.state_dict()}))
                temporary.replace(checkpoint)
            dist.barrier()
            if step == last_step:
                own = folder / f"pid-{run}-{dist.get_rank()}"
                own.write_text(str(os.getpid()))
                own.rename(folder / f"waiting-{run}-{dist.get_rank()}")
                sys.stdin.read()  # until the test kills us
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
