"""`DeltaDataset` and `scan_delta`: the front door to Delta Lake tables. `build` (build.py) wires the stages.

Type checkers read the signatures in delta.pyi, written by scripts/write_options.py.
"""

from typing import Any

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils.datasets.build import build
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.delta_source import DeltaSource
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.options import ScanOptions, TableOptions
from torch_dataloader_utils.datasets.source import scan_alone
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LoaderOptions

SCAN = Door(DeltaSource, ScanOptions, positional="table", left_out=("inventory",))
DATASET = Door(DeltaSource, TableOptions, positional="table")
LOADER = Door(
    DeltaSource,
    TableOptions,
    LoaderOptions,
    positional="table batch_size columns filters version timestamp storage_options shuffle shuffle_seed split_bytes "
    "split_rows split_strategy num_workers output_format collate_fn num_ranks rank show_progress "
    "progress_interval_sec shuffle_buffer_size",
)


@SCAN.explains
def scan_delta(*args: Any, on_progress: OnProgress | None = None, **options: Any) -> Inventory:
    """Return the inventory of one version of a Delta table.

    on_progress is called in the caller's thread after each data file with (files done, files to scan). on_error="skip"
    leaves out data files if their metadata does not decode, with a warning that names the files. count_rows=False
    leaves row groups uncounted if filters decide about their rows.

    Returns:
        Inventory with data files sorted by path. `notes` says how many rows are deleted.

    Raises:
        ConfigError, DataError, StoreError: see `DeltaDataset.create_dataloader`.
    """
    source, scan_options = SCAN.bind(args, options)
    return scan_alone(source, scan_options, on_progress)


class DeltaDataset(BuiltDataset):
    """One version of a Delta Lake table as an iterable data set of batches, one rank's share of them.

    Rows that deletion vectors delete are left out. Files with deletes are split into row groups like all other files.
    Workers get data files and deleted rows; workers do not read the log.
    """

    @DATASET.explains
    def __init__(self, *args: Any, **options: Any) -> None:
        """Make a data set of this table, for a loader of your own.

        Raises:
            ConfigError, DataError, StoreError: see `create_dataloader`.
        """
        source, table_options = DATASET.bind(args, {"num_workers": 1, **options})
        build(source, table_options, self._begin)

    @classmethod
    @LOADER.explains
    def create_dataloader(cls, *args: Any, **options: Any) -> tuple[TableDataLoader, "DeltaDataset"]:
        """Make a loader of one rank's batches of a Delta table, and its data set.

        Returns:
            (loader, dataset). A state is bound to the version that was read.

        Raises:
            ConfigError: arguments that do not fit each other or the table. NoDataError: no table at this place, or
                nothing to read. MissingDependencyError: the table has deletion vectors, and pyroaring is not installed.
            DataError: log, deletion vectors or data are corrupt or use an unsupported feature.
            StoreError: the storage failed.
        """
        source, table_options, loader_options = LOADER.bind(args, options)
        return build(source, table_options, cls.__new__(cls)._begin, loader_options)
