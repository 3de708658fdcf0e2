"""From a table's name, or the place of its metadata, to its metadata and the credentials of its files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils._store import FileEntry, Secret, open_store, redact
from torch_dataloader_utils.discover.iceberg.faults import parsing
from torch_dataloader_utils.discover.iceberg.files import Files
from torch_dataloader_utils.discover.iceberg.paths import PathRules, split
from torch_dataloader_utils.discover.iceberg.storage import storage_options, with_present_names
from torch_dataloader_utils.errors import ConfigError, MissingDependencyError, NoDataError, StoreError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_INSTALL = 'pip install "torch-dataloader-utils[iceberg]"'
_VERSION = re.compile(r"^v?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenTable:
    """A table at one moment. name: for messages. files: how its files are read; holds the credentials."""

    name: str
    metadata: "TableMetadata"
    files: Files


def open_table(
    table: str,
    catalog_config: Mapping[str, Any] | None,
    path_rewrites: Mapping[str, str] | None,
    given_options: Secret | None,
) -> OpenTable:
    """The table's present metadata.

    table: its name in the catalog or, without one, a metadata file (*.metadata.json) or the table's directory.
    given_options: for the storage client; they win over what the catalog says.

    Raises:
        MissingDependencyError: pyiceberg, or what this catalog needs, is not installed.
        NoDataError: no such table. ConfigError: a catalog that cannot be configured. StoreError: it failed.
    """
    _require_pyiceberg()
    if catalog_config is None:
        return _from_location(table, Files.of(path_rewrites, given_options or Secret({})))
    loaded = _load_table(table, catalog_config)
    location = PathRules.of(path_rewrites).resolve(loaded.metadata.location)
    options = storage_options(loaded.io.properties, split(location)[0])
    own = {} if given_options is None else given_options.reveal()
    return OpenTable(name=table, metadata=loaded.metadata, files=Files.of(path_rewrites, Secret({**options, **own})))


def _require_pyiceberg() -> None:
    try:
        import pyiceberg.table  # noqa: F401 - whether it can be imported is the question
        import pyroaring  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"reading Iceberg tables needs pyiceberg ({error}). Run: {_INSTALL}") from error


def _load_table(name: str, catalog_config: Mapping[str, Any]) -> Any:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError

    properties = with_present_names(catalog_config)
    try:
        return _find(load_catalog(**properties), name)
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise NoDataError(f"the catalog has no table {name} ({_text(error, properties)}). Check its name.") from error
    except (NotInstalledError, ImportError) as error:
        raise MissingDependencyError(
            f"this catalog needs a client that is not installed ({error}). Run: {_INSTALL} and the client."
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"catalog_config does not make a catalog ({_text(error, properties)}). See pyiceberg's page on catalogs."
        ) from error
    except Exception as error:
        # Catalogs are plug-ins and raise whatever their clients do.
        raise StoreError(
            f"the catalog could not load {name} ({type(error).__name__}: {_text(error, properties)}). Check that it "
            "can be reached with this catalog_config."
        ) from error


def _find(catalog: Any, name: str) -> Any:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        # "catalog.db.table" is how SQL engines write it; "catalog" may also be part of a namespace, hence second.
        _, dot, rest = name.partition(".")
        if not dot or "." not in rest:
            raise
        return catalog.load_table(rest)


def _text(error: BaseException, properties: Mapping[str, Any]) -> str:
    """What a foreign error says, without any value of a property that may be a secret."""
    text = str(error)
    for name, value in properties.items():
        if re.search("secret|token|credential|password|key", name) and value:
            text = text.replace(str(value), "***")
    return re.sub(r"://[^/@\s]+:[^/@\s]+@", "://***@", text)


def _from_location(location: str, files: Files) -> OpenTable:
    from pyiceberg.table.metadata import TableMetadataUtil

    path = files.rules.resolve(location)
    if not path.endswith(".json") and not path.endswith(".gz"):
        path = _latest_metadata(path, files)
    data = bytes(files.read(path))
    with parsing(path, "table metadata"):
        if data[:2] == b"\x1f\x8b":
            import gzip

            data = gzip.decompress(data)
        metadata = TableMetadataUtil.parse_raw(data.decode())
    return OpenTable(name=redact(location), metadata=metadata, files=files)


def _latest_metadata(directory: str, files: Files) -> str:
    """The newest metadata file of a table directory: what version-hint.text says, else the highest version.

    v3.metadata.json and 00003-<uuid>.metadata.json are both version 3; of two, the one written last.
    """
    root = directory.rstrip("/") + "/metadata"
    listing = open_store(root, files.options).list_files(root).entries
    by_name = {entry.path.rpartition("/")[2]: entry for entry in listing}
    if "version-hint.text" in by_name:
        hint = bytes(files.read(by_name["version-hint.text"].path)).decode().strip()
        for name in (hint, f"v{hint}.metadata.json", f"{hint}.metadata.json", f"v{hint}.gz.metadata.json"):
            if name in by_name:
                return by_name[name].path
    found = [entry for name, entry in by_name.items() if ".metadata.json" in name]
    if not found:
        raise NoDataError(
            f"{redact(directory)} is no Iceberg table: it has no metadata/*.metadata.json. Check the path."
        )
    return max(found, key=_age).path


def _age(entry: FileEntry) -> tuple[int, str, str]:
    name = entry.path.rpartition("/")[2]
    version = _VERSION.match(name)
    return (int(version[1]) if version else -1, entry.stat.identity, name)
