"""`open_loader`: one front door to files and tables, which looks what a path holds.

Type checkers read the signature in open.pyi, written by scripts/write_options.py.
"""

from typing import Any

from torch_dataloader_utils.datasets import delta, iceberg, structured
from torch_dataloader_utils.datasets.delta_source import DeltaSource
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.files import FileSource
from torch_dataloader_utils.datasets.iceberg_source import IcebergSource
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.places import find_place
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LoaderOptions

OPEN = Door(
    FileSource,
    IcebergSource,
    DeltaSource,
    TableOptions,
    LoaderOptions,
    positional="path",
    left_out=("table",),
    defaults={"format": "auto", "partitioning": "auto"},
)
# The data set of each kind of place.
_DATASETS = {
    "files": structured.StructuredDataset,
    "iceberg": iceberg.IcebergDataset,
    "delta": delta.DeltaDataset,
}


@OPEN.explains
def open_loader(*args: Any, **options: Any) -> TableDataLoader:
    """Make a loader of one rank's batches of files or of a table; look what the path holds.

        "trips/", "s3://bucket/trips/*.orc"         files; format and Hive directories by their names
        "lake/events", "s3://lake/events"           a Delta or Iceberg table, if its log or metadata are there
        "prod.db.events"                            an Iceberg table in the catalog `prod` of pyiceberg's configuration
        "db.events", catalog_config={"uri": ...}    an Iceberg table in this catalog

    Each rank looks for a table, by one listing of a remote directory, unless `format` is given, which may be "delta" or
    "iceberg" too. `create_dataloader` of `StructuredDataset`, `IcebergDataset` or `DeltaDataset` makes the same loader,
    with the same states.

    Returns:
        The loader; `loader.dataset` is its data set. `len(loader)` is exact (a TypeError if row counts are not known).

    Raises:
        ConfigError: files of several formats, an option of another kind of table, or arguments that do not fit each
            other or the data. NoDataError: nothing to read. DataError: data is corrupt or not supported.
        StoreError: the catalog or the storage failed.
    """
    kind, given = find_place(OPEN.given(args, options))
    return _DATASETS[kind].create_dataloader(**given)[0]
