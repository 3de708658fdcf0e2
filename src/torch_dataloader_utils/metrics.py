"""Observing loaders: metrics of one rank and of all ranks, callbacks, and exporters."""

from torch_dataloader_utils._observe.callbacks import EpochRun, LoaderCallback
from torch_dataloader_utils._observe.exporters import export_to_opentelemetry, export_to_prometheus
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.ranks.gather import GatheredMetrics, Spread, gather_metrics

__all__ = [
    "EpochRun",
    "GatheredMetrics",
    "LoaderCallback",
    "Metrics",
    "Spread",
    "export_to_opentelemetry",
    "export_to_prometheus",
    "gather_metrics",
]
