"""The command group: finds commands by name, and turns errors into one line and an exit code."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from torch_dataloader_utils._core.paths import printable
from torch_dataloader_utils.cli.failures import (
    DATA_PROBLEM,
    USAGE,
    Failure,
    Unread,
    of_interrupt,
    of_os_error,
    sigterm_as_interrupt,
)
from torch_dataloader_utils.errors import ConfigError, LoaderError

COMMANDS = {
    "scan": "What is there: files, row groups, schema, sizes, warnings.",
    "plan": "Who reads what: ranks, workers, rows, steps, cuts, imbalance.",
    "verify": "Read everything once; check counts, checksums and the plan.",
    "bench": "Measure throughput on your data, and what to choose.",
    "head": "The first batches as a table.",
    "state": "A saved state in words: epoch, what is done, what remains.",
    "tokens": "Token corpora in the .bin/.idx format.",
}

EXAMPLES = """\b
Examples:
  tdu scan s3://bucket/trips --option anon=true --save trips.inventory.parquet
  tdu plan data/ --ranks 8 --workers 4 --batch-size 1024 --shuffle --html plan.html
  tdu verify data/ --ranks 8 --workers 4
  tdu bench data/ --columns x,y,label
  tdu head data/ --filter "x > 3 and label == 'a'"
  tdu state checkpoint.json data/
  tdu scan db.events --catalog prod
"""


class CommandGroup(click.Group):
    """Commands by name, each imported when it is asked for."""

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
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what the library raises becomes a Failure, what it warns of a line on stderr."""
        with warnings.catch_warnings(), _shown_log(), sigterm_as_interrupt():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except click.exceptions.NoArgsIsHelpError:
                raise
            except click.UsageError as error:
                path = error.ctx.command_path if error.ctx is not None else "tdu"
                raise Failure(f"{error.format_message()} See {path} --help", USAGE) from error
            except LoaderError as error:
                exit_code = USAGE if isinstance(error, ConfigError) else DATA_PROBLEM
                raise Failure(str(error), exit_code) from error
            except BrokenPipeError as error:
                raise Unread from error
            except OSError as error:
                raise of_os_error(error) from error
            except KeyboardInterrupt as interrupt:
                raise of_interrupt(interrupt) from interrupt


@contextmanager
def _shown_log() -> Iterator[None]:
    """What the library logs as a warning (requests that are sent again) as lines on stderr."""
    log = logging.getLogger("torch_dataloader_utils")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: _show_warning(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"warning: {printable(' '.join(str(message).split()))}", err=True)


@click.group("tdu", cls=CommandGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="torch-dataloader-utils", prog_name="tdu")
def app() -> None:
    """Look at data sets, plans and loaders from the shell.

    Every command takes --json. Exit codes: 0 well, 1 the data is wrong or the storage failed, 2 the command is
    wrong, 130 Ctrl-C, 141 nobody reads the output any more, 143 SIGTERM.
    """
