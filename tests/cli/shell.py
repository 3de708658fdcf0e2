"""Running `tdu` in this process, as click's runner does, and small tables for it to look at."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from torch_dataloader_utils.cli.app import app


def tdu(*arguments, code=0):
    """What a command prints; fails unless it exits with `code` and without a traceback."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, (result.exit_code, result.output)
    return result


def tdu_json(*arguments, code=0):
    """The document of `--json`."""
    return json.loads(tdu(*arguments, "--json", code=code).stdout)


def by_catalog(properties):
    """The arguments that name a catalog by its properties."""
    return [part for key, value in properties.items() for part in ("--catalog-option", f"{key}={value}")]


def one_line(result):
    """The error of a command, which must be one line on stderr and nothing on stdout."""
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("tdu: ")
    return line


def write_parquet(path, rows, group_rows, **options):
    """A file of three columns, with page checksums."""
    random = np.random.default_rng(7)
    table = pa.table(
        {
            "id": np.arange(rows),
            "score": random.random(rows),
            "label": [f"label-{number % 3}" for number in range(rows)],
        }
    )
    pq.write_table(table, path, row_group_size=group_rows, write_page_checksum=True, **options)
