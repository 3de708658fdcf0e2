"""Reports the data files that are left out (on_error="skip"), and names files in messages."""

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
    """A file whose metadata does not decode. kind: the class of the error. message: its text."""

    kind: str
    message: str


def unless_bad(scan: Callable[[], R], on_error: OnError) -> R | BadFile:
    """The result of `scan`; with "skip", a BadFile if the file's metadata is damaged."""
    if on_error == "raise":
        return scan()
    try:
        return scan()
    except BAD_DATA as error:
        return BadFile(kind=type(error).__name__, message=str(error))


def report_bad_files(
    bad: Sequence[tuple[str, BadFile]], num_files: int, source: str, rows: int | None = None
) -> tuple[str, ...]:
    """The notes of an inventory that leaves these files out; also logged and warned of. () if there are none.

    bad: (path, fault) of each. rows: how many they hold together, None if that is not known.

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
    """The error for a data set of bad files alone."""
    return NoDataError(f"{source}: not one of {len(bad)} files can be read. The first: {bad[0].message}")


def lies_in(file: str, path: str) -> bool:
    """Whether a file of an inventory is what the path names, or lies below it; of a pattern, below where it begins.

    Links and mounts that lead to the same local directory are that directory. Of URLs, schemes and chains do not count:
    they have several spellings (s3, s3a).

    /data/trips/a.parquet       /data/trips, /data/trips/*.parquet, file:///data        True
                                /data/tri, s3://data/other                              False
    """
    place = _place(path)
    if f"{_place(file)}/".startswith(f"{place}/"):
        return True
    return is_local(file) and is_local(path) and _leads_to(place, file)


def _place(path: str) -> str:
    """The absolute local path, or a slash and the URL from its bucket or host on; of a pattern, before its wildcards.

    Without a slash at the end, so that the root is empty.
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
