"""Exporters give what `loader.metrics()` gives, when their system asks, and do not keep loaders alive."""

import builtins
import gc

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from tests.stream.tables import write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe.instruments import INSTRUMENTS
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._observe.opentelemetry import export_to_opentelemetry
from torch_dataloader_utils._observe.prometheus import export_to_prometheus
from torch_dataloader_utils.errors import MissingDependencyError


def loader_of(folder, **options):
    return StructuredDataset.create_dataloader(str(folder), batch_size=16, num_workers=0, **options)[0]


@pytest.fixture
def table(tmp_path):
    """105 rows."""
    write_table(tmp_path, [[40, 30], [35]])
    return tmp_path


def test_every_metric_is_exported_once():
    assert {each.attribute for each in INSTRUMENTS} == set(Metrics().to_dict())
    assert len({each.name for each in INSTRUMENTS}) == len(INSTRUMENTS)


def test_prometheus_scrapes_all_loaders_of_a_process(table):
    registry = CollectorRegistry()
    loaders = {name: loader_of(table) for name in ("train", "valid")}
    for name, loader in loaders.items():
        export_to_prometheus(loader.metrics, {"loader": name, "rank": "0"}, registry)
    assert registry.get_sample_value("tdu_rows_total", {"loader": "train", "rank": "0"}) == 0
    list(loaders["train"])
    assert registry.get_sample_value("tdu_rows_total", {"loader": "train", "rank": "0"}) == 105
    assert registry.get_sample_value("tdu_rows_total", {"loader": "valid", "rank": "0"}) == 0
    assert registry.get_sample_value("tdu_queue_depth", {"loader": "train", "rank": "0"}) == 0
    text = generate_latest(registry).decode()
    assert "# TYPE tdu_wait_seconds_total counter" in text
    assert "# TYPE tdu_decoded_bytes_total counter" in text


def test_prometheus_forgets_a_loader_that_is_gone(table):
    registry = CollectorRegistry()
    loader = loader_of(table)
    export_to_prometheus(loader.metrics, {"loader": "train"}, registry)
    del loader
    gc.collect()
    assert generate_latest(registry) == b""


def test_opentelemetry_observes_with_units(table):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    try:
        loader = loader_of(table)
        export_to_opentelemetry(loader.metrics, {"rank": 3}, provider.get_meter("test"))
        list(loader)
        scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
        seen = {metric.name: metric for metric in scope.metrics}
        assert set(seen) == {f"tdu.{each.name}" for each in INSTRUMENTS}
        (point,) = seen["tdu.rows"].data.data_points
        assert (point.value, dict(point.attributes)) == (105, {"rank": 3})
        assert seen["tdu.rows"].data.is_monotonic
        assert (seen["tdu.wait"].unit, seen["tdu.decoded"].unit) == ("s", "By")
    finally:
        provider.shutdown()


@pytest.mark.parametrize(
    ("export", "package", "extra"),
    [
        (export_to_prometheus, "prometheus_client", "prometheus"),
        (export_to_opentelemetry, "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_client_is_told_with_its_extra(export, package, extra, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=rf"torch-dataloader-utils\[{extra}\]"):
        export(Metrics)
