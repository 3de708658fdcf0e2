"""Iceberg tables from the shell: by catalog options, by a catalog's name, by the place of the metadata."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.cli.shell import by_catalog, one_line, tdu, tdu_json
from torch_dataloader_utils import Holdout
from torch_dataloader_utils.cli.source import find_source


def test_every_command_reads_tables(lake):
    where = ["db.events", *by_catalog(lake[0])]
    assert tdu_json("scan", *where)["num_rows"] == 290
    assert tdu_json("scan", *where, "--filter", "v == 3")["num_rows"] == len([n for n in range(10, 300) if n % 7 == 3])
    assert tdu_json("plan", *where, "--ranks", 4, "--batch-size", 10)["steps"] == [8, 8]
    report = tdu_json("verify", *where, "--ranks", 4)
    assert (report["ok"], report["rows_read"]) == (True, 290)
    (batch,) = tdu_json("head", *where, "--batch-size", 5, "--columns", "id")["batches"]
    assert len(batch["rows"]) == 5
    bench = tdu_json("bench", *where, "--workers", 0, "--rounds", 1, "--batch-sizes", 50)
    assert bench["results"]
    assert bench["limit"]["rows_per_second"] > 0


def test_a_metadata_file_or_a_table_directory_will_do(lake):
    metadata = lake[1].removeprefix("file://")
    assert tdu_json("scan", metadata)["num_rows"] == 290
    directory = metadata.rpartition("/metadata/")[0]
    assert tdu_json("scan", directory, "--format", "iceberg")["num_rows"] == 290


def test_a_table_has_the_part_of_the_inventory(lake):
    source = find_source(paths=("db.events",), catalog=lake[0])
    part = replace(source, holdout=Holdout(0.1, "train")).inventory()
    assert source.dataset(part).planner.inventory.fingerprint() == part.fingerprint()


@pytest.mark.full
@pytest.mark.processes
def test_a_catalog_by_its_name_in_the_configuration(lake):
    environment = {
        **os.environ,
        **{f"PYICEBERG_CATALOG__DEFAULT__{key.upper()}": value for key, value in lake[0].items()},
    }
    command = [
        sys.executable,
        "-m",
        "torch_dataloader_utils.cli",
        "scan",
        "db.events",
        "--catalog",
        "default",
        "--json",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["num_rows"] == 290


def test_a_table_that_is_not_there(lake):
    assert "no table db.nothing" in one_line(tdu("scan", "db.nothing", *by_catalog(lake[0]), code=2))
