"""Reports about data files that are left out (on_error="skip"), and the place of a file below a path."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch_dataloader_utils._core.paths import split_chain
from torch_dataloader_utils._core.skipping import BAD_DATA, OnError, log_left_out, report_left_out
from torch_dataloader_utils._store import LocalStore, is_local, redact
from torch_dataloader_utils._store.wildcards import before_wildcard, is_pattern
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


def lies_in(file: str, path: str) -> bool:
    """Return whether a file of an inventory is at the path or below it. A pattern counts up to its first wildcard.

    Links and mounts that lead to the same local directory are that directory. Schemes and chains of URLs do not count:
    they have several spellings (s3, s3a).

    /data/trips/a.parquet       /data/trips, /data/trips/*.parquet, file:///data        True
                                /data/tri, s3://data/other                              False
    """
    place = _place(path)
    if f"{_place(file)}/".startswith(f"{place}/"):
        return True
    return is_local(file) and is_local(path) and _leads_to(place, file)


def _place(path: str) -> str:
    """Return the absolute local path, or a slash and the URL from its bucket or host on, up to the first wildcard.

    The place has no slash at its end, so the root is empty.
    """
    if is_local(path):
        place = os.path.abspath(os.path.expanduser(LocalStore().local_path(path)))  # noqa: PTH100, PTH111 - as listings
        is_expanded = is_pattern(place) and not os.path.lexists(place)
        return (before_wildcard(place) if is_expanded else place).rstrip("/")
    own = next(part for part in split_chain(redact(path)) if "://" in part)
    key = (before_wildcard(own) if is_pattern(own) else own).partition("://")[2]
    return f"/{key.lstrip('/')}".rstrip("/")


def _leads_to(place: str, file: str) -> bool:
    with suppress(OSError):
        return any(each.samefile(place or "/") for each in (Path(file), *Path(file).parents))
    return False
