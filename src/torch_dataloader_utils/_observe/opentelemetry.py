"""Metrics for OpenTelemetry: observed when its reader collects, so that batches cost nothing."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch_dataloader_utils._observe.exported import ExportedLoaders, MetricsSource, check_export
from torch_dataloader_utils._observe.instruments import INSTRUMENTS, Instrument
from torch_dataloader_utils.errors import MissingDependencyError

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter


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
