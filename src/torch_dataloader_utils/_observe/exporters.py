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
    """Refuses values that would fail only when metrics are collected; name: what the exporter calls labels.

    Raises:
        ConfigTypeError: metrics that cannot be called, or labels that are no dict with texts for keys.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One figure of a loader, as monitoring systems know it.

    name: without the unit. unit: "s", "By" or "" (UCUM, as OpenTelemetry wants). attribute: the one of Metrics.
    """

    name: str
    attribute: str
    unit: str
    help: str
    only_grows: bool = True


_TOOK = ("at most 10 ms", "10 to 100 ms", "0.1 to 1 s", "1 to 10 s", "over 10 s")

INSTRUMENTS = (
    Instrument(name="batches", attribute="batches", unit="", help="Batches received by the trainer."),
    Instrument(name="rows", attribute="rows", unit="", help="Rows received by the trainer."),
    Instrument(name="tokens", attribute="tokens", unit="", help="Tokens of packed samples, padding included."),
    Instrument(
        name="padding_rows", attribute="padding_rows", unit="", help="Rows repeated so that all ranks take equal steps."
    ),
    Instrument(name="passes", attribute="passes", unit="", help="Passes that reached their last batch."),
    Instrument(name="row_groups", attribute="row_groups", unit="", help="Row groups decoded."),
    Instrument(
        name="compiled_chunks", attribute="compiled_chunks", unit="", help="Column chunks read by the compiled decoder."
    ),
    Instrument(name="type_chunks", attribute="type_chunks", unit="", help="Column chunks read by pyarrow: their type."),
    Instrument(
        name="encoding_chunks",
        attribute="encoding_chunks",
        unit="",
        help="Column chunks read by pyarrow: their encoding.",
    ),
    Instrument(
        name="codec_chunks", attribute="codec_chunks", unit="", help="Column chunks read by pyarrow: their codec."
    ),
    Instrument(
        name="damaged_chunks",
        attribute="damaged_chunks",
        unit="",
        help="Column chunks read by pyarrow: bytes that do not fit.",
    ),
    Instrument(
        name="turned_off_chunks",
        attribute="turned_off_chunks",
        unit="",
        help="Column chunks read by pyarrow: the compiled decoder is turned off.",
    ),
    Instrument(
        name="not_built_chunks",
        attribute="not_built_chunks",
        unit="",
        help="Column chunks read by pyarrow: there is no compiled decoder.",
    ),
    Instrument(name="decoded", attribute="decoded_bytes", unit="By", help="Memory of decoded rows."),
    Instrument(name="fetched", attribute="fetched_bytes", unit="By", help="Bytes received from remote storage."),
    Instrument(name="requests", attribute="requests", unit="", help="Requests to remote storage."),
    Instrument(name="retries", attribute="retries", unit="", help="Requests sent again after a failure."),
    Instrument(name="cache_hits", attribute="cache_hits", unit="", help="Ranges that came from this host's cache."),
    Instrument(name="cache_misses", attribute="cache_misses", unit="", help="Ranges that this host's cache had not."),
    Instrument(name="cached", attribute="cached_bytes", unit="By", help="Bytes that came from this host's cache."),
    Instrument(name="cache_evictions", attribute="cache_evictions", unit="", help="Cache entries that made room."),
    Instrument(name="cache_damaged", attribute="cache_damaged", unit="", help="Cache entries that were damaged."),
    *(
        Instrument(name=name, attribute=name, unit="", help=f"Requests to remote storage, {took}.")
        for name, took in zip(LATENCIES, _TOOK, strict=True)
    ),
    Instrument(
        name="throttled_errors",
        attribute="throttled_errors",
        unit="",
        help="Failed attempts: the store throttled requests.",
    ),
    Instrument(name="server_errors", attribute="server_errors", unit="", help="Failed attempts: the storage failed."),
    Instrument(name="refused_errors", attribute="refused_errors", unit="", help="Failed attempts: refused, not found."),
    Instrument(name="connection_errors", attribute="connection_errors", unit="", help="Failed attempts: no answer."),
    Instrument(name="fetch", attribute="fetch_seconds", unit="s", help="Time of waiting for remote storage."),
    Instrument(name="decode", attribute="decode_seconds", unit="s", help="Time of decoding, without fetching."),
    Instrument(name="stall", attribute="stall_seconds", unit="s", help="Time of waiting for decoded row groups."),
    Instrument(name="transform", attribute="transform_seconds", unit="s", help="Time in transform and collate_fn."),
    Instrument(name="handover", attribute="handover_seconds", unit="s", help="Time of cutting and copying batches."),
    Instrument(name="wait", attribute="wait_seconds", unit="s", help="Time the trainer waited in next()."),
    Instrument(name="pass", attribute="seconds", unit="s", help="Time in passes, training included."),
    Instrument(
        name="queue_depth",
        attribute="queue_depth",
        unit="",
        help="Row groups decoded and not used up.",
        only_grows=False,
    ),
    Instrument(
        name="batch_age",
        attribute="batch_age_seconds",
        unit="s",
        help="Time since the trainer was given its last batch.",
        only_grows=False,
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
        ConfigTypeError: metrics that cannot be called, or attributes that are no dict with texts for keys.
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


# An instrument of a meter is made once: of a second one of its name the SDK never calls the callbacks.
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
        ConfigTypeError: metrics that cannot be called, or labels that are no dict of texts.
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
        """ConfigError for names that others do not have (a family has one list of names), or labels that one has."""
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
