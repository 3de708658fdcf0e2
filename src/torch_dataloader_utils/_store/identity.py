"""The identity of a file, and the errors for a file that is not the planned one."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import StringColumn
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._store.interface import FileStat
from torch_dataloader_utils.errors import DataError, FileChangedError

# Clients spell them differently; listings and single look-ups of one store agree. After the etags what names a content:
# of hf:// (repositories, then buckets), github:// and git://. The last but two of the times is webhdfs's.
_ETAG_KEYS = ("ETag", "etag", "e_tag", "blob_id", "xet_hash", "sha", "hex")
_TIME_KEYS = (
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "modificationTime",
    "modified",
    "created",
)


def unversioned(size: int) -> str:
    """The identity of a file whose store gives neither etag nor time: any file of its size has it."""
    return f"{size}-"


def names_no_version(identity: str) -> bool:
    """Whether an identity is only a size (see `unversioned`), so that nothing may be cached under it."""
    return identity.endswith("-") and identity[:-1].isdigit()


def any_names_no_version(identities: StringColumn) -> bool:
    """Whether one of them is only a size, so that nothing may be cached under a fingerprint of them."""
    if not identities.data.size:
        return False
    # Only these are looked at one by one: hardly any identity that names a version ends in a dash.
    doubtful = np.flatnonzero(identities.data[identities.offsets[1:] - 1] == ord("-"))
    return any(names_no_version(identities[index]) for index in doubtful.tolist())


def stat_of(info: Mapping[str, Any]) -> FileStat:
    """Size and identity of a file from fsspec's `info` or a detailed listing.

    The etag is stripped of quotes, which some clients keep in listings and drop elsewhere. On Google Cloud Storage
    the generation is the identity: it can be asked for, and changes with the data only. A store that gives neither
    etag nor time is identified by size alone.
    """
    size = int(info.get("size") or 0)
    time = next((info[key] for key in _TIME_KEYS if info.get(key)), "")
    modified_ns = _nanoseconds(time)
    etag = next((str(info[key]) for key in _ETAG_KEYS if info.get(key)), "").strip('"')
    if info.get("generation"):
        identity = str(info["generation"])
    elif etag:
        identity = etag
    else:
        identity = f"{unversioned(size)}{time if modified_ns is None else modified_ns}"
    return FileStat(size=size, identity=identity, modified_ns=modified_ns)


def is_planned(planned: str | None, now: FileStat) -> bool:
    """Whether `now` is the file that was planned, by its identity or its pin (None: nothing was planned)."""
    return planned in (None, now.identity, now.pin)


def check_identity(path: str, planned: str | None, now: FileStat) -> None:
    """Raises FileChangedError unless `now` is the file that was planned; see `is_planned`."""
    if is_planned(planned, now):
        return
    if now.changed_ns is not None and str(planned).startswith(f"{now.identity}@"):
        raise FileChangedError(
            f"{redact(path)} was changed after it was planned, though its size and modification time are the planned "
            f"ones (change time {now.changed_ns}, planned {str(planned).rpartition('@')[2]}): it was overwritten and "
            "its time set back, or only its mode, owner, name or number of links changed. If its rows are still the "
            "same, resume from the last state, which fits; if not, restore the file, or plan the data set again."
        )
    raise FileChangedError(
        f"{redact(path)} is not the file that was planned: identity {now.identity} ({now.size} bytes), planned "
        f"{planned}. It was replaced or appended to; plan the data set again."
    )


def short_read(path: str, what: str) -> DataError:
    """The error for fewer (or more) bytes than a range has; `what` says which and how many."""
    return FileChangedError(
        f"{redact(path)}: {what}. The file is shorter than when it was planned, or the server ignores ranges. Plan the "
        "data set again."
    )


def is_pipe(path: str) -> DataError:
    """The error for a pipe (FIFO) in the place of a file: reading it may wait for ever for a writer."""
    return FileChangedError(
        f"{redact(path)} is a pipe, and no file any more. It was replaced; plan the data set again."
    )


def _nanoseconds(time: Any) -> int | None:
    match time:
        case datetime():
            return _nanoseconds(time.timestamp())
        case float():
            # Microseconds are what a float of today's seconds holds; fsspec lists floats and looks up datetimes.
            return round(time * 1_000_000) * 1_000
        case _:
            return None
