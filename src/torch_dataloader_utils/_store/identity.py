"""The identity of a file, and the errors for a file that is not the planned file."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import StringColumn
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._store.interface import FileStat
from torch_dataloader_utils.errors import DataError, FileChangedError

# Clients spell these keys differently; listings and single look-ups of one store agree. After the etags come names of
# contents: of hf:// (repositories, then buckets), github:// and git://. `modificationTime` is webhdfs's.
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
    """Return the identity of a file whose store gives neither etag nor time: all files of this size share it."""
    return f"{size}-"


def names_no_version(identity: str) -> bool:
    """Return whether an identity is only a size (see `unversioned`), so that nothing may be cached under it."""
    return identity.endswith("-") and identity[:-1].isdigit()


def any_names_no_version(identities: StringColumn) -> bool:
    """Return whether any identity is only a size, so that nothing may be cached under a fingerprint of them."""
    if not identities.data.size:
        return False
    # Only doubtful identities are checked one by one: hardly any identity with a version ends in a dash.
    doubtful = np.flatnonzero(identities.data[identities.offsets[1:] - 1] == ord("-"))
    return any(names_no_version(identities[index]) for index in doubtful.tolist())


def stat_of(info: Mapping[str, Any]) -> FileStat:
    """Return size and identity of a file from fsspec's `info` or a detailed listing.

    The etag is stripped of quotes, which some clients keep in listings and drop elsewhere. On Google Cloud Storage
    the generation is the identity: requests can name it, and it changes with the data only. A store that gives neither
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
    """Return whether `now` is the planned file, by its identity or its pin (None: nothing was planned)."""
    return planned in (None, now.identity, now.pin)


def check_identity(path: str, planned: str | None, now: FileStat) -> None:
    """Raise FileChangedError unless `now` is the planned file; see `is_planned`."""
    if is_planned(planned, now):
        return
    if now.changed_ns is not None and str(planned).startswith(f"{now.identity}@"):
        raise FileChangedError(
            f"{redact(path)} was changed after it was planned, though its size and modification time are as planned "
            f"(change time {now.changed_ns}, planned {str(planned).rpartition('@')[2]}): it was overwritten and "
            "its time set back, or only its mode, owner, name or number of links changed. If its rows are still the "
            "same, resume from the last state, which fits; if not, restore the file, or plan the data set again."
        )
    raise FileChangedError(
        f"{redact(path)} is not the file that was planned: identity {now.identity} ({now.size} bytes), planned "
        f"{planned}. It was replaced or appended to; plan the data set again."
    )


def short_read(path: str, what: str) -> DataError:
    """Return the error for fewer (or more) bytes than a range has. what: The range and both numbers of bytes."""
    return FileChangedError(
        f"{redact(path)}: {what}. The file is shorter than when it was planned, or the server ignores ranges. Plan the "
        "data set again."
    )


def is_pipe(path: str) -> DataError:
    """Return the error for a pipe (FIFO) in the place of a file: reading it may wait forever for a writer."""
    return FileChangedError(f"{redact(path)} is a pipe now, and was a file. It was replaced; plan the data set again.")


def _nanoseconds(time: Any) -> int | None:
    match time:
        case datetime():
            return _nanoseconds(time.timestamp())
        case float():
            # A float holds today's seconds to the microsecond; fsspec lists floats and looks up datetimes.
            return round(time * 1_000_000) * 1_000
        case _:
            return None
