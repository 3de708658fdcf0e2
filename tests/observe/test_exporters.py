"""Exporters give what `loader.metrics()` gives, when their system asks, and do not keep loaders alive."""

import builtins
import gc
import json
import re
import weakref
from dataclasses import fields
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from tests.stream.tables import write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe.exporters import INSTRUMENTS, export_to_opentelemetry, export_to_prometheus
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, MissingDependencyError

DOCS = Path(__file__).parents[2] / "docs"


def loader_of(folder, **options):
    return StructuredDataset.create_dataloader(str(folder), batch_size=16, num_workers=0, **options)[0]


@pytest.fixture
def table(tmp_path):
    """105 rows."""
    write_table(tmp_path, [[40, 30], [35]])
    return tmp_path


def test_every_metric_is_exported_once():
    assert sorted(each.attribute for each in INSTRUMENTS) == sorted(each.name for each in fields(Metrics))
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
    chunks = loaders["train"].metrics().column_chunks
    assert sum(chunks.values()) > 0
    for kind, number in chunks.items():
        labels = {"loader": "train", "rank": "0", "kind": kind}
        assert registry.get_sample_value("tdu_column_chunks_total", labels) == number
    text = generate_latest(registry).decode()
    assert "# TYPE tdu_wait_seconds_total counter" in text
    assert "# TYPE tdu_decoded_bytes_total counter" in text


@pytest.mark.slow
def test_prometheus_forgets_a_loader_that_is_gone(table):
    registry = CollectorRegistry()
    loader = loader_of(table)
    export_to_prometheus(loader.metrics, {"loader": "train"}, registry)
    del loader
    gc.collect()
    assert generate_latest(registry) == b""


def test_prometheus_takes_labels_by_name_in_any_order(table):
    registry = CollectorRegistry()
    train, valid = loader_of(table), loader_of(table)
    export_to_prometheus(train.metrics, {"loader": "train", "rank": "3"}, registry)
    export_to_prometheus(valid.metrics, {"rank": "3", "loader": "valid"}, registry)
    assert registry.get_sample_value("tdu_rows_total", {"loader": "valid", "rank": "3"}) == 0


@pytest.mark.slow
@pytest.mark.parametrize("others", [{"b": "2"}, {"a": "1", "b": "2"}, None])
def test_prometheus_refuses_labels_of_other_names(table, others):
    registry = CollectorRegistry()
    loader = loader_of(table)
    export_to_prometheus(loader.metrics, {"a": "1"}, registry)
    with pytest.raises(ConfigError, match=r"names \[.*\], but another loader in this registry has \['a'\]\. Give all"):
        export_to_prometheus(loader.metrics, others, registry)
    assert generate_latest(registry).decode().count("\ntdu_rows_total{") == 1
    del loader
    gc.collect()
    later = loader_of(table)
    export_to_prometheus(later.metrics, others, registry)
    assert registry.get_sample_value("tdu_rows_total", others or {}) == 0


@pytest.mark.slow
@pytest.mark.parametrize("labels", [{"loader": "train", "rank": "0"}, None])
def test_prometheus_refuses_the_labels_of_a_loader_that_lives(table, labels):
    registry = CollectorRegistry()
    loader, other = loader_of(table), loader_of(table)
    export_to_prometheus(loader.metrics, labels, registry)
    same = dict(reversed(labels.items())) if labels else {}
    with pytest.raises(ConfigError, match=r"already has the labels \{.*\}.* Give each loader its own labels"):
        export_to_prometheus(other.metrics, same, registry)
    del loader
    gc.collect()
    export_to_prometheus(other.metrics, same, registry)
    assert registry.get_sample_value("tdu_rows_total", labels or {}) == 0


class Name(str):
    """A text that one can see being forgotten."""


@pytest.mark.slow
def test_nothing_is_kept_of_loaders_that_are_gone(table):
    registry, labels = CollectorRegistry(), {"loader": Name("train")}
    exported = weakref.ref(labels["loader"])
    loader = loader_of(table)
    export_to_prometheus(loader.metrics, labels, registry)
    del loader, labels
    gc.collect()
    generate_latest(registry)
    gc.collect()
    assert exported() is None


@pytest.mark.parametrize("export", [export_to_prometheus, export_to_opentelemetry])
@pytest.mark.parametrize("wrong", [3, None, Metrics()])
def test_metrics_that_cannot_be_read_are_refused_at_once(export, wrong):
    with pytest.raises(ConfigTypeError, match=r"metrics is an? \w+: pass loader\.metrics"):
        export(wrong)


@pytest.mark.parametrize("export", [export_to_prometheus, export_to_opentelemetry])
@pytest.mark.parametrize("wrong", ["train", ["train"], {3: "train"}])
def test_labels_that_are_no_dict_of_names_are_refused(export, wrong):
    with pytest.raises(ConfigTypeError, match="pass a dict with names for keys"):
        export(Metrics, wrong)


@pytest.mark.parametrize("export", [export_to_prometheus, export_to_opentelemetry])
def test_the_label_of_kinds_is_refused(export):
    with pytest.raises(ConfigError, match="Pass another name"):
        export(Metrics, {"kind": "train"})


def test_prometheus_refuses_values_of_labels_that_it_cannot_write():
    with pytest.raises(ConfigTypeError, match="pass texts as values too"):
        export_to_prometheus(Metrics, {"rank": 3})


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
        chunks = {point.attributes["kind"]: point.value for point in seen["tdu.column_chunks"].data.data_points}
        assert chunks == loader.metrics().column_chunks
        assert (seen["tdu.wait"].unit, seen["tdu.decoded"].unit) == ("s", "By")
    finally:
        provider.shutdown()


@pytest.mark.slow
def test_opentelemetry_observes_all_loaders_of_a_meter_that_live(table):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def observed():
        data = reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else ()
        return {
            point.attributes["loader"]: point.value
            for m in metrics
            if m.name == "tdu.rows"
            for point in m.data.data_points
        }

    try:
        loaders = {name: loader_of(table) for name in ("train", "valid")}
        for name, loader in loaders.items():
            export_to_opentelemetry(loader.metrics, {"loader": name}, provider.get_meter("test"))
        list(loader)
        assert observed() == {"train": 0, "valid": 105}
        del loader, loaders["valid"]
        gc.collect()
        assert observed() == {"train": 0}
    finally:
        provider.shutdown()


@pytest.mark.parametrize(
    ("export", "package", "installs"),
    [
        (export_to_prometheus, "prometheus_client", "prometheus-client"),
        (export_to_opentelemetry, "opentelemetry", "opentelemetry-api"),
    ],
)
def test_a_missing_client_is_named_as_its_package_is_installed(export, package, installs, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=f"pip install {installs}$"):
        export(Metrics)


def test_every_name_in_the_dashboard_is_one_that_prometheus_scrapes(table):
    dashboard = json.loads((DOCS / "how-to" / "grafana-dashboard.json").read_text())
    registry = CollectorRegistry()
    loader = loader_of(table)
    export_to_prometheus(loader.metrics, {"loader": "train", "rank": "0"}, registry)
    samples = {each.name for family in registry.collect() for each in family.samples}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = [re.findall(r"\btdu_\w+", query) for query in queries]
    assert all(used)
    assert {name for names in used for name in names} <= samples
    for query in queries:
        assert query.count("(") == query.count(")")
        assert all(f"rate({name}[" in query for name in re.findall(r"tdu_\w+_total", query)), query
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {"${datasource}"}
    assert [each["name"] for each in dashboard["templating"]["list"]] == ["datasource"]
