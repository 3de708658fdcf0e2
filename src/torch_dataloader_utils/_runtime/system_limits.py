"""Limits of the system: the memory of the host, and limits that a process ran into, as errors that name the cure."""

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch_dataloader_utils.errors import LoaderError, StoreError, causes

# By error number: the limit of the `resource` module, the things it counts, and the shell's option.
_LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "open files of a process", "ulimit -n"),
    errno.EFBIG: ("RLIMIT_FSIZE", "bytes of a file, shared memory included", "ulimit -f"),
}


# Limits of control groups, which containers have: version 2, version 1. Without a limit the files are missing, or have
# "max" or a number above any memory.
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int | None:
    """Return the memory of this host, or of its container if that is less; None if the system does not say."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in _GROUP_LIMITS:
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found, default=None)


@contextmanager
def limits_named(what: str) -> Iterator[None]:
    """Raise StoreError in place of an error that a limit of the system caused. what: First words of the message."""
    handled = sys.exception()
    try:
        yield
    except LoaderError:
        raise
    except (OSError, RuntimeError) as error:
        named = limit_error(error, what, handled=handled)
        if named is None:
            raise
        raise named from error


def limit_error(error: BaseException, what: str, *, handled: BaseException | None = None) -> StoreError | None:
    """Return the error for a limit that caused `error`; None if no limit did.

    what: First words of the message, a failure. handled: See `causes`.
    """
    for cause in causes(error, handled):
        number = _error_number(cause)
        if number in _LIMITS:
            name, unit, option = _LIMITS[number]
            return StoreError(
                f"{what} ({os.strerror(number)}): this process may have {_soft_limit(name)} {unit}. Raise the limit "
                f"({option}), or use fewer workers and smaller batches."
            )
    return None


def _error_number(error: BaseException) -> int | None:
    # multiprocessing's error if a sent descriptor is lost, because this process has no free number for it.
    if isinstance(error, RuntimeError) and "items of ancdata" in str(error):
        return errno.EMFILE
    return error.errno if isinstance(error, OSError) else None


def _soft_limit(name: str) -> str:
    soft = resource.getrlimit(getattr(resource, name))[0]
    return "no more" if soft == resource.RLIM_INFINITY else f"at most {soft:,}"
