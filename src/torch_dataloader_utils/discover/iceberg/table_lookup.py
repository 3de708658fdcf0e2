"""Looks a table up in its catalog, in bounded time, and turns errors of catalogs into errors of ours."""

import queue
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any

from torch_dataloader_utils._store import censor, censored_text, redact
from torch_dataloader_utils.discover.iceberg.faults import unknown_feature, unparsed
from torch_dataloader_utils.discover.iceberg.storage import with_present_names
from torch_dataloader_utils.errors import ConfigError, LoaderError, MissingDependencyError, NoDataError, StoreError

INSTALL = 'pip install "pyiceberg[sql-sqlite]" pyroaring'

# Catalogs that answer do so in seconds; boto3 gives up on a dead Glue after five times 60.
_PATIENCE_SECONDS = 300.0


def look_up(name: str, properties: Mapping[str, Any], patience_seconds: float = _PATIENCE_SECONDS) -> Any:
    """pyiceberg's Table of this name, from the catalog that `properties` make.

    patience_seconds: how long the catalog may take. Clients of catalogs wait without end for a server that has
        accepted a connection and says nothing.

    Raises:
        NoDataError: no such table. ConfigError: no catalog, or no name of a table. StoreError: the catalog failed, or
        did not answer. MissingDependencyError: its client is not installed.
        UnsupportedFeatureError, CorruptFileError: it answered with metadata that pyiceberg does not parse.
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
    except Exception as error:  # noqa: BLE001 - catalogs are plug-ins; it is raised again as one of ours
        censor(error, properties, handled=handled)
        # pydantic's errors quote what the catalog sent, with the credentials of the table.
        raise _lookup_error(redact(name), error) from (None if _is_invalid(error) else error)


class _NoAnswerError(Exception):
    """The catalog took too long."""


def _in_time(ask: Callable[[], Any], seconds: float) -> Any:
    """The result of `ask`, or its error; after `seconds`, raises _NoAnswerError and leaves the daemon thread alone."""
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
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
    """The table; the catalog's connections are closed. Nothing asks a table's own catalog again."""
    catalog = _catalog(properties)
    try:
        return _find(catalog, name)
    finally:
        with suppress(Exception):  # a plug-in may have no close, and what it answered counts
            catalog.close()


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

    text = censored_text(str(error))  # of an error that shows another one, too
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
    # Catalogs are plug-ins and raise whatever their clients do.
    return StoreError(
        f"the catalog could not load {name} ({type(error).__name__}: {text}). Check that it can be reached with this "
        "catalog_config."
    )
