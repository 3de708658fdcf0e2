"""Files no one here wrote: an inventory or a DataError for each, in bounded time and memory."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import DataError

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "parquet-testing"
FILES = sorted(p for p in CORPUS.glob("*/*") if "parquet" in p.name) if CORPUS.is_dir() else []


@pytest.mark.skipif(not FILES, reason="the parquet-testing corpus is not beside this checkout")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_foreign_file_gives_an_inventory_or_a_data_error(path):
    refusal = ""
    try:
        inventory = scan_files(path)
    except DataError as error:
        refusal = str(error)
    if refusal:
        assert path.name in refusal
    else:
        metadata = pq.read_metadata(path)
        assert inventory.num_rows == sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
