"""Metrics for Prometheus and OpenTelemetry: read when those collect, so that batches cost nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakMethod

from torch_dataloader_utils._observe.counters import LATENCIES
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, MissingDependencyError, of_type

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from prometheus_client import CollectorRegistry


MetricsSource = Callable[[], Metrics]

Labels = Mapping[str, Any]
"""Values by name that tell the figures of one loader from those of others."""


class ExportedLoaders:
    """Loaders with their labels, for exporters; thread-safe, and keeps no loader alive."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sources: list[tuple[Callable[[], Metrics | None], Labels]] = []

    def add(self, metrics: MetricsSource, labels: Labels) -> None:
        """Read these metrics too, from now on."""
        with self._lock:
            self._sources.append((_weak(metrics), labels))

    def read(self) -> list[tuple[Metrics, Labels]]:
        """The current metrics of each loader that is alive, in the order they were added."""
        with self._lock:
            read = [(source(), labels) for source, labels in self._sources]
            living = [now is not None for now, _ in read]
            self._sources = [source for source, lives in zip(self._sources, living, strict=True) if lives]
        return [(now, labels) for now, labels in read if now is not None]


def check_export(metrics: Any, name: str, labels: Any) -> None:
    """Checks now what would fail only when metrics are collected; name: what the exporter calls labels.

    Raises:
        ConfigTypeError: metrics that cannot be called, or labels that are not a dict with texts for keys.
    """
    if not callable(metrics):
        raise ConfigTypeError(f"metrics is {of_type(metrics)}: pass loader.metrics, which is called by the exporter.")
    if labels is not None and not (isinstance(labels, Mapping) and all(isinstance(each, str) for each in labels)):
        raise ConfigTypeError(f'{name}={labels!r}: pass a dict with names for keys, such as {{"loader": "train"}}.')


def _weak(metrics: MetricsSource) -> Callable[[], Metrics | None]:
    """The same source without keeping its loader alive: gives None once the loader is gone."""
    if not isinstance(metrics, MethodType):
        return metrics
    method = WeakMethod(metrics)

    def read() -> Metrics | None:
        source = method()
        return None if source is None else source()

    return read


@dataclass(frozen=True, slots=True)
class Instrument:
    """One figure of a loader, as monitoring systems know it.

    attribute: the one of Metrics. name: without the unit. unit: "s", "By" or "" (UCUM, as OpenTelemetry wants).
    """

    attribute: str
    name: str
    unit: str
    help: str
    only_grows: bool = True


def _count(name: str, text: str) -> Instrument:
    return Instrument(name, name, "", text)


def _bytes(name: str, text: str) -> Instrument:
    return Instrument(f"{name}_bytes", name, "By", text)


def _time(name: str, text: str) -> Instrument:
    return Instrument(f"{name}_seconds", name, "s", text)


_TOOK = ("at most 10 ms", "10 to 100 ms", "0.1 to 1 s", "1 to 10 s", "over 10 s")

INSTRUMENTS = (
    _count("batches", "Batches received by the trainer."),
    _count("rows", "Rows received by the trainer."),
    _count("tokens", "Tokens of packed samples, padding included."),
    _count("padding_rows", "Rows repeated so that all ranks take equal steps."),
    _count("passes", "Passes that reached their last batch."),
    _count("row_groups", "Row groups decoded."),
    _count("compiled_chunks", "Column chunks read by the compiled decoder."),
    _count("type_chunks", "Column chunks read by pyarrow: their type."),
    _count("encoding_chunks", "Column chunks read by pyarrow: their encoding."),
    _count("codec_chunks", "Column chunks read by pyarrow: their codec."),
    _count("damaged_chunks", "Column chunks read by pyarrow: bytes that do not fit."),
    _count("turned_off_chunks", "Column chunks read by pyarrow: the compiled decoder is turned off."),
    _count("not_built_chunks", "Column chunks read by pyarrow: there is no compiled decoder."),
    _bytes("decoded", "Memory of decoded rows."),
    _bytes("fetched", "Bytes received from remote storage."),
    _count("requests", "Requests to remote storage."),
    _count("retries", "Requests sent again after a failure."),
    _count("cache_hits", "Ranges that came from this host's cache."),
    _count("cache_misses", "Ranges that this host's cache had not."),
    _bytes("cached", "Bytes that came from this host's cache."),
    _count("cache_evictions", "Cache entries that made room."),
    _count("cache_damaged", "Cache entries that were damaged."),
    *(_count(name, f"Requests to remote storage, {took}.") for name, took in zip(LATENCIES, _TOOK, strict=True)),
    _count("throttled_errors", "Failed attempts: the store throttled requests."),
    _count("server_errors", "Failed attempts: the storage failed."),
    _count("refused_errors", "Failed attempts: refused, not found."),
    _count("connection_errors", "Failed attempts: no answer."),
    _time("fetch", "Time of waiting for remote storage."),
    _time("decode", "Time of decoding, without fetching."),
    _time("stall", "Time of waiting for decoded row groups."),
    _time("transform", "Time in transform and collate_fn."),
    _time("handover", "Time of cutting and copying batches."),
    _time("wait", "Time the trainer waited in next()."),
    Instrument("seconds", "pass", "s", "Time in passes, training included."),
    Instrument("queue_depth", "queue_depth", "", "Row groups decoded and not used up.", only_grows=False),
    Instrument(
        "batch_age_seconds", "batch_age", "s", "Time since the trainer was given its last batch.", only_grows=False
    ),
)


def export_to_opentelemetry(
    metrics: MetricsSource, attributes: Mapping[str, str | int] | None = None, meter: "Meter | None" = None
) -> None:
    """Let a meter observe these metrics, as tdu.rows, tdu.wait (unit s), tdu.decoded (unit By) and so on.

        export_to_opentelemetry(loader.metrics, attributes={"rank": 3, "loader": "train"})

    Args:
        metrics: `loader.metrics`. The loader is not kept alive; when it is gone, nothing is observed of it.
        attributes: of every observation; they tell ranks and loaders apart.
        meter: None for the one that the global meter provider gives.

    Raises:
        MissingDependencyError: the OpenTelemetry API is not installed.
        ConfigTypeError: metrics that cannot be called, or attributes that are not a dict with texts for keys.
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


# A meter gets each instrument once: the SDK never calls the callbacks of a second one of the same name.
_exported: WeakKeyDictionary[Any, ExportedLoaders] = WeakKeyDictionary()


@cache
def _default_meter() -> "Meter":
    """One for the process: before a provider is set the API gives another stand-in with every call."""
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


def _observer(instrument: Instrument, loaders: ExportedLoaders) -> Any:
    from opentelemetry.metrics import Observation

    def observe(options: Any) -> Iterator[Any]:  # noqa: ARG001  # how the API calls it
        for metrics, attributes in loaders.read():
            yield Observation(getattr(metrics, instrument.attribute), attributes)

    return observe


_SUFFIXES = {"s": "_seconds", "By": "_bytes", "": ""}


def export_to_prometheus(
    metrics: MetricsSource, labels: Mapping[str, str] | None = None, registry: "CollectorRegistry | None" = None
) -> None:
    """Let a Prometheus registry collect these metrics, as tdu_rows_total, tdu_wait_seconds_total and so on.

        export_to_prometheus(loader.metrics, labels={"rank": "3", "loader": "train"})
        prometheus_client.start_http_server(9400)

    Args:
        metrics: `loader.metrics`. The loader is not kept alive; when it is gone, so are its figures.
        labels: they tell ranks and loaders apart; those of a loader that is gone may be used again. All loaders of a
            registry have the same names, in any order.
        registry: None for the client's default one.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
        ConfigTypeError: metrics that cannot be called, or labels that are not a dict of texts.
        ConfigError: labels of other names than those of a loader that lives, or the very labels of one.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise MissingDependencyError(
            "Exporting to Prometheus needs its client. Run: pip install prometheus-client"
        ) from error
    check_export(metrics, "labels", labels)
    if not all(isinstance(value, str) for value in (labels or {}).values()):
        raise ConfigTypeError(f'labels={labels!r}: pass texts for values too, such as {{"rank": "3"}}.')
    chosen = REGISTRY if registry is None else registry
    collector = _collectors.get(chosen)
    if collector is None:
        collector = _collectors[chosen] = _Collector()
        chosen.register(collector)
    collector.add(metrics, dict(labels or {}))


class _Collector:
    """All loaders of one registry; a family of metrics may be registered once only."""

    def __init__(self) -> None:
        self._loaders = ExportedLoaders()

    def add(self, metrics: MetricsSource, labels: Labels) -> None:
        """Read these metrics too.

        Raises:
            ConfigError: labels of other names than those of another loader (a family has one list of names), or the
                same labels as another loader has.
        """
        for _, others in self._loaders.read():
            if set(labels) != set(others):
                raise ConfigError(
                    f"The labels have the names {sorted(labels)}, those of a loader that this registry has "
                    f"{sorted(others)}. Give all loaders of a registry the same names, or this one a registry of its "
                    "own."
                )
            if labels == others:
                raise ConfigError(
                    f"This registry has a loader with the labels {labels} already, and of a name and its labels "
                    'Prometheus takes one sample. Give each loader labels of its own, such as {"loader": "valid"}.'
                )
        self._loaders.add(metrics, labels)

    def describe(self) -> list[Any]:
        """Gives nothing, so that the registry does not collect only to find the names."""
        return []

    def collect(self) -> Iterator[Any]:
        """One family for each instrument, with a sample for each loader that lives."""
        living = self._loaders.read()
        for instrument in INSTRUMENTS if living else ():
            yield _family(instrument, living)


_collectors: WeakKeyDictionary[Any, _Collector] = WeakKeyDictionary()


def _family(instrument: Instrument, living: list[tuple[Metrics, Labels]]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name = f"tdu_{instrument.name}{_SUFFIXES[instrument.unit]}"
    kind = CounterMetricFamily if instrument.only_grows else GaugeMetricFamily
    names = list(living[0][1])
    family = kind(name, instrument.help, labels=names)
    for metrics, labels in living:
        family.add_metric([labels[each] for each in names], getattr(metrics, instrument.attribute))
    return family
