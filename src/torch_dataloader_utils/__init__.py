"""Split-planning data loading for columnar data in PyTorch.

Files (Parquet, ORC, Arrow, CSV, JSON lines), Iceberg tables or Delta tables in, equal batches on every rank out. An
epoch is a pure function of inventory, seed, epoch and topology. From that follow exact row counts, equal steps, resume
in constant time on any topology, and plans to look at. Start with `open_loader`.

Names load on first use, so that importing this package imports neither torch nor pyarrow.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

__version__ = "1.0.0.dev0"

# Positioned reads, file locks and signals are POSIX's. A refusal here is better than an error in the middle of a job.
if os.name != "posix":
    raise ImportError(
        f"torch_dataloader_utils runs on Linux and macOS, and this is {os.name!r}. On Windows, run it in the Windows "
        "Subsystem for Linux (WSL)."
    )
# Both distributions write into this directory. Only the older one has `dataset/`, and its `splits/` hides `splits.py`.
if Path(__file__).with_name("dataset").is_dir():
    raise ImportError(
        f"{Path(__file__).parent} has files of two packages: epochplan, and the older torch-dataloader-utils 0.2. "
        "Run: pip uninstall --yes epochplan torch-dataloader-utils, then install epochplan again."
    )

# What type checkers read; `_HOMES` says the same at run time. tests/packaging/test_public_names.py compares them.
# isort: off
if TYPE_CHECKING:
    from torch_dataloader_utils._core.inventory import Inventory as Inventory
    from torch_dataloader_utils._core.option_values import (
        Decoding as Decoding,
        Holdout as Holdout,
        Lanes as Lanes,
        RayWorkers as RayWorkers,
        TokenBatches as TokenBatches,
    )
    from torch_dataloader_utils._core.splits import (
        DataFileInfo as DataFileInfo,
        IcebergDataFileInfo as IcebergDataFileInfo,
        Split as Split,
        SplitStrategy as SplitStrategy,
    )
    from torch_dataloader_utils._core.state import merge_states as merge_states
    from torch_dataloader_utils._observe.callbacks import LoaderCallback as LoaderCallback
    from torch_dataloader_utils._observe.metrics import Metrics as Metrics
    from torch_dataloader_utils._store import (
        CoalesceLimits as CoalesceLimits,
        HostCache as HostCache,
        RemoteOptions as RemoteOptions,
        RetryPolicy as RetryPolicy,
    )
    from torch_dataloader_utils.blending import (
        BlendedLoader as BlendedLoader,
        WeightSchedule as WeightSchedule,
        blend as blend,
    )
    from torch_dataloader_utils.datasets.delta import DeltaDataset as DeltaDataset, scan_delta as scan_delta
    from torch_dataloader_utils.datasets.iceberg import IcebergDataset as IcebergDataset, scan_iceberg as scan_iceberg
    from torch_dataloader_utils.datasets.open import open_loader as open_loader
    from torch_dataloader_utils.datasets.row_dataset import RowDataset as RowDataset
    from torch_dataloader_utils.datasets.structured import StructuredDataset as StructuredDataset
    from torch_dataloader_utils.discover import (
        Hive as Hive,
        TextOptions as TextOptions,
        load_inventory as load_inventory,
        save_inventory as save_inventory,
        scan_files as scan_files,
    )
    from torch_dataloader_utils.errors import (
        CheckpointMismatchError as CheckpointMismatchError,
        ConfigError as ConfigError,
        DataError as DataError,
        LoaderError as LoaderError,
        NoDataError as NoDataError,
        StoreError as StoreError,
        TransformError as TransformError,
        WorkerDiedError as WorkerDiedError,
    )
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan as EpochPlan
    from torch_dataloader_utils.plan.planner import plan_epoch as plan_epoch
    from torch_dataloader_utils.plan.strategies import (
        RoundRobinSplitStrategy as RoundRobinSplitStrategy,
        SizeBalancedSplitStrategy as SizeBalancedSplitStrategy,
    )
    from torch_dataloader_utils.rewrite.shuffle import ShuffleReport as ShuffleReport, shuffle_table as shuffle_table
    from torch_dataloader_utils.shape.encode import Bytes as Bytes, Hash as Hash, Vocabulary as Vocabulary
    from torch_dataloader_utils.shape.padding import PadRagged as PadRagged
    from torch_dataloader_utils.shape.ragged import Ragged as Ragged
    from torch_dataloader_utils.shape.tensor_batch import TensorBatch as TensorBatch
    from torch_dataloader_utils.stream.dataset import TableDataset as TableDataset
    from torch_dataloader_utils.stream.device import DevicePrefetcher as DevicePrefetcher
    from torch_dataloader_utils.stream.loader import TableDataLoader as TableDataLoader
    from torch_dataloader_utils.samples import (
        Interval as Interval,
        Sequences as Sequences,
        pack_tokens as pack_tokens,
    )
# isort: on

_HOMES = {
    "_core.inventory": "Inventory",
    "_core.option_values": "Decoding Holdout Lanes RayWorkers TokenBatches",
    "_core.splits": "DataFileInfo IcebergDataFileInfo Split SplitStrategy",
    "_core.state": "merge_states",
    "_observe.callbacks": "LoaderCallback",
    "_observe.metrics": "Metrics",
    "_store": "CoalesceLimits HostCache RemoteOptions RetryPolicy",
    "blending": "BlendedLoader WeightSchedule blend",
    "datasets.delta": "DeltaDataset scan_delta",
    "datasets.iceberg": "IcebergDataset scan_iceberg",
    "datasets.open": "open_loader",
    "datasets.row_dataset": "RowDataset",
    "datasets.structured": "StructuredDataset",
    "discover": "Hive TextOptions load_inventory save_inventory scan_files",
    "errors": "CheckpointMismatchError ConfigError DataError LoaderError NoDataError "
    "StoreError TransformError WorkerDiedError",
    "plan.epoch_plan": "EpochPlan",
    "plan.planner": "plan_epoch",
    "plan.strategies": "RoundRobinSplitStrategy SizeBalancedSplitStrategy",
    "rewrite.shuffle": "ShuffleReport shuffle_table",
    "shape.encode": "Bytes Hash Vocabulary",
    "shape.padding": "PadRagged",
    "shape.ragged": "Ragged",
    "shape.tensor_batch": "TensorBatch",
    "stream.dataset": "TableDataset",
    "stream.device": "DevicePrefetcher",
    "stream.loader": "TableDataLoader",
    "samples": "Interval Sequences pack_tokens",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)

if not TYPE_CHECKING:  # else every name would be there for type checkers

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__


class _Moved:
    """Finder of no module; for a module of version 0.2, the error says where its names are now."""

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
