"""Connections that are reset, fall silent, or drip: rows all the same, and no thread or task is left waiting."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.conftest import QUICK
from tests.faults.s3_server import S3Server, options_for
from tests.faults.tables import assert_rows, upload
from tests.faults.tcp_proxy import TcpProxy, Toxic
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._store import RemoteOptions, StoreAccess

pytestmark = pytest.mark.slow

PATIENT = replace(QUICK, most_seconds=60, progress_seconds=0.5, progress_bytes=16 << 10)


def first_three(toxic: Toxic) -> Callable[[int], Toxic]:
    return lambda connection: toxic if connection < 3 else Toxic()


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "toxic",
    [
        Toxic(reset_after=0),
        Toxic(reset_after=1500),
        Toxic(silent_after=0),
        Toxic(silent_after=1500),
        Toxic(drip_seconds=0.01),
    ],
    ids=["reset at once", "reset later", "silent at once", "silent later", "drip"],
)
def test_bad_connections_cost_time_and_no_row(server: S3Server, toxic: Toxic) -> None:
    total = upload(server, compression="none")
    inventory_access = StoreAccess.of(server.storage_options, remote=RemoteOptions(retry=PATIENT, keep_footers=False))
    dataset = StructuredDataset("s3://bucket/data", storage_options=inventory_access)
    inventory = dataset.plan.inventory
    proxy = TcpProxy(server.port, first_three(toxic))
    before = {thread.name for thread in threading.enumerate()}
    try:
        access = StoreAccess.of(options_for(proxy.port), remote=RemoteOptions(retry=PATIENT, keep_footers=False))
        loader, _ = StructuredDataset.create_dataloader(
            "s3://bucket/data", batch_size=64, num_workers=0, storage_options=access, inventory=inventory
        )
        assert_rows(loader, total)
        assert proxy.connections > 3
        assert proxy.outlasted == 0
    finally:
        proxy.close()
    for thread in threading.enumerate():
        if thread.name.startswith("tdu-"):
            thread.join(60)
    left = {thread.name for thread in threading.enumerate()} - before
    assert not [name for name in left if name.startswith("tdu-")]
