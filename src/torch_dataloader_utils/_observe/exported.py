"""The loaders whose metrics a monitoring system collects."""

from collections.abc import Callable, Mapping
from threading import Lock
from types import MethodType
from typing import Any
from weakref import WeakMethod

from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.errors import ConfigTypeError, of_type

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
