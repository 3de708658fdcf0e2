"""Metrics for Prometheus: read when Prometheus scrapes, so that batches cost nothing."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils._observe.instruments import INSTRUMENTS, Instrument, MetricsSource, weak_source
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.errors import MissingDependencyError

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
        labels: told apart by them are ranks and loaders. Use the same names for all loaders of a process.
        registry: None for the client's default one.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise MissingDependencyError(
            'Exporting to Prometheus needs its client. Run: pip install "torch-dataloader-utils[prometheus]"'
        ) from error
    chosen = REGISTRY if registry is None else registry
    collector = _collectors.get(chosen)
    if collector is None:
        collector = _collectors[chosen] = _Collector()
        chosen.register(collector)
    collector.sources.append((weak_source(metrics), dict(labels or {})))


class _Collector:
    """All loaders of one registry; a family of metrics may be registered once only."""

    def __init__(self) -> None:
        self.sources: list[tuple[Callable[[], Metrics | None], dict[str, str]]] = []

    def describe(self) -> list[Any]:
        """Gives nothing, so that the registry does not collect only to find the names."""
        return []

    def collect(self) -> Iterator[Any]:
        """One family for each instrument, with a sample for each loader that lives."""
        read = [(source(), labels) for source, labels in self.sources]
        living = [(metrics, labels) for metrics, labels in read if metrics is not None]
        for instrument in INSTRUMENTS if living else ():
            yield _family(instrument, living)


_collectors: dict[Any, _Collector] = {}


def _family(instrument: Instrument, living: list[tuple[Metrics, dict[str, str]]]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name = f"tdu_{instrument.name}{_SUFFIXES[instrument.unit]}"
    kind = CounterMetricFamily if instrument.only_grows else GaugeMetricFamily
    family = kind(name, instrument.help, labels=list(living[0][1]))
    for metrics, labels in living:
        family.add_metric(list(labels.values()), getattr(metrics, instrument.attribute))
    return family
