"""The example plug-in package: installed as users would install it, then used by name in a fresh process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.full

PLUGIN = Path(__file__).parents[2] / "examples" / "split_strategy_plugin"

READ_WHOLE_FILES = """
import json, sys
from torch_dataloader_utils import StructuredDataset

files_of_rank = []
for rank in range(2):
    loader, dataset = StructuredDataset.create_dataloader(
        sys.argv[1], split_strategy="largest-first", rank_sharding="chunks", num_ranks=2, rank=rank, batch_size=7
    )
    rows = [pair for batch in loader for pair in zip(batch["file"].tolist(), batch["row"].tolist(), strict=True)]
    files_of_rank.append(rows)
print(json.dumps(files_of_rank))
"""

ASK_FOR_ANOTHER = """
import sys
from torch_dataloader_utils import LoaderError, StructuredDataset

try:
    StructuredDataset.create_dataloader(sys.argv[1], split_strategy="smallest-first")
except LoaderError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed plug-in, to be put on the path."""
    work = tmp_path_factory.mktemp("plugin")
    # A copy, because building a package writes into its source tree.
    source = shutil.copytree(PLUGIN, work / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    target = work / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, timeout=300)
    return target


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Four files of 50, 30, 29 and 20 rows."""
    for file, rows in enumerate((50, 30, 29, 20)):
        table = pa.table({"file": [file] * rows, "row": list(range(rows))})
        pq.write_table(table, tmp_path / f"{file}.parquet", compression="none", use_dictionary=False)
    return tmp_path


def run(script: str, files: Path, plugin: Path) -> str:
    """The output of a fresh interpreter that has the plug-in on its path."""
    environment = {**os.environ, "PYTHONPATH": str(plugin)}
    command = [sys.executable, "-W", "ignore:Ranks take different", "-c", script, str(files)]
    return subprocess.run(command, check=True, timeout=300, env=environment, stdout=subprocess.PIPE, text=True).stdout


def test_installed_strategy_is_used_by_its_name(plugin: Path, files: Path) -> None:
    ranks = json.loads(run(READ_WHOLE_FILES, files, plugin))
    assert [sorted({file for file, _ in rows}) for rows in ranks] == [[0, 3], [1, 2]]
    rows = sorted(tuple(row) for rank in ranks for row in rank)
    assert rows == [(file, row) for file, count in enumerate((50, 30, 29, 20)) for row in range(count)]


def test_unknown_name_lists_what_is_installed(plugin: Path, files: Path) -> None:
    message = run(ASK_FOR_ANOTHER, files, plugin)
    assert "smallest-first" in message
    assert "'largest-first'" in message
