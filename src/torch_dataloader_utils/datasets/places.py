"""`find_place` looks what a path holds: files, a Delta table or an Iceberg table, and with which options it is read."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_dataloader_utils._store import StoreAccess, redact
from torch_dataloader_utils.datasets.delta_source import DeltaSource
from torch_dataloader_utils.datasets.door import names_of
from torch_dataloader_utils.datasets.files import FileSource
from torch_dataloader_utils.datasets.iceberg_source import IcebergSource
from torch_dataloader_utils.discover.paths import is_table_name
from torch_dataloader_utils.discover.table_directories import table_format
from torch_dataloader_utils.errors import ConfigError, NoDataError
from torch_dataloader_utils.tables.iceberg.catalog import catalog_names

SOURCES: dict[str, type[FileSource | IcebergSource | DeltaSource]] = {
    "files": FileSource,
    "iceberg": IcebergSource,
    "delta": DeltaSource,
}
"""Source of each kind of place."""

_DATASETS = {"files": "StructuredDataset", "iceberg": "IcebergDataset", "delta": "DeltaDataset"}


def find_place(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return "files", "iceberg" or "delta", and the options of the data set that reads the place.

    given: Options of `open_loader`.

    Raises:
        ConfigError: an option of another kind of place. ConfigError, StoreError: see `open_loader`.
        NoDataError: the path looks like a table's name, without a catalog.
    """
    kind, place = _look(given)
    rest = {name: value for name, value in given.items() if name not in ("path", "format")}
    for name in rest:
        owners = [_DATASETS[other] for other, source in SOURCES.items() if name in names_of(source)]
        if owners and _DATASETS[kind] not in owners:
            raise ConfigError(
                f"{name}= is an option of {' and '.join(owners)}, and {redact(str(given['path']))} is read by "
                f"{_DATASETS[kind]}. Leave it out."
            )
    return kind, {**rest, **place}


def _look(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a place, and the options that say where the data is."""
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
        '"catalog.db.table", or catalog_config={"type": "rest", "uri": "http://host"} too.'
    )
