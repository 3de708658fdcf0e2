"""Stands in for `horovod.torch`, which does not build with torch as it is: the four names that the snippet uses.

As with Horovod there is no process group of torch.distributed: gradients are averaged by gloo itself, started from the
environment that torchrun gives.
"""

import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from types import ModuleType

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

_groups: list[dist.ProcessGroupGloo] = []


def install() -> None:
    """Let `import horovod.torch as hvd` find this module."""
    package = ModuleType("horovod")
    package.torch = sys.modules[__name__]  # type: ignore[attr-defined]
    sys.modules |= {"horovod": package, "horovod.torch": sys.modules[__name__]}


def init() -> None:
    """Meet the other ranks."""
    port = int(os.environ["MASTER_PORT"])
    joins = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or rank() != 0  # torchrun's store listens there
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=not joins, timeout=timedelta(minutes=2))
    _groups.append(dist.ProcessGroupGloo(dist.PrefixStore("horovod", store), rank(), size(), timedelta(minutes=2)))


def shutdown() -> None:
    """Leave; gloo's threads end."""
    _groups.clear()


def size() -> int:
    """The number of ranks."""
    return int(os.environ["WORLD_SIZE"])


def rank() -> int:
    """The number of this rank, over all machines."""
    return int(os.environ["RANK"])


def local_rank() -> int:
    """The number of this rank on its machine."""
    return int(os.environ["LOCAL_RANK"])


class DistributedOptimizer:
    """Averages gradients over all ranks before each step of `optimizer`."""

    def __init__(self, optimizer: Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._optimizer = optimizer
        self._parameters = [parameter for _, parameter in named_parameters]

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                _groups[0].allreduce([parameter.grad]).wait()
                parameter.grad /= size()
        self._optimizer.step()
