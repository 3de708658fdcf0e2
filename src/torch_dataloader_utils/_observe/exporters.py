"""Exporters for Prometheus and OpenTelemetry. They read metrics when the system collects, so batches cost nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakMethod

from torch_dataloader_utils._observe.metrics import GAUGES, Metrics
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, MissingDependencyError, of_type

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import CollectorRegistry, Metric


MetricsSource = Callable[[], Metrics]

Labels = Mapping[str, Any]
"""Values by name that tell loaders apart."""

KIND = "kind"
"""Label of the kind, where an attribute of `Metrics` is a mapping."""


class ExportedLoaders:
    """Loaders with their labels. Thread-safe; keeps no loader alive."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sources: list[tuple[Callable[[], Metrics | None], Labels]] = []

    def add(self, metrics: MetricsSource, labels: Labels) -> None:
        """Read this source too, from now on."""
        with self._lock:
            self._sources.append((_weak(metrics), labels))

    def read(self) -> list[tuple[Metrics, Labels]]:
        """Return the current metrics and the labels of each loader that is alive, in the order of `add`."""
        with self._lock:
            read = [(source(), labels) for source, labels in self._sources]
            living = [now is not None for now, _ in read]
            self._sources = [source for source, lives in zip(self._sources, living, strict=True) if lives]
        return [(now, labels) for now, labels in read if now is not None]


def check_export(metrics: object, name: str, labels: object) -> None:
    """Check arguments now that would fail only when metrics are collected. name: the exporter's word for labels.

    Raises:
        ConfigTypeError: metrics cannot be called, or labels are not a dict with text keys.
        ConfigError: a label is called "kind".
    """
    if not callable(metrics):
        raise ConfigTypeError(f"metrics is {of_type(metrics)}: pass loader.metrics, which is called by the exporter.")
    if labels is not None and not (isinstance(labels, Mapping) and all(isinstance(each, str) for each in labels)):
        raise ConfigTypeError(f'{name}={labels!r}: pass a dict with names for keys, such as {{"loader": "train"}}.')
    if KIND in (labels or {}):
        raise ConfigError(f"{name}={labels!r}: {KIND!r} tells the numbers of one metric apart. Pass another name.")


def _weak(metrics: MetricsSource) -> Callable[[], Metrics | None]:
    """Return a source that does not keep the loader alive, and returns None once the loader is gone."""
    if not isinstance(metrics, MethodType):
        return metrics
    method = WeakMethod(metrics)

    def read() -> Metrics | None:
        source = method()
        return None if source is None else source()

    return read


@dataclass(frozen=True, slots=True)
class Instrument:
    """One attribute of `Metrics` as monitoring systems know it. unit: "s", "By" or "" (UCUM)."""

    attribute: str
    name: str
    unit: str
    help: str

    @property
    def only_grows(self) -> bool:
        """Whether this is a counter; else it is a gauge."""
        return self.attribute not in GAUGES

    def samples(self, metrics: Metrics, labels: Labels) -> Iterator[tuple[Labels, float]]:
        """Yield each number of the attribute with its labels; a mapping has one number for each kind."""
        value = getattr(metrics, self.attribute)
        if not isinstance(value, Mapping):
            yield labels, value
            return
        for kind, number in value.items():
            yield {**labels, KIND: kind}, number


_HELP = {
    "batches": "Batches received by the trainer.",
    "rows": "Rows received by the trainer.",
    "tokens": "Tokens of packed samples, padding included.",
    "padding_rows": "Rows repeated so that all ranks take equal steps.",
    "passes": "Passes that reached their last batch.",
    "row_groups": "Row groups decoded.",
    "column_chunks": "Column chunks read by the compiled decoder, or by pyarrow and why.",
    "decoded_bytes": "Memory of decoded rows.",
    "fetched_bytes": "Bytes received from remote storage.",
    "requests": "Requests to remote storage.",
    "retries": "Requests sent again after a failure.",
    "hedges": "Requests sent a second time because the first was not answered.",
    "requests_by_time": "Requests to remote storage by duration.",
    "request_errors": "Failed attempts by answer.",
    "cache_events": "Ranges and entries of this host's cache.",
    "cached_bytes": "Bytes read from this host's cache.",
    "fetch_seconds": "Time of waiting for remote storage.",
    "decode_seconds": "Time of decoding, without fetching.",
    "stall_seconds": "Time of waiting for decoded row groups.",
    "transform_seconds": "Time in transform and collate_fn.",
    "handover_seconds": "Time of cutting and copying batches.",
    "wait_seconds": "Time the trainer waited in next().",
    "seconds": "Time in passes, training included.",
    "queue_depth": "Row groups decoded and not used up.",
    "batch_age_seconds": "Time since the trainer received its last batch.",
}


def _instrument(attribute: str) -> Instrument:
    for ending, unit in (("seconds", "s"), ("bytes", "By")):
        if attribute.endswith(ending):
            return Instrument(attribute, attribute.removesuffix(ending).strip("_") or "pass", unit, _HELP[attribute])
    return Instrument(attribute, attribute, "", _HELP[attribute])


INSTRUMENTS = tuple(map(_instrument, _HELP))


def export_to_opentelemetry(
    metrics: MetricsSource, attributes: Mapping[str, str | int] | None = None, meter: "Meter | None" = None
) -> None:
    """Let a meter observe the metrics of a loader: tdu.rows, tdu.wait (unit s), tdu.decoded (unit By) and so on.

        export_to_opentelemetry(loader.metrics, attributes={"rank": 3, "loader": "train"})

    Args:
        metrics: `loader.metrics`. The loader is not kept alive; its observations end with the loader.
        attributes: attributes of every observation, to tell ranks and loaders apart. "kind" is taken: it tells the
            numbers of one metric apart.
        meter: meter to use; None for a meter of the global meter provider.

    Raises:
        MissingDependencyError: the OpenTelemetry API is not installed.
        ConfigTypeError: metrics cannot be called, or attributes are not a dict with text keys.
        ConfigError: an attribute is called "kind".
    """
    try:
        import opentelemetry.metrics  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "Exporting to OpenTelemetry needs its API. Run: pip install opentelemetry-api"
        ) from error
    check_export(metrics, "attributes", attributes)
    chosen = _default_meter() if meter is None else meter
    loaders = _exported.get(chosen)
    if loaders is None:
        loaders = _exported[chosen] = ExportedLoaders()
        _create_instruments(chosen, loaders)
    loaders.add(metrics, dict(attributes or {}))


# A meter gets each instrument once: the SDK ignores the callbacks of a second instrument of the same name.
_exported: "WeakKeyDictionary[Meter, ExportedLoaders]" = WeakKeyDictionary()


@cache
def _default_meter() -> "Meter":
    """Return one meter per process: before a provider is set, every call of the API returns another stand-in."""
    from opentelemetry.metrics import get_meter

    return get_meter("torch_dataloader_utils")


def _create_instruments(meter: "Meter", loaders: ExportedLoaders) -> None:
    for instrument in INSTRUMENTS:
        create = meter.create_observable_counter if instrument.only_grows else meter.create_observable_gauge
        create(
            f"tdu.{instrument.name}",
            callbacks=[_observer(instrument, loaders)],
            unit=instrument.unit,
            description=instrument.help,
        )


def _observer(instrument: Instrument, loaders: ExportedLoaders) -> "Callable[[CallbackOptions], Iterator[Observation]]":
    from opentelemetry.metrics import Observation

    def observe(options: "CallbackOptions") -> Iterator["Observation"]:  # noqa: ARG001  # the API passes it
        for metrics, attributes in loaders.read():
            for labels, number in instrument.samples(metrics, attributes):
                yield Observation(number, labels)

    return observe


_SUFFIXES = {"s": "_seconds", "By": "_bytes", "": ""}


def export_to_prometheus(
    metrics: MetricsSource, labels: Mapping[str, str] | None = None, registry: "CollectorRegistry | None" = None
) -> None:
    """Let a Prometheus registry collect the metrics of a loader: tdu_rows_total, tdu_wait_seconds_total and so on.

        export_to_prometheus(loader.metrics, labels={"rank": "3", "loader": "train"})
        prometheus_client.start_http_server(9400)

    Args:
        metrics: `loader.metrics`. The loader is not kept alive; its samples end with the loader.
        labels: labels that tell ranks and loaders apart. All loaders of a registry use the same names, in any order.
            "kind" is taken: it tells the numbers of one metric apart.
        registry: registry to use; None for the client's default registry.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
        ConfigTypeError: metrics cannot be called, or labels are not a dict of texts.
        ConfigError: a label is called "kind", or a living loader of the registry has other names or equal labels.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise MissingDependencyError(
            "Exporting to Prometheus needs its client. Run: pip install prometheus-client"
        ) from error
    check_export(metrics, "labels", labels)
    if not all(isinstance(value, str) for value in (labels or {}).values()):
        raise ConfigTypeError(f'labels={labels!r}: pass texts as values too, such as {{"rank": "3"}}.')
    chosen = REGISTRY if registry is None else registry
    collector = _collectors.get(chosen)
    if collector is None:
        collector = _collectors[chosen] = _Collector()
        chosen.register(collector)
    collector.add(metrics, dict(labels or {}))


class _Collector:
    """Collector for all loaders of one registry: a registry accepts each metric name once."""

    def __init__(self) -> None:
        self._loaders = ExportedLoaders()

    def add(self, metrics: MetricsSource, labels: Labels) -> None:
        """Read this source too.

        Raises:
            ConfigError: another loader has other label names (a metric has one list of names), or equal labels.
        """
        for _, others in self._loaders.read():
            if set(labels) != set(others):
                raise ConfigError(
                    f"labels has the names {sorted(labels)}, but another loader in this registry has {sorted(others)}. "
                    "Give all loaders of a registry the same label names, or use a second registry."
                )
            if labels == others:
                raise ConfigError(
                    f"Another loader in this registry already has the labels {labels}, and Prometheus takes one sample "
                    'for each name and labels. Give each loader its own labels, such as {"loader": "valid"}.'
                )
        self._loaders.add(metrics, labels)

    def describe(self) -> "list[Metric]":
        """Return nothing, so that the registry does not collect just to find the names."""
        return []

    def collect(self) -> Iterator["Metric"]:
        """Yield one metric for each instrument, with samples of each living loader."""
        living = self._loaders.read()
        for instrument in INSTRUMENTS if living else ():
            yield _family(instrument, living)


_collectors: "WeakKeyDictionary[CollectorRegistry, _Collector]" = WeakKeyDictionary()


def _family(instrument: Instrument, living: list[tuple[Metrics, Labels]]) -> "Metric":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name = f"tdu_{instrument.name}{_SUFFIXES[instrument.unit]}"
    kind = CounterMetricFamily if instrument.only_grows else GaugeMetricFamily
    samples = [sample for each in living for sample in instrument.samples(*each)]
    names = list(samples[0][0])
    family = kind(name, instrument.help, labels=names)
    for labels, number in samples:
        family.add_metric([labels[each] for each in names], number)
    return family
