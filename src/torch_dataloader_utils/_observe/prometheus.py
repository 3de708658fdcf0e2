"""Metrics for Prometheus: read when Prometheus scrapes, so that batches cost nothing."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch_dataloader_utils._observe.exported import ExportedLoaders, Labels, MetricsSource, check_export
from torch_dataloader_utils._observe.instruments import INSTRUMENTS, Instrument
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, MissingDependencyError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

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
