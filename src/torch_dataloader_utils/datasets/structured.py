"""`StructuredDataset`: the front door to files. `build` (build.py) wires the stages for it.

Type checkers read the signatures in structured.pyi, written by scripts/write_options.py.
"""

from typing import Any

from torch_dataloader_utils.datasets.build import build
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.files import FileSource
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LoaderOptions

DATASET = Door(FileSource, TableOptions, positional="path format")
LOADER = Door(
    FileSource,
    TableOptions,
    LoaderOptions,
    positional="path format batch_size columns filters shuffle shuffle_seed split_bytes split_rows split_strategy "
    "num_workers output_format storage_options collate_fn partitioning num_ranks rank show_progress "
    "progress_interval_sec shuffle_buffer_size",
)


class StructuredDataset(BuiltDataset):
    """Parquet, ORC, CSV, JSON or Arrow files as an iterable data set of batches, one rank's share of them.

    `create_dataloader` is the usual way in. The constructor is for a DataLoader of your own: pass the data set with
    batch_size=None and any number of workers; the plan is made for this number.
    """

    @DATASET.explains
    def __init__(self, *args: Any, **options: Any) -> None:
        """Make a data set of these files, for a loader of your own.

        Raises:
            ConfigError, DataError, StoreError: see `create_dataloader`.
        """
        source, table_options = DATASET.bind(args, {"num_workers": 1, **options})
        build(source, table_options, self._begin)

    @classmethod
    @LOADER.explains
    def create_dataloader(cls, *args: Any, **options: Any) -> tuple[TableDataLoader, "StructuredDataset"]:
        """Make a loader of one rank's batches, and its data set.

        Returns:
            (loader, dataset). `len(loader)` is exact (a TypeError if row counts are not known). Call
            `dataset.set_epoch(epoch)` before each epoch if shuffling.

        Raises:
            ConfigError: arguments that do not fit each other or the data. NoDataError: nothing to read.
            DataError: files that are corrupt or do not share one schema. StoreError: the storage failed.
        """
        source, table_options, loader_options = LOADER.bind(args, options)
        return build(source, table_options, cls.__new__(cls)._begin, loader_options)
