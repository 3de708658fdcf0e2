"""A Ray cluster on this machine, whose nodes can be killed; and what runs in its actors."""

import os
import signal
import time
from contextlib import contextmanager

from torch_dataloader_utils import RayWorkers

STORE_BYTES = 100 << 20
# Small enough that actors of several loaders fit side by side.
AMOUNT = {"CPU": 0.25}


@contextmanager
def running_cluster(nodes):
    """A cluster of so many nodes, the first of which this process is on."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    import ray
    from ray.cluster_utils import Cluster

    cluster, on_sigterm = Cluster(), signal.getsignal(signal.SIGTERM)
    try:
        for _ in range(nodes):
            add_node(cluster)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, on_sigterm)  # `ray.init` has it end the process


def add_node(cluster):
    """One more node, of two processors."""
    return cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, include_dashboard=False)


def ray_workers(num, **options):
    """Workers that ask for little."""
    return RayWorkers(num, **{"actors": 2, "resources": AMOUNT, **options})


def doubled(batch):
    """A transform that a module has."""
    return {"row": batch["row"], "double": batch["payload"] * 2}


class Once:
    """A transform that ends its process at one row, once or always; `marks` is a directory."""

    def __init__(self, row, marks, *, always=False):
        self.row, self.marks, self.always = row, marks, always

    def __call__(self, batch):
        """See the class."""
        mark = self.marks / "ended"
        if self.row in batch["row"].tolist() and (self.always or not mark.exists()):
            mark.touch()
            os._exit(7)
        return batch


class Counting:
    """A transform that writes down every batch that it makes."""

    def __init__(self, path):
        self.path = path

    def __call__(self, batch):
        """See the class."""
        with self.path.open("a") as file:
            file.write(".")
        return batch


class Gate:
    """A transform that waits until there is a file `open` in a directory; it writes `begun` there."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, batch):
        """See the class."""
        (self.folder / "begun").touch()
        wait_until((self.folder / "open").exists)
        return batch


def fails_at_50(batch):
    """A transform that fails at one row."""
    if 50 in batch["row"].tolist():
        raise ValueError("row 50 is bad")
    return batch


def wait_until(is_so, limit_sec=60.0):
    """Until it is so; fails after a minute."""
    end = time.monotonic() + limit_sec
    while not is_so():
        assert time.monotonic() < end, "it did not come to be so"
        time.sleep(0.05)
