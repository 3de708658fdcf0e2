"""Limits of the system that a process ran into, as errors that name the limit and its cure."""

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch_dataloader_utils.errors import LoaderError, StoreError, causes

# By number of the error: the limit of the `resource` module, what it counts, and the shell's option.
_LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "open files of a process", "ulimit -n"),
    errno.EFBIG: ("RLIMIT_FSIZE", "bytes of a file, shared memory included", "ulimit -f"),
}


@contextmanager
def limits_named(what: str) -> Iterator[None]:
    """Raises StoreError, which begins with `what` failed, in place of an error that a limit of the system caused."""
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
    """The error for a limit that caused `error`; None if none did. what: failed, as the start of a sentence.

    handled: see `causes`.
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
    # What multiprocessing says if a descriptor that was sent is lost, because this process has no number left for it.
    if isinstance(error, RuntimeError) and "items of ancdata" in str(error):
        return errno.EMFILE
    return error.errno if isinstance(error, OSError) else None


def _soft_limit(name: str) -> str:
    soft = resource.getrlimit(getattr(resource, name))[0]
    return "no more" if soft == resource.RLIM_INFINITY else f"at most {soft:,}"
