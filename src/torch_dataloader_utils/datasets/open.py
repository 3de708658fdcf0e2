"""`open_loader`: one front door to files and tables, which looks what a path holds.

Type checkers read the signature in open.pyi, written by scripts/write_options.py.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_dataloader_utils._store import StoreAccess, redact
from torch_dataloader_utils.datasets import delta, iceberg, structured
from torch_dataloader_utils.datasets.delta_source import DeltaSource
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.files import FileSource
from torch_dataloader_utils.datasets.iceberg_source import IcebergSource
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.discover.paths import is_table_name
from torch_dataloader_utils.discover.table_directories import table_format
from torch_dataloader_utils.errors import ConfigError, NoDataError
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LoaderOptions
from torch_dataloader_utils.tables.iceberg.catalog import catalog_names

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
# The data set of each kind of place, and its door, whose first class of options is the source.
DATASETS = {
    "files": (structured.StructuredDataset, structured.LOADER),
    "iceberg": (iceberg.IcebergDataset, iceberg.LOADER),
    "delta": (delta.DeltaDataset, delta.LOADER),
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
    given = OPEN.given(args, options)
    kind, place = find_place(given)
    make, door = DATASETS[kind]
    rest = {name: value for name, value in given.items() if name not in ("path", "format")}
    for name in rest:
        if name not in door.options:
            owners = [each.__name__ for each, other in DATASETS.values() if name in other.options]
            raise ConfigError(
                f"{name}= is an option of {' and '.join(owners)}, and {redact(str(given['path']))} is read by "
                f"{make.__name__}. Leave it out."
            )
    return make.create_dataloader(**{**rest, **place})[0]


def find_place(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return "files", "iceberg" or "delta", and the options that say where the data is.

    Raises:
        ConfigError, StoreError: see `open_loader`. NoDataError: the path looks like a table's name, without a catalog.
    """
    path, file_format = given["path"], given.get("format", "auto")
    partitioning = given.get("partitioning", "auto")
    is_path = isinstance(path, str | os.PathLike) and os.fspath(path)
    if file_format == "auto" and is_path and not given.get("allow_bare_files", False):
        text = os.path.expanduser(os.fspath(path))  # noqa: PTH111 - URLs too
        if given.get("catalog_config") is not None:
            file_format = "iceberg"
        elif is_table_name(text) and not Path(text).exists():
            return "iceberg", _named_table(text)
        else:
            access = StoreAccess.of(given.get("storage_options"), given.get("credentials"), given.get("remote"))
            file_format = table_format(text, access) or "auto"
    if file_format in ("iceberg", "delta"):
        return file_format, {"table": path}
    return "files", {"path": path, "format": file_format, "partitioning": partitioning}


def _named_table(name: str) -> dict[str, str | dict[str, str]]:
    """Return the catalog and the name of a table "catalog.db.table"."""
    known = catalog_names()
    catalog, _, table = name.partition(".")
    if "." in table and catalog.lower() in known:
        return {"table": table, "catalog_config": {"name": catalog}}
    raise NoDataError(
        f"{name} is no file or directory here, and {catalog} is no catalog of pyiceberg's configuration "
        f"({', '.join(known) or 'which has none'}). For files, check the path. For a table of an Iceberg catalog, pass "
        '"catalog.db.table", or catalog_config= too, such as {"type": "rest", "uri": "http://host"}.'
    )
