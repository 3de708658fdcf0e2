"""Runs one snippet as one rank of a job under torchrun: python -m tests.seed.run_snippet NAME DATA REPORTS.

NCCL becomes gloo and the bucket a local directory, and Horovod's snippet chooses no CUDA device; nothing else of a
snippet is changed. The model notes what it was given, and writes it to REPORTS/rank<r>.json: lists of row ids, a step.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.seed import horovod_stand_in, snippets

NUM_EPOCHS = 2


class Model(nn.Module):
    """The loss of a linear model of one feature; keeps the features of every call, which are row ids."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.steps: list[list[float]] = []

    def forward(self, feature: Tensor, label: Tensor) -> Tensor:
        self.steps.append(feature.tolist())
        return nn.functional.mse_loss(self.linear(feature[:, None] / 1000).squeeze(1), label)


class WrappedWhenCalled:
    """The model under DDP, wrapped at its first call: the snippet makes the process group itself."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._wrapped: DistributedDataParallel | None = None

    def __call__(self, *arguments: Tensor) -> Any:
        self._wrapped = self._wrapped or DistributedDataParallel(self._model)
        return self._wrapped(*arguments)


def main(name: str, data: str, reports: Path) -> None:
    """Run the snippet and write what the model was given."""
    text = getattr(snippets, name).replace('"nccl"', '"gloo"').replace("s3://bucket/training-data/", data)
    text = text.replace("torch.cuda.set_device(hvd.local_rank())\n", "")
    model = Model()
    # Accelerate wraps the model itself, and Horovod the optimizer.
    given = WrappedWhenCalled(model) if name == "PYTORCH_DDP" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    program = compile(text, f"{name.lower()}.py", "exec")
    exec(program, {"__name__": "__main__", "model": given, "optimizer": optimizer, "num_epochs": NUM_EPOCHS})
    horovod_stand_in.shutdown()
    (reports / f"rank{os.environ['RANK']}.json").write_text(json.dumps(model.steps))


if __name__ == "__main__":
    horovod_stand_in.install()
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    if dist.is_initialized():
        dist.destroy_process_group()
