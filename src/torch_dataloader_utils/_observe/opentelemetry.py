"""Metrics for OpenTelemetry: observed when its reader collects, so that batches cost nothing."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils._observe.instruments import INSTRUMENTS, Instrument, MetricsSource, weak_source
from torch_dataloader_utils.errors import MissingDependencyError

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter


def export_to_opentelemetry(
    metrics: MetricsSource, attributes: Mapping[str, str | int] | None = None, meter: "Meter | None" = None
) -> None:
    """Create observable instruments tdu.rows, tdu.wait (unit s), tdu.decoded (unit By) and so on.

        export_to_opentelemetry(loader.metrics, attributes={"rank": 3, "loader": "train"})

    Args:
        metrics: `loader.metrics`. The loader is not kept alive; when it is gone, nothing is observed.
        attributes: of every observation; ranks and loaders are told apart by them.
        meter: None for the one that the global meter provider gives.

    Raises:
        MissingDependencyError: the OpenTelemetry API is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter
    except ImportError as error:
        raise MissingDependencyError(
            'Exporting to OpenTelemetry needs its API. Run: pip install "torch-dataloader-utils[opentelemetry]"'
        ) from error
    chosen = get_meter("torch_dataloader_utils") if meter is None else meter
    for instrument in INSTRUMENTS:
        create = chosen.create_observable_counter if instrument.only_grows else chosen.create_observable_gauge
        create(
            f"tdu.{instrument.name}",
            callbacks=[_observer(instrument, metrics, dict(attributes or {}))],
            unit=instrument.unit,
            description=instrument.help,
        )


def _observer(instrument: Instrument, metrics: MetricsSource, attributes: dict[str, str | int]) -> Any:
    from opentelemetry.metrics import Observation

    read = weak_source(metrics)

    def observe(options: Any) -> Iterator[Any]:  # noqa: ARG001  # how the API calls it
        now = read()
        if now is not None:
            yield Observation(getattr(now, instrument.attribute), attributes)

    return observe
