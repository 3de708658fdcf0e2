"""Split-planning data loading for columnar data in PyTorch.

Parquet and ORC files or Iceberg tables in, equal batches on every rank out. An epoch is a pure function of inventory,
seed, epoch and topology; from that follow exact row counts, equal steps, resume in constant time on any topology, and
plans one can look at. Start with `StructuredDataset.create_dataloader`.

Names load on first use, so that importing this package imports neither torch nor pyarrow.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

# Positioned reads, file locks and signals are POSIX's. A refusal here is better than an error in the middle of a job.
if os.name != "posix":
    raise ImportError(
        f"torch_dataloader_utils runs on Linux and macOS, and this is {os.name!r}. On Windows, run it in the Windows "
        "Subsystem for Linux (WSL)."
    )

if TYPE_CHECKING:
    from torch_dataloader_utils._core.inventory import Inventory
    from torch_dataloader_utils._core.splits import (
        DataFileInfo,
        IcebergDataFileInfo,
        RowGroups,
        RowRange,
        Shard,
        Split,
        SplitStrategy,
    )
    from torch_dataloader_utils._core.state import merge_states
    from torch_dataloader_utils._observe.callbacks import EpochRun, LoaderCallback
    from torch_dataloader_utils._observe.exporters import export_to_opentelemetry, export_to_prometheus
    from torch_dataloader_utils._observe.metrics import Metrics
    from torch_dataloader_utils._store import CoalesceLimits, RemoteOptions, RetryPolicy
    from torch_dataloader_utils.datasets.blend import BlendedLoader, blend
    from torch_dataloader_utils.datasets.iceberg import IcebergDataset, scan_iceberg
    from torch_dataloader_utils.datasets.row_dataset import RowDataset
    from torch_dataloader_utils.datasets.structured import StructuredDataset
    from torch_dataloader_utils.discover import TextOptions, load_inventory, save_inventory, scan_files
    from torch_dataloader_utils.errors import (
        CheckpointMismatchError,
        ConfigError,
        ConfigTypeError,
        CorruptFileError,
        DataError,
        FileChangedError,
        InternalError,
        LoaderError,
        MissingDependencyError,
        NoDataError,
        NullValueError,
        RowCountError,
        SchemaError,
        StoreError,
        TransformError,
        UnsupportedFeatureError,
        WorkerDiedError,
    )
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan
    from torch_dataloader_utils.plan.planner import plan_epoch
    from torch_dataloader_utils.plan.strategies import (
        RoundRobinSplitStrategy,
        SizeBalancedSplitStrategy,
        TargetSizeSplitStrategy,
    )
    from torch_dataloader_utils.shape.padding import PadRagged
    from torch_dataloader_utils.shape.ragged import Ragged
    from torch_dataloader_utils.shape.tensor_batch import TensorBatch
    from torch_dataloader_utils.stream.block_cache import CacheInfo
    from torch_dataloader_utils.stream.dataset import TableDataset
    from torch_dataloader_utils.stream.device import DevicePrefetcher
    from torch_dataloader_utils.stream.loader import TableDataLoader
    from torch_dataloader_utils.tokens.pack import TokenPacking, pack_tokens

_HOMES = {
    "BlendedLoader": "datasets.blend",
    "CacheInfo": "stream.block_cache",
    "CheckpointMismatchError": "errors",
    "CoalesceLimits": "_store",
    "ConfigError": "errors",
    "ConfigTypeError": "errors",
    "CorruptFileError": "errors",
    "DataError": "errors",
    "DataFileInfo": "_core.splits",
    "DevicePrefetcher": "stream.device",
    "EpochPlan": "plan.epoch_plan",
    "EpochRun": "_observe.callbacks",
    "FileChangedError": "errors",
    "IcebergDataFileInfo": "_core.splits",
    "IcebergDataset": "datasets.iceberg",
    "InternalError": "errors",
    "Inventory": "_core.inventory",
    "LoaderCallback": "_observe.callbacks",
    "LoaderError": "errors",
    "Metrics": "_observe.metrics",
    "MissingDependencyError": "errors",
    "NoDataError": "errors",
    "NullValueError": "errors",
    "PadRagged": "shape.padding",
    "Ragged": "shape.ragged",
    "RemoteOptions": "_store",
    "RetryPolicy": "_store",
    "RoundRobinSplitStrategy": "plan.strategies",
    "RowCountError": "errors",
    "RowDataset": "datasets.row_dataset",
    "RowGroups": "_core.splits",
    "RowRange": "_core.splits",
    "SchemaError": "errors",
    "Shard": "_core.splits",
    "SizeBalancedSplitStrategy": "plan.strategies",
    "Split": "_core.splits",
    "SplitStrategy": "_core.splits",
    "StoreError": "errors",
    "StructuredDataset": "datasets.structured",
    "TableDataLoader": "stream.loader",
    "TableDataset": "stream.dataset",
    "TargetSizeSplitStrategy": "plan.strategies",
    "TensorBatch": "shape.tensor_batch",
    "TextOptions": "discover",
    "TokenPacking": "tokens.pack",
    "TransformError": "errors",
    "UnsupportedFeatureError": "errors",
    "WorkerDiedError": "errors",
    "blend": "datasets.blend",
    "export_to_opentelemetry": "_observe.exporters",
    "export_to_prometheus": "_observe.exporters",
    "load_inventory": "discover",
    "merge_states": "_core.state",
    "pack_tokens": "tokens.pack",
    "plan_epoch": "plan.planner",
    "save_inventory": "discover",
    "scan_files": "discover",
    "scan_iceberg": "datasets.iceberg",
}

__all__ = [
    "BlendedLoader",
    "CacheInfo",
    "CheckpointMismatchError",
    "CoalesceLimits",
    "ConfigError",
    "ConfigTypeError",
    "CorruptFileError",
    "DataError",
    "DataFileInfo",
    "DevicePrefetcher",
    "EpochPlan",
    "EpochRun",
    "FileChangedError",
    "IcebergDataFileInfo",
    "IcebergDataset",
    "InternalError",
    "Inventory",
    "LoaderCallback",
    "LoaderError",
    "Metrics",
    "MissingDependencyError",
    "NoDataError",
    "NullValueError",
    "PadRagged",
    "Ragged",
    "RemoteOptions",
    "RetryPolicy",
    "RoundRobinSplitStrategy",
    "RowCountError",
    "RowDataset",
    "RowGroups",
    "RowRange",
    "SchemaError",
    "Shard",
    "SizeBalancedSplitStrategy",
    "Split",
    "SplitStrategy",
    "StoreError",
    "StructuredDataset",
    "TableDataLoader",
    "TableDataset",
    "TargetSizeSplitStrategy",
    "TensorBatch",
    "TextOptions",
    "TokenPacking",
    "TransformError",
    "UnsupportedFeatureError",
    "WorkerDiedError",
    "blend",
    "export_to_opentelemetry",
    "export_to_prometheus",
    "load_inventory",
    "merge_states",
    "pack_tokens",
    "plan_epoch",
    "save_inventory",
    "scan_files",
    "scan_iceberg",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Moved:
    """Finds no module; says of those that version 0.2 had where their names are now."""

    places: ClassVar = {
        "dataset": "Import its names from torch_dataloader_utils",
        "filesystem": "torch_dataloader_utils.scan_files finds files",
        "format": "A loader reads splits",
        "observability": "loader.metrics() has the counts",
    }

    @classmethod
    def find_spec(cls, name: str, *others: object) -> None:  # noqa: ARG003
        """See importlib.abc.MetaPathFinder.

        Raises:
            ModuleNotFoundError: a module that only version 0.2 had.
        """
        package, _, module = name.partition(".")
        if package == __name__ and module in cls.places:
            text = f"{name} was a module of version 0.2. {cls.places[module]}; see docs/how-to/migrate.md."
            raise ModuleNotFoundError(text, name=name)


# At the end, where only what nobody else has found comes.
sys.meta_path.append(_Moved)
