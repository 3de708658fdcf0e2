"""Metrics of a loader while something holds it up, and after it failed."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.faults.s3_server import Rule, S3Server, error
from tests.faults.tables import assert_rows, parquet_bytes, table, upload
from torch_dataloader_utils import Decoding, StructuredDataset
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import StoreError
from torch_dataloader_utils.metrics import export_to_prometheus

MARGIN = 4
"""How much more time the cause must have taken than anything else."""


MOSTLY_FOR = {
    "store": "mostly for the storage (",
    "decode": "mostly for decoding",
    "transform": "mostly for transform and collate_fn",
}
"""How the diagnosis names each cause."""


def loader_of(where: str, access: StoreAccess | None = None, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(where, batch_size=64, storage_options=access, **options)[0]


def what_limits(metrics: Metrics) -> str:
    """The table of docs/how-to/metrics.md, "Reading them"; empty where no number stands out."""
    if metrics.wait_fraction < 1 / MARGIN:
        return "trainer"
    first = standing_out(
        decoded=metrics.stall_seconds, transform=metrics.transform_seconds, handover=metrics.handover_seconds
    )
    if first != "decoded":
        return first
    return standing_out(store=metrics.fetch_seconds, decode=metrics.decode_seconds)


def standing_out(**seconds: float) -> str:
    *others, largest = sorted(seconds, key=lambda name: seconds[name])
    return largest if all(seconds[largest] > MARGIN * seconds[other] for other in others) else ""


def seen_while_held_up(loader: Any, gate: Any, holds: Callable[[Metrics], bool], take: Any = None) -> list[Any]:
    """The batches of a pass that waits for the gate, which opens once `holds` is true of the loader's metrics."""
    give_up = time.monotonic() + 60

    def watch() -> Metrics:
        try:
            while not holds(metrics := loader.metrics()):
                assert time.monotonic() < give_up, metrics
                threading.Event().wait(0.01)
            return metrics
        finally:
            gate.set()

    with ThreadPoolExecutor(1) as watcher:
        watching = watcher.submit(watch)
        batches = []
        for batch in loader:
            batches.append(batch)
            if take is not None:
                take()
        watching.result()
    return batches


@pytest.mark.cases(2)
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.processes)])
@pytest.mark.parametrize("cause", ["store", "decode", "transform", "trainer"])
def test_the_largest_number_and_the_diagnosis_name_what_holds_a_loader_up(
    cause: str,
    num_workers: int,
    server: S3Server,
    access: StoreAccess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = multiprocessing.get_context("fork").Event()

    def held(batch: Any) -> Any:
        gate.wait()
        return batch

    class SlowReader(pq.ParquetReader):  # type: ignore[misc]
        def read_row_groups(self, *arguments: Any, **options: Any) -> Any:
            gate.wait()
            return super().read_row_groups(*arguments, **options)

    where, options, take = str(tmp_path), {}, None
    (tmp_path / "0.parquet").write_bytes(parquet_bytes(table(0, 600)))
    if cause == "transform":
        options["transform"] = held
    if cause == "decode":  # by the reader that is slow here
        options["decoding"] = Decoding(compiled=False)
    if cause == "trainer":
        take = gate.wait
    if cause == "store":
        upload(server, files=2, extra_columns=100)
        where, options["storage_options"] = "s3://bucket/data", access
    loader = loader_of(where, options.pop("storage_options", None), num_workers=num_workers, **options)
    if cause == "decode":
        monkeypatch.setattr(pq, "ParquetReader", SlowReader)
    if cause == "store":
        server.rules.append(Rule(lambda *_: gate.wait(), key="^data/", count=None))

    def is_named(metrics: Metrics) -> bool:
        diagnosis = metrics.diagnosis
        named = diagnosis is None if cause == "trainer" else MOSTLY_FOR[cause] in (diagnosis or "")
        return named and what_limits(metrics) == cause

    assert_rows(seen_while_held_up(loader, gate, is_named, take), 600)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.processes)])
def test_an_outage_shows_while_it_lasts(num_workers: int, server: S3Server, access: StoreAccess) -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    total = upload(server)
    loader = loader_of("s3://bucket/data", access, num_workers=num_workers)
    server.rules.append(Rule(error(503, "SlowDown"), key="^data/", count=None))
    registry = prometheus_client.CollectorRegistry()
    export_to_prometheus(loader.metrics, registry=registry)
    seen: list[Metrics] = []

    class Outage:
        @staticmethod
        def set() -> None:
            server.rules.clear()

    def fails_and_goes_on_failing(metrics: Metrics) -> bool:
        if not seen:
            seen.extend([metrics] * (metrics.retries > 2))
        elif metrics.retries > seen[0].retries and what_limits(metrics) == "store":
            seen.append(metrics)
        return len(seen) == 2

    batches = seen_while_held_up(loader, Outage, fails_and_goes_on_failing)
    assert_rows(batches, total)
    first, second = seen
    assert first.batches == second.batches == first.row_groups == second.row_groups == 0
    assert first.requests >= first.retries
    assert second.requests >= second.retries > first.retries
    for name in ("wait", "stall", "fetch"):
        former, later = (getattr(metrics, f"{name}_seconds") for metrics in seen)
        assert 0 < former < later <= registry.get_sample_value(f"tdu_{name}_seconds_total")


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.processes)])
def test_after_an_error_the_counts_hold_what_was_tried(num_workers: int, server: S3Server, access: StoreAccess) -> None:
    server.put("data/0.parquet", parquet_bytes(table(0, 100)))
    loader = loader_of("s3://bucket/data", access, num_workers=num_workers)
    server.rules.append(Rule(error(503, "SlowDown"), key="^data/", count=3))
    server.rules.append(Rule(error(403, "AccessDenied"), key="^data/", first=3, count=None))
    with pytest.raises(StoreError, match="4 attempts"):
        list(loader)
    metrics = loader.metrics()
    assert (metrics.requests, metrics.retries) == (4, 3)
    assert sum(metrics.requests_by_time.values()) == 4
    assert metrics.request_errors == {"throttled": 3, "server": 0, "refused": 1, "connection": 0}
    assert min(metrics.wait_seconds, metrics.stall_seconds, metrics.fetch_seconds) > 0
    assert metrics == loader.metrics()
