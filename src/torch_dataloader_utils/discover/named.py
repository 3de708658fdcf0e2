"""Tells whether files of an inventory are among those that a user names by a path; lists none."""

import os
from contextlib import suppress
from pathlib import Path

from torch_dataloader_utils._store import LocalStore, is_local, redact
from torch_dataloader_utils._store.wildcards import before_wildcard, is_pattern


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
    own = next(part for part in redact(path).split("::") if "://" in part)
    key = (before_wildcard(own) if is_pattern(own) else own).partition("://")[2]
    return f"/{key.lstrip('/')}".rstrip("/")


def _leads_to(place: str, file: str) -> bool:
    with suppress(OSError):
        return any(each.samefile(place or "/") for each in (Path(file), *Path(file).parents))
    return False
