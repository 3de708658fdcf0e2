"""Everything to observe a loader with: its metrics, callbacks, and exporters to Prometheus and OpenTelemetry."""

from torch_dataloader_utils._observe.callbacks import EpochRun, LoaderCallback
from torch_dataloader_utils._observe.exporters import export_to_opentelemetry, export_to_prometheus
from torch_dataloader_utils._observe.metrics import Metrics

__all__ = ["EpochRun", "LoaderCallback", "Metrics", "export_to_opentelemetry", "export_to_prometheus"]
