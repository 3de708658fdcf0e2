"""The shell command `tdu`: look at data, plans, speed and states without writing a script.

    tdu scan | plan | verify | bench | head | vocabulary | state | cache | tokens

In: paths, patterns, saved inventories, Iceberg and Delta tables. Out: tables for people, or `--json` for programs;
pictures of plans. Exit codes: 0 success, 1 wrong data (or state), 2 a wrong command. An error is one line that
says what to do.

Each command is one module, imported when it is run; the libraries behind it are imported when it works, so that
`tdu --help` is there at once. Needs the extra `cli` (click and rich).
"""

import io
import sys


def main() -> None:
    """The console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name may hold characters that the encoding of stdout lacks. stderr does this by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from torch_dataloader_utils.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write("tdu needs click and rich. Run: pip install click rich\n")
        sys.exit(2)
    app(prog_name="tdu")
