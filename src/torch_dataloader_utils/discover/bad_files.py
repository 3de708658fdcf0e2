"""on_error="skip" for whole files: those whose metadata does not decode are left out, counted and named."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch_dataloader_utils._core.user_warning import warn_user
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import ConfigError, CorruptFileError, DataError, NoDataError, UnsupportedFeatureError

_log = logging.getLogger(__name__)

OnError = Literal["raise", "skip"]

R = TypeVar("R")

# A file that changed or has another schema is not bad data, and storage that fails says nothing of the data.
_SKIPPED: tuple[type[DataError], ...] = (CorruptFileError, UnsupportedFeatureError)
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A file that cannot be planned. kind: class of the error; message: all it says."""

    kind: str
    message: str


def unless_bad(scan: Callable[[], R], on_error: OnError) -> R | BadFile:
    """What `scan` gives or, with "skip", a BadFile where the file's metadata is damaged or not supported."""
    if on_error == "raise":
        return scan()
    try:
        return scan()
    except _SKIPPED as error:
        return BadFile(kind=type(error).__name__, message=str(error))


def report_bad_files(
    bad: Sequence[tuple[str, BadFile]], num_files: int, source: str, rows: int | None = None
) -> tuple[str, ...]:
    """The notes of an inventory that leaves these files out; also logged and warned of. () if there are none.

    bad: (path, what is wrong). rows: how many they hold together, if a manifest says so.

    Raises:
        NoDataError: none of `num_files` is left.
    """
    if not bad:
        return ()
    for _, file in bad:
        _log.warning("left out: %s", file.message)
    if len(bad) == num_files:
        raise none_left([file for _, file in bad], source)
    counted = "uncounted rows" if rows is None else f"{rows:,} rows"
    lines = [
        f"on_error=skip left out {len(bad):,} of {num_files:,} files with {counted}: their metadata does not decode"
    ]
    lines += [f"{redact(path)}: {file.kind}" for path, file in bad[:_MOST_NAMED]]
    if len(bad) > _MOST_NAMED:
        lines.append(f"and {len(bad) - _MOST_NAMED:,} more, in the log")
    warn_user("; ".join(lines))
    return tuple(lines)


def none_left(bad: Sequence[BadFile], source: str) -> NoDataError:
    """The error for a data set of bad files alone."""
    return NoDataError(f"{source}: not one of {len(bad)} files can be read. The first: {bad[0].message}")


def check_on_error(on_error: str) -> None:
    """Raises ConfigError unless this is one of the two words."""
    if on_error not in ("raise", "skip"):
        raise ConfigError(f'on_error={on_error!r}: pass "raise" or "skip".')
