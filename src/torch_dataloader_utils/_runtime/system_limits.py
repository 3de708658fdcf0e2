"""Limits of the system that a process ran into, as errors that name the limit and its cure."""

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch_dataloader_utils.errors import LoaderError, StoreError, causes

# By error number: the limit of the `resource` module, the things it counts, and the shell's option.
_LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "open files of a process", "ulimit -n"),
    errno.EFBIG: ("RLIMIT_FSIZE", "bytes of a file, shared memory included", "ulimit -f"),
}


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
