"""The shell command `tdu`: look at data, plans, speed and states without writing a script.

    tdu scan | doctor | plan | verify | bench | head | shuffle | vocabulary | audit | state | cache | tokens

In: paths, patterns, saved inventories, Iceberg and Delta tables. Out: tables for people, `--json` for programs,
pictures of plans. Exit codes: 0 success, 1 wrong data (or state), 2 wrong command. An error is one line with advice.

Each command is one module, imported when the command runs. Libraries are imported inside of functions, so that
`tdu --help` is fast. Needs the extra `cli` (click and rich).
"""

import io
import sys

import torch_dataloader_utils


def main() -> None:
    """Run the console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name may hold characters that the encoding of stdout lacks. Python does the same for stderr.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from torch_dataloader_utils.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write("tdu needs click and rich. Run: pip install click rich\n")
        sys.exit(2)
    if not hasattr(torch_dataloader_utils, "__version__"):  # installed later, it has replaced our `__init__.py`
        sys.stderr.write(
            "tdu: the older torch-dataloader-utils 0.2 is installed over epochplan. "
            "Run: pip uninstall --yes epochplan torch-dataloader-utils, then install epochplan again.\n"
        )
        sys.exit(2)
    app(prog_name="tdu")
