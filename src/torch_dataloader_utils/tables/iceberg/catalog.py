"""Opening of a table, by its name in a catalog or by the path of its metadata, in bounded time."""

import gzip
import queue
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils._store import FileEntry, Secret, StoreAccess, censor, censored_text, redact
from torch_dataloader_utils.discover.roots import PathRules, Roots, split
from torch_dataloader_utils.errors import ConfigError, LoaderError, MissingDependencyError, NoDataError, StoreError
from torch_dataloader_utils.tables.iceberg.metadata_errors import parsing, unknown_feature, unparsed
from torch_dataloader_utils.tables.iceberg.storage_properties import storage_options, with_present_names
from torch_dataloader_utils.tables.iceberg.table_metadata import GZIP, Beside, acceptable
from torch_dataloader_utils.tables.table_files import TableFiles

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


INSTALL = 'pip install "pyiceberg[sql-sqlite]" pyroaring'

# A working catalog answers in seconds; boto3 gives up on a dead Glue after five times 60.
_PATIENCE_SECONDS = 300.0


def look_up(name: str, properties: Mapping[str, Any], patience_seconds: float = _PATIENCE_SECONDS) -> Any:
    """Return pyiceberg's Table of this name, from the catalog that `properties` make.

    patience_seconds: Time limit for the catalog. Clients of catalogs wait without end for a server that has accepted a
    connection and says nothing.

    Raises:
        NoDataError: no such table. ConfigError: no catalog, or no name of a table. StoreError: the catalog failed, or
            did not answer. MissingDependencyError: the catalog's client is not installed.
        UnsupportedFeatureError, CorruptFileError: the catalog answered with metadata that pyiceberg does not parse.
    """
    properties = with_present_names(properties)
    handled = sys.exception()
    try:
        return _in_time(lambda: _ask(properties, name), patience_seconds)
    except LoaderError:
        raise
    except _NoAnswerError:
        raise StoreError(
            f"the catalog did not answer within {patience_seconds:g} seconds when asked for {redact(name)}. Check "
            "that it is up and can be reached with this catalog_config, then try again."
        ) from None
    except Exception as error:  # noqa: BLE001 - catalogs are plug-ins; raised again as an error of this package
        censor(error, properties, handled=handled)
        # pydantic's errors quote the catalog's answer, with the credentials of the table.
        raise _lookup_error(redact(name), error) from (None if _is_invalid(error) else error)


class _NoAnswerError(Exception):
    """Catalog that took too long."""


def _in_time(ask: Callable[[], Any], seconds: float) -> Any:
    """Return the result of `ask`, or raise its error. After `seconds`, raise _NoAnswerError and abandon the thread."""
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            answers.put((None, error))

    Thread(target=run, name="tdu-catalog", daemon=True).start()
    try:
        found, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise _NoAnswerError from None
    if error is not None:
        raise error
    return found


def _ask(properties: Mapping[str, Any], name: str) -> Any:
    """Return the table, and close the catalog's connections. Nothing asks a table's own catalog again."""
    from torch_dataloader_utils.tables.iceberg.metadata_io import accept_metadata_of

    catalog = _catalog(properties)
    try:
        accept_metadata_of(catalog)
        return _find(catalog, name)
    finally:
        with suppress(Exception):  # a plug-in may have no close, and its answer counts
            catalog.close()


def catalog_names() -> tuple[str, ...]:
    """Return the names, in lower case, of the catalogs in pyiceberg's configuration; none without pyiceberg."""
    try:
        from pyiceberg.utils.config import Config
    except ImportError:
        return ()
    return tuple(Config().get_known_catalogs())


def _catalog(properties: Mapping[str, Any]) -> Any:
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(**properties)
    except (ValueError, TypeError, KeyError) as error:
        censor(error, properties)
        raise ConfigError(
            f"catalog_config does not make a catalog ({error}). See pyiceberg's page on catalogs."
        ) from error


def _find(catalog: Any, name: str) -> Any:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        # SQL engines write "catalog.db.table". Tried second, since "catalog" may be a part of the namespace.
        _, dot, rest = name.partition(".")
        if not dot or "." not in rest:
            raise
        return catalog.load_table(rest)


def _is_invalid(error: Exception) -> bool:
    from pydantic import ValidationError

    return isinstance(error, ValidationError)


def _lookup_error(name: str, error: Exception) -> LoaderError:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError
    from pyiceberg.exceptions import ValidationError as MetadataError

    text = censored_text(str(error))  # also if the error quotes another error
    if isinstance(error, (NotInstalledError, ImportError)):
        return MissingDependencyError(
            f"this catalog needs a client that is not installed ({text}). Run: {INSTALL} and the client."
        )
    if "." not in name and isinstance(error, (ValueError, NoSuchTableError, NoSuchNamespaceError)):
        return ConfigError(
            f'table={name!r} names no table of a catalog ({text}). Write its namespace too: "namespace.table".'
        )
    if isinstance(error, (NoSuchTableError, NoSuchNamespaceError)):
        return NoDataError(
            f"the catalog has no table {name} ({text}). Check its name; catalogs in SQL also keep "
            'tables by the name of the catalog, which is catalog_config\'s "name".'
        )
    if _is_invalid(error) or isinstance(error, MetadataError) or unknown_feature(error):
        return unparsed(name, "metadata that the catalog gave", error)
    # Catalogs are plug-ins and raise any error of their clients.
    return StoreError(
        f"the catalog could not load {name} ({type(error).__name__}: {text}). Check that it can be reached with this "
        "catalog_config."
    )


_VERSION = re.compile(r"^v?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """Place of a table, and the access to its files.

    table: Name in the catalog or, without a catalog, path of a metadata file (*.metadata.json) or of the table's
        directory.
    access: Access of the user; its options win over the catalog's options. allowed_roots: None for the stores (buckets)
        that hold the table's metadata.
    """

    table: str
    catalog_config: Secret | None = None
    path_rewrites: tuple[tuple[str, str], ...] = ()
    access: StoreAccess = field(default_factory=StoreAccess)
    allowed_roots: Roots | None = None

    @property
    def rules(self) -> PathRules:
        """Rewrites of paths in metadata."""
        return PathRules.of(dict(self.path_rewrites))

    def files(self, access: StoreAccess, *locations: str) -> TableFiles:
        """Return the table's files, which lie near `locations` unless the user names roots."""
        roots = Roots.near(*locations) if self.allowed_roots is None else self.allowed_roots
        return TableFiles(rules=self.rules, access=access, roots=roots)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenTable:
    """State of a table at one moment.

    name: Name for messages. beside: Metadata that pyiceberg does not keep. files: Reader of the table's files; holds
    the credentials.
    """

    name: str
    metadata: "TableMetadata"
    beside: Beside
    files: TableFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogCredentials:
    """Renewal of a table's credentials: asks the catalog again, in the process where they have expired.

    own: Names of options that the user gave. The catalog does not replace them.
    """

    place: TablePlace
    own: tuple[str, ...] = ()

    @property
    def reader(self) -> str:
        """Text that names who asks the catalog; see `StoreAccess.scope`."""
        config = self.place.catalog_config
        return "" if config is None else f"catalog {sorted(config.reveal().items())}"

    def __call__(self) -> dict[str, Any]:
        """Return options for the storage client.

        Raises:
            StoreError: the catalog failed, or has the table no more.
        """
        try:
            loaded = _load_table(self.place)
        except LoaderError as error:
            # Readers would take a NoDataError for a missing file.
            raise StoreError(
                f"the credentials of {self.place.table} have expired, and its catalog gives no new ones: {error}"
            ) from error
        options = _catalog_options(loaded, self.place)
        return {name: value for name, value in options.items() if name not in self.own}


def open_table(place: TablePlace) -> OpenTable:
    """Return the table's present metadata.

    Raises:
        MissingDependencyError: pyiceberg, or a client for this catalog, is not installed.
        NoDataError: no such table. ConfigError: the catalog cannot be configured. StoreError: the catalog failed.
        UnsupportedFeatureError: metadata lie outside of the table's roots.
    """
    _require_pyiceberg()
    if place.catalog_config is None:
        return _from_location(place)
    loaded = _load_table(place)
    locations = [place.rules.resolve(loaded.metadata.location)]
    if loaded.metadata_location:
        locations.append(place.rules.resolve(loaded.metadata_location))
    access = _access(_catalog_options(loaded, place), place)
    beside = Beside.of(loaded.metadata)
    return OpenTable(name=place.table, metadata=loaded.metadata, beside=beside, files=place.files(access, *locations))


def _catalog_options(loaded: Any, place: TablePlace) -> dict[str, Any]:
    location = place.rules.resolve(loaded.metadata.location)
    return storage_options(loaded.io.properties, split(location)[0])


def _access(vended: Mapping[str, Any], place: TablePlace) -> StoreAccess:
    """Return the user's access with the catalog's options added. Once they expire, the catalog is asked again."""
    access = replace(place.access, vended=Secret(dict(vended)))
    properties = place.catalog_config.reveal() if place.catalog_config is not None else {}
    # Only plain values of a catalog's configuration can be sent to workers.
    is_plain = all(value is None or isinstance(value, (str, int, float)) for value in properties.values())
    if access.credentials is not None or not vended or not is_plain:
        return access
    renewal = CatalogCredentials(place=replace(place, access=StoreAccess()), own=tuple(access.options.reveal()))
    return replace(access, credentials=renewal, holds_first=True)


def _require_pyiceberg() -> None:
    try:
        import pyiceberg.table  # noqa: F401 - whether it can be imported is the question
        import pyroaring  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"reading Iceberg tables needs pyiceberg ({error}). Run: {INSTALL}") from error


def _load_table(place: TablePlace) -> Any:
    return look_up(place.table, {} if place.catalog_config is None else place.catalog_config.reveal())


def _from_location(place: TablePlace) -> OpenTable:
    from pyiceberg.table.metadata import TableMetadataUtil

    path = place.rules.resolve(place.table)
    files = place.files(place.access, path)
    if not path.endswith(".json") and not path.endswith(".gz"):
        path = _latest_metadata(path, files)
    data = bytes(files.read(path))
    with parsing(path, "table metadata"):
        if data[:2] == GZIP:
            data = gzip.decompress(data)
        metadata = TableMetadataUtil.parse_raw(acceptable(data).decode())
    return OpenTable(name=redact(place.table), metadata=metadata, beside=Beside.of(metadata), files=files)


def _latest_metadata(directory: str, files: TableFiles) -> str:
    """Return the newest metadata file of a table directory, by version-hint.text or by the highest version.

    v3.metadata.json and 00003-<uuid>.metadata.json are both version 3. The file that was written last is newer.

    Raises:
        NoDataError: no metadata file. ConfigError: several files are the newest, and the store does not tell the last.
    """
    root = directory.rstrip("/") + "/metadata"
    try:
        listing = files.store(root).list_files(root).entries
    except NoDataError as error:
        raise _no_table(directory) from error
    by_name = {entry.path.rpartition("/")[2]: entry for entry in listing}
    if "version-hint.text" in by_name:
        hint = bytes(files.read(by_name["version-hint.text"].path)).decode().strip()
        for name in (hint, f"v{hint}.metadata.json", f"{hint}.metadata.json", f"v{hint}.gz.metadata.json"):
            if name in by_name:
                return by_name[name].path
    found = [entry for name, entry in by_name.items() if ".metadata.json" in name]
    if not found:
        raise _no_table(directory)
    newest = max(map(_version, found))
    return _written_last(directory, [entry.path for entry in found if _version(entry) == newest], files)


def _written_last(directory: str, paths: Sequence[str], files: TableFiles) -> str:
    if len(paths) == 1:
        return paths[0]
    # Some listings leave the time out, while looking a file up gives it (obstore).
    times = [files.store(path).stat(path).modified_ns for path in paths]
    known = [time for time in times if time is not None]
    if len(known) < len(times) or times.count(max(known)) > 1:
        names = " and ".join(path.rpartition("/")[2] for path in paths)
        raise ConfigError(
            f"{redact(directory)} has several newest metadata files ({names}), and its store does not say which was "
            "written last. Pass the path of the one that is meant instead of the directory."
        )
    return paths[times.index(max(known))]


def _no_table(directory: str) -> NoDataError:
    return NoDataError(
        f"{redact(directory)} is not an Iceberg table: it has no metadata/*.metadata.json. Check the path; for a table "
        "that a catalog knows by name, pass catalog_config."
    )


def _version(entry: FileEntry) -> int:
    found = _VERSION.match(entry.path.rpartition("/")[2])
    return int(found[1]) if found else -1
