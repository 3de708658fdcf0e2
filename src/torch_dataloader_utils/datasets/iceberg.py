"""`IcebergDataset` and `scan_iceberg`: the front door to Iceberg tables. `build` (build.py) wires the stages.

Type checkers read the signatures in iceberg.pyi, written by scripts/write_options.py.
"""

from typing import Any

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils.datasets.build import build
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.iceberg_source import IcebergSource
from torch_dataloader_utils.datasets.options import ScanOptions, TableOptions
from torch_dataloader_utils.datasets.source import scan_alone
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LoaderOptions

SCAN = Door(IcebergSource, ScanOptions, positional="table catalog_config", left_out=("inventory",))
DATASET = Door(IcebergSource, TableOptions, positional="table catalog_config")
LOADER = Door(
    IcebergSource,
    TableOptions,
    LoaderOptions,
    positional="table catalog_config batch_size columns filters scan_filter snapshot_id shuffle shuffle_seed "
    "split_bytes split_rows split_strategy num_workers output_format collate_fn num_ranks rank show_progress "
    "progress_interval_sec shuffle_buffer_size",
)


@SCAN.explains
def scan_iceberg(*args: Any, on_progress: OnProgress | None = None, **options: Any) -> Inventory:
    """Return the inventory of one snapshot of an Iceberg table.

    on_progress is called in the caller's thread after each data file with (files done, files to scan). on_error="skip"
    leaves out data files if their metadata does not decode, with a warning that names the files. count_rows=False
    leaves row groups uncounted if equality deletes or filters decide about their rows.

    Returns:
        Inventory with data files sorted by path. `notes` has the number of deletes, and of dangling deletes.

    Raises:
        ConfigError, DataError, StoreError: see `IcebergDataset.create_dataloader`.
    """
    source, scan_options = SCAN.bind(args, options)
    return scan_alone(source, scan_options, on_progress)


class IcebergDataset(BuiltDataset):
    """One snapshot of an Iceberg table as an iterable data set of batches, one rank's share of them.

    Every kind of delete is applied. Files with deletes are split into row groups like all other files. Workers get data
    files and deletes; workers ask the catalog only for new credentials, when the first credentials have expired.
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
    def create_dataloader(cls, *args: Any, **options: Any) -> tuple[TableDataLoader, "IcebergDataset"]:
        """Make a loader of one rank's batches of an Iceberg table, and its data set.

        Returns:
            (loader, dataset). A state is bound to the snapshot that was read.

        Raises:
            ConfigError: arguments that do not fit each other or the table. NoDataError: no table of this name, or
                nothing to read. MissingDependencyError: pyiceberg is not installed.
            DataError: metadata, deletes or data are corrupt or use an unsupported feature.
            StoreError: catalog or storage failed.
        """
        source, table_options, loader_options = LOADER.bind(args, options)
        return build(source, table_options, cls.__new__(cls)._begin, loader_options)
