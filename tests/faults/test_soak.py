"""Minutes of epochs against a server that fails now and then: memory, descriptors and threads stay flat."""

import gc
import os
import random
import time
from typing import Any

import psutil
import pytest

from tests.faults.s3_server import Reply, Request, S3Server, error_body
from tests.faults.tables import assert_rows, upload
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._store import StoreAccess

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
WARM_UP_EPOCHS = 10


class Sometimes:
    """A rule for all requests: one in twenty fails, in one of three ways."""

    def __init__(self) -> None:
        self._random = random.Random(7)
        self.failures = 0

    def applies(self, request: Request) -> bool:
        return self._random.random() < 0.05

    def action(self, server: S3Server, request: Request, reply: Reply) -> None:
        self.failures += 1
        match self.failures % 3:
            case 0:
                reply.status, reply.headers, reply.body = 503, {}, error_body("SlowDown")
            case 1:
                reply.cut_after = len(reply.body) // 2
            case _:
                reply.headers["Content-Range"] = "bytes 0-0/1"


def footprint() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {
        "megabytes": process.memory_info().rss >> 20,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "children": len(process.children(recursive=True)),
    }


@pytest.mark.full
def test_epochs_with_faults_leave_memory_descriptors_and_threads_flat(server: S3Server, access: StoreAccess) -> None:
    total = upload(server, files=6, rows=2000, extra_columns=20)
    loader, dataset = StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=256, num_workers=0, storage_options=access, shuffle=True, shuffle_rows=1000
    )
    rule: Any = Sometimes()
    server.rules.append(rule)
    begin, epoch = time.monotonic(), 0
    early, threads = footprint(), []
    while time.monotonic() - begin < SECONDS or epoch < 2 * WARM_UP_EPOCHS:
        dataset.set_epoch(epoch)
        assert_rows(loader, total)
        server.forget()
        if epoch % 3 == 2:  # a pass that is broken off
            dataset.set_epoch(epoch)
            next(iter(loader))
        epoch += 1
        threads.append(psutil.Process().num_threads())
        if epoch == WARM_UP_EPOCHS:
            early = footprint()
    late = footprint()
    assert rule.failures > 10
    assert late["megabytes"] - early["megabytes"] < 64, (early, late, epoch)
    # Connections in the pool come and go.
    assert late["descriptors"] - early["descriptors"] < 70, (early, late, epoch)
    # A thread a connection, in the server too, and threads of a pass that just ended come and go as well.
    assert max(threads[-WARM_UP_EPOCHS:]) - max(threads[:WARM_UP_EPOCHS]) < 24, (early, late, epoch, threads)
    assert late["children"] == early["children"]
    print(f"{epoch} epochs, {rule.failures} failures: {early} -> {late}")
