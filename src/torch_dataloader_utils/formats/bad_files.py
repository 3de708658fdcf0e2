"""Reports about data files that are left out (on_error="skip")."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch_dataloader_utils._core.skipping import BAD_DATA, OnError, log_left_out, report_left_out
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import NoDataError

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """File whose metadata does not decode. kind: Class of the error. message: Text of the error."""

    kind: str
    message: str


def unless_bad(scan: Callable[[], R], on_error: OnError) -> R | BadFile:
    """Return the result of `scan`; with "skip", return a BadFile if the file's metadata is damaged."""
    if on_error == "raise":
        return scan()
    try:
        return scan()
    except BAD_DATA as error:
        return BadFile(kind=type(error).__name__, message=str(error))


def report_bad_files(
    bad: Sequence[tuple[str, BadFile]], num_files: int, source: str, rows: int | None = None
) -> tuple[str, ...]:
    """Log the bad files, warn about them, and return the notes for the inventory; () if no file is bad.

    bad: (path, fault) of each bad file. rows: Number of rows in all bad files, None if it is not known.

    Raises:
        NoDataError: none of `num_files` is left.
    """
    if not bad:
        return ()
    for _, file in bad:
        log_left_out(file.message)
    if len(bad) == num_files:
        raise none_left([file for _, file in bad], source)
    places = (f"{redact(path)}: {file.kind}" for path, file in bad)
    why = "their metadata does not decode"
    return report_left_out(places, count=len(bad), total=num_files, units="files", rows=rows, why=why)


def none_left(bad: Sequence[BadFile], source: str) -> NoDataError:
    """Return the error for a data set of bad files alone."""
    return NoDataError(f"{source}: not one of {len(bad)} files can be read. The first: {bad[0].message}")
