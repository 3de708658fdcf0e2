"""Command group of `tdu`: finds commands by name, and turns errors into one line and an exit code."""

import errno
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import click

from torch_dataloader_utils._core.paths import printable
from torch_dataloader_utils.cli.output import paint
from torch_dataloader_utils.cli.shell_names import in_shell_names
from torch_dataloader_utils.errors import ConfigError, LoaderError

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
    """Error for people: one line, without secrets of URLs in the command, and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        text = " ".join(message.split())
        # Without a URL (which pathlib writes with one slash) "?year=2024" is a pattern, and "a:b@c" a column.
        if ":/" in text:
            from torch_dataloader_utils._store.censor import censored_text

            text = censored_text(text)
        super().__init__(printable(text))
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: Any = None) -> None:
        """Write the line to stderr."""
        click.echo(f"{paint('tdu:', 'red')} {self.message}", err=True, file=file)


class Unread(Failure):
    """End of the output's reader, as in `tdu scan data/ | head -3`: no message, no error of the data."""

    def __init__(self) -> None:
        super().__init__("The reader of the output has left.", _SIGNALLED + _SIGPIPE)

    def show(self, file: Any = None) -> None:  # noqa: ARG002
        """Send the rest of the output to the null device: Python flushes at exit, and would print an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class Terminated(KeyboardInterrupt):
    """SIGTERM; ends a command like Ctrl-C."""


def disk_is_full(error: OSError) -> bool:
    """Return whether the disk or the quota is full."""
    return error.errno in _FULL


def of_os_error(error: OSError, advice: str = "") -> Failure:
    """Return the failure for an error of the operating system: exit code 2 for a wrong path, 1 for the storage."""
    if disk_is_full(error):
        return Failure(f"{error}. Free some space, or write elsewhere. {advice}", DATA_PROBLEM)
    if error.errno in _WRONG_PLACE or error.errno is None:
        return Failure(f"{error}. Check the path and its permissions.", USAGE)
    return Failure(f"{error}. The storage failed. Check it, and run the command again. {advice}", DATA_PROBLEM)


def of_interrupt(interrupt: KeyboardInterrupt, advice: str = "") -> Failure:
    """Return the failure for Ctrl-C or SIGTERM: exit code 130 or 143."""
    if isinstance(interrupt, Terminated):
        return Failure(f"Terminated. {advice}", _SIGNALLED + signal.SIGTERM)
    return Failure(f"Interrupted. {advice}", _SIGNALLED + signal.SIGINT)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise Terminated, unless the caller of the command handles or ignores the signal."""
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


COMMANDS = {
    "scan": "Show the data: files, row groups, schema, sizes, warnings.",
    "doctor": "Show what to know of a table before training, and the call that reads it.",
    "plan": "Show what each rank and worker reads, the steps and the imbalance.",
    "verify": "Read everything once; check counts, checksums and the plan.",
    "bench": "Measure throughput on your data, and recommend settings.",
    "head": "Show the first batches as a table.",
    "shuffle": "Write the rows in random order, as Parquet files that load fast.",
    "vocabulary": "Count the values of a column, and save them as a vocabulary.",
    "audit": "Compare the rows that a job gave with its data, from the records of audit=.",
    "state": "Show a saved state: the epoch, the rows done and the rows left.",
    "cache": "Show, check or remove a cache on this host's disk.",
    "tokens": "Build, merge and count token corpora in the .bin/.idx format.",
}

EXAMPLES = """\b
Examples:
  tdu scan s3://bucket/trips --option anon=true --save trips.inventory.parquet
  tdu doctor data/
  tdu plan data/ --ranks 8 --workers 4 --batch-size 1024 --shuffle --draw plan.html
  tdu verify data/ --ranks 8 --workers 4
  tdu bench data/ --columns x,y,label
  tdu head data/ --filter "x > 3 and label == 'a'"
  tdu shuffle data/ shuffled/ --workers 8
  tdu vocabulary data/ --columns city --save city.parquet
  tdu state checkpoint.json data/
  tdu scan db.events --catalog prod
"""


class CommandGroup(click.Group):
    """Commands by name, imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """See click."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """See click."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"torch_dataloader_utils.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors of the library become a Failure, its warnings a line on stderr."""

        def in_shell(text: str) -> str:
            return in_shell_names(text, self.get_command(ctx, ctx.invoked_subcommand or ""))

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            text = in_shell(" ".join(str(message).split()))
            click.echo(f"{paint('warning:', 'yellow')} {printable(text)}", err=True)

        with warnings.catch_warnings(), _shown_log(show), sigterm_as_interrupt():
            warnings.showwarning = show
            try:
                return super().invoke(ctx)
            except click.exceptions.NoArgsIsHelpError:
                raise
            except click.UsageError as error:
                path = error.ctx.command_path if error.ctx is not None else "tdu"
                raise Failure(f"{error.format_message()} See {path} --help", USAGE) from error
            except LoaderError as error:
                exit_code = USAGE if isinstance(error, ConfigError) else DATA_PROBLEM
                text = " ".join([str(error), *getattr(error, "__notes__", ())])
                raise Failure(in_shell(text), exit_code) from error
            except BrokenPipeError as error:
                raise Unread from error
            except OSError as error:
                raise of_os_error(error) from error
            except KeyboardInterrupt as interrupt:
                raise of_interrupt(interrupt) from interrupt


@contextmanager
def _shown_log(show: Callable[[str], None]) -> Iterator[None]:
    """Show warnings in the library's log, such as repeated requests, as lines on stderr."""
    log = logging.getLogger("torch_dataloader_utils")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


_VERSION_HELP = "Show the version, the compiled decoder and the installed store clients."
_STORE_CLIENTS = ("s3fs", "gcsfs", "adlfs", "obstore", "huggingface_hub")
_CODECS = {"zstd": 6, "lz4": 7}  # numbers of parquet.thrift; the libraries are looked up on the machine


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if not value:
        return
    from importlib.metadata import PackageNotFoundError, version

    from torch_dataloader_utils import __version__, _engine

    def find(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    codecs = [name for name, number in _CODECS.items() if _engine.IS_BUILT and _engine.has_codec(number)]
    decoder = (
        f"with {', '.join(['snappy', *codecs])}"
        if _engine.IS_BUILT
        else "not built: no C compiler, or a free-threaded Python"
    )
    clients = [f"{name} {found}" for name in _STORE_CLIENTS if (found := find(name))]
    click.echo(f"tdu, version {__version__}")
    click.echo(f"compiled decoder  {decoder}")
    click.echo(f"store clients     {', '.join(clients) or 'none: only local files and web servers'}")
    ctx.exit()


@click.group("tdu", cls=CommandGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help=_VERSION_HELP)
def app() -> None:
    """Look at data sets, plans and loaders from the shell.

    Every command takes --json. Exit codes: 0 success, 1 wrong data or a storage that failed, 2 a wrong command,
    130 Ctrl-C, 141 the reader of the output has ended, 143 SIGTERM.
    """
