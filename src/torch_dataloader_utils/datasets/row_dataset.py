"""`RowDataset`: the front door to the rows of files by their number.

Type checkers read the signature in row_dataset.pyi, written by scripts/write_options.py.
"""

from dataclasses import replace
from typing import Any

from torch_dataloader_utils.datasets.door import Door, names_of
from torch_dataloader_utils.datasets.files import FileSource
from torch_dataloader_utils.datasets.numbered_rows import NumberedRows, RowOptions
from torch_dataloader_utils.datasets.options import TableOptions

# Options of tables about the rows of one process.
_OF_ROWS = {"columns", "filters", "holdout", "output_format", "nulls", "dtypes", "stack", "encode", "decoding"}

ROWS = Door(
    FileSource,
    RowOptions,
    TableOptions,
    positional="path format",
    left_out={*names_of(TableOptions)} - _OF_ROWS,
)


class RowDataset(NumberedRows):
    """Every live row of a data set by its number, for samplers and wrappers that choose rows one by one.

    Rows are numbered in the order of (path, row group, row), after deletes and filter; `len` is exact. It works under
    `DataLoader` with any sampler and number of workers, `DistributedSampler`, `ShardedDataset`, `BufferSortedDataset`,
    Accelerate and Lightning.

    A row costs its whole row group, so row groups are kept decoded, the last used ones, up to `cache_bytes` in each
    process. If rows that are read one after the other lie near each other (in stored order, or in the order of
    `BufferSortedDataset`), each row group is decoded once; a global random order over more data than the cache holds
    decodes a row group for almost every row. For that, use `StructuredDataset` with `shuffle=True`.
    """

    @ROWS.explains
    def __init__(self, *args: Any, **options: Any) -> None:
        """Find the files and count their rows; no row is read unless a filter makes that necessary.

        A row is a dict of tensors ("torch"; a list is a 1-D tensor), of numpy values, of Python values ("dict"), or a
        RecordBatch of one row ("arrow"). `inventory` may come from `scan_iceberg` too, and its deletes apply. The
        threads of `decoding` are row groups decoded at once for one call; nothing is decoded ahead.

        Raises:
            ConfigError: arguments that do not fit each other or the data. NoDataError: nothing to read.
            DataError: files that are corrupt or do not share one schema. StoreError: the storage failed.
        """
        source, row_options, table_options = ROWS.bind(args, options)
        self._begin(source, replace(table_options, check_ranks=False), row_options)
