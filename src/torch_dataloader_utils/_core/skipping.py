"""on_error="skip": which errors mean bad data, and how left-out files and row groups are reported."""

import logging
from collections.abc import Iterable
from itertools import islice
from typing import Literal

from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import ConfigError, CorruptFileError, DataError, RowCountError

OnError = Literal["raise", "skip"]

# Not bad data, because nothing is damaged: a file that changed, does not fit the schema or uses an unsupported
# feature, a lack of memory, and storage that fails.
BAD_DATA: tuple[type[DataError], ...] = (CorruptFileError, RowCountError)
"""Errors for which a row group is left out, or (except RowCountError) a file when its metadata is read."""

_MOST_NAMED = 20

_log = logging.getLogger(__name__)


def check_on_error(name: str, on_error: object) -> OnError:
    """Return the value if it is "raise" or "skip"; otherwise raise ConfigError."""
    if on_error not in ("raise", "skip"):
        raise ConfigError(f'{name}={on_error!r}: pass "raise" or "skip".')
    return on_error


def log_left_out(reason: object) -> None:
    """Log one thing that is left out. reason: Error, or text of an error."""
    _log.warning("left out: %s", reason)


def report_left_out(
    places: Iterable[str], *, count: int, total: int, units: str, rows: int | None, why: str = ""
) -> tuple[str, ...]:
    """Warn that `count` of `total` things are left out, and return the lines of the warning as notes for the inventory.

    places: Place and class of the error of each left-out thing; only the first 20 are shown.
    units: Kind of things, in the plural. rows: Rows of all these things, None if not known or if the things are rows.
    why: One reason for all of them.

        on_error=skip left out 1 of 9 row groups with 100 rows
        data/a.parquet row group 3: CorruptFileError
    """
    counted = "uncounted rows" if rows is None else f"{rows:,} rows"
    first = f"on_error=skip left out {count:,} of {total:,} {units}{'' if units == 'rows' else f' with {counted}'}"
    left = iter(places)
    notes = [f"{first}: {why}" if why else first, *islice(left, _MOST_NAMED)]
    if more := sum(1 for _ in left):
        notes.append(f"and {more:,} more, in the log")
    warn_user("; ".join(notes))
    return tuple(notes)
