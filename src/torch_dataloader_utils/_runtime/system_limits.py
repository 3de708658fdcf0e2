"""Limits of the system that a process ran into, as errors that name the limit and its cure."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from torch_dataloader_utils.errors import LoaderError, StoreError

# By number of the error: the limit of the `resource` module, what it counts, and the shell's option.
_LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "open files of a process", "ulimit -n"),
    errno.EFBIG: ("RLIMIT_FSIZE", "bytes of a file, shared memory included", "ulimit -f"),
}


@contextmanager
def limits_named(what: str) -> Iterator[None]:
    """Raises StoreError, which begins with `what` failed, in place of an error that a limit of the system caused."""
    try:
        yield
    except LoaderError:
        raise
    except (OSError, RuntimeError) as error:
        named = limit_error(error, what)
        if named is None:
            raise
        raise named from error


def limit_error(error: BaseException, what: str) -> StoreError | None:
    """The error for a limit that caused `error`; None if none did. what: failed, as the start of a sentence."""
    current: BaseException | None = error
    seen = set[int]()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, OSError) and current.errno in _LIMITS:
            name, unit, option = _LIMITS[current.errno]
            return StoreError(
                f"{what} ({current.strerror}): this process may have {_soft_limit(name)} {unit}. Raise the limit "
                f"({option}), or use fewer workers and smaller batches."
            )
        current = current.__cause__ or current.__context__
    return None


def _soft_limit(name: str) -> str:
    soft = resource.getrlimit(getattr(resource, name))[0]
    return "no more" if soft == resource.RLIM_INFINITY else f"at most {soft:,}"
