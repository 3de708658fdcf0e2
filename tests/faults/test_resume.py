"""What a state must not do: continue on other files, or forget rows that its topology would have dropped."""

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.faults.tables import table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import CheckpointMismatchError


def loader_of(folder: Path, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(str(folder), num_workers=0, shuffle=True, **options)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in range(3):
        pq.write_table(table(file * 35, 35), tmp_path / f"{file}.parquet", row_group_size=10)
    return tmp_path


def test_a_state_does_not_continue_on_a_file_that_was_written_again(folder: Path) -> None:
    loader = loader_of(folder, batch_size=8)
    next(iter(loader))
    state = loader.state_dict()
    loader_of(folder, batch_size=8).load_state_dict(state)
    os.utime(folder / "1.parquet", ns=(1, 1))  # as many rows, of the same columns
    with pytest.raises(CheckpointMismatchError, match="data fingerprint"):
        loader_of(folder, batch_size=8).load_state_dict(state)


def test_rows_that_would_have_been_dropped_come_back_on_another_topology(folder: Path) -> None:
    rows: list[int] = []
    for rank in range(4):
        loader = loader_of(folder, batch_size=10, drop_last=True, num_ranks=4, rank=rank)
        batches = iter(loader)
        rows += next(batches)["row"].tolist()
        state = loader.state_dict()
    assert len(loader) == 2  # of 105 rows these ranks would have left out 25
    alone = loader_of(folder, batch_size=1, drop_last=True)
    alone.load_state_dict(state)
    rows += [row for batch in alone for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(105))
