"""The errors and signals that end a command, each turned into one line and an exit code."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from torch_dataloader_utils._core.paths import printable

DATA_PROBLEM = 1
USAGE = 2
# Shells add the number of the signal that ended a command to this.
_SIGNALLED = 128
_SIGPIPE = 13  # not in `signal` on every system

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# A path that is wrong or not allowed: the command line must be changed.
_WRONG_PLACE = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EPERM,
        errno.EROFS,
    }
)


class Failure(click.ClickException):
    """An error for people: one line without the secrets of URLs that the command was given, and the exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        text = " ".join(message.split())
        # Without a URL (which pathlib writes with one slash) "?year=2024" is a pattern, and "a:b@c" a column.
        if ":/" in text:
            from torch_dataloader_utils._store.censor import censored_text

            text = censored_text(text)
        super().__init__(printable(text))
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: Any = None) -> None:
        """Writes the line to stderr."""
        click.echo(f"tdu: {self.message}", err=True, file=file)


class Unread(Failure):
    """Nobody reads the output any more, as in `tdu scan data/ | head -3`: no message, and not an error of the data."""

    def __init__(self) -> None:
        super().__init__("The reader of the output has left.", _SIGNALLED + _SIGPIPE)

    def show(self, file: Any = None) -> None:  # noqa: ARG002
        """Sends the rest of the output to the null device: Python flushes it at exit, and would print an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def disk_is_full(error: OSError) -> bool:
    """Whether the error says that the disk, or the quota, is full."""
    return error.errno in _FULL


def of_os_error(error: OSError, advice: str = "") -> Failure:
    """The failure for an error of the operating system: exit code 2 if the path is wrong, 1 if the storage is."""
    if disk_is_full(error):
        return Failure(f"{error}. Free some space, or write elsewhere. {advice}", DATA_PROBLEM)
    if error.errno in _WRONG_PLACE or error.errno is None:
        return Failure(f"{error}. Check the path and its permissions.", USAGE)
    return Failure(f"{error}. The storage failed: look after it, and run the command again. {advice}", DATA_PROBLEM)


def of_interrupt(interrupt: KeyboardInterrupt, advice: str = "") -> Failure:
    """The failure for Ctrl-C or SIGTERM: exit code 130 or 143."""
    if isinstance(interrupt, Terminated):
        return Failure(f"Terminated. {advice}", _SIGNALLED + signal.SIGTERM)
    return Failure(f"Interrupted. {advice}", _SIGNALLED + signal.SIGINT)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises Terminated, unless whoever started the command handles or ignores it."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_terminated(*_: Any) -> NoReturn:
    raise Terminated
