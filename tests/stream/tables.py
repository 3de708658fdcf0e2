"""Small tables on disk whose rows know who they are: `row` numbers them all, `payload` is a function of it."""

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from torch_dataloader_utils import Decoding, StructuredDataset

# Row groups of three files, and their rows.
TABLE = [[13, 40, 7], [22], [1, 30, 30]]
TOTAL = 143

files = st.lists(st.lists(st.integers(0, 40), max_size=4), max_size=6)


def payload(rows):
    """A value that only the right row has."""
    return np.asarray(rows, dtype=np.int64) * 7919 % 1000003


def write_table(folder, files, first_row=0):
    """Parquet files with these row groups; returns how many rows there are."""
    row = first_row
    for index, groups in enumerate(files):
        schema = pa.schema([("row", pa.int64()), ("file", pa.int32()), ("payload", pa.int64()), ("name", pa.string())])
        with pq.ParquetWriter(folder / f"part-{index:02}.parquet", schema) as writer:
            for rows in groups:
                numbers = np.arange(row, row + rows)
                columns = {
                    "row": numbers,
                    "file": np.full(rows, index, dtype=np.int32),
                    "payload": payload(numbers),
                    "name": [f"row-{number}" for number in numbers],
                }
                writer.write_table(pa.table(columns, schema=schema), row_group_size=max(rows, 1))
                row += rows
    return row - first_row


def check_same_passes(loader, other):
    """Both loaders give the same batches, each with the same state, and the first one counts their rows."""
    seen = 0
    for batch, alone in zip(loader, other, strict=True):
        assert check_batch(batch) == check_batch(alone)
        assert json.dumps(loader.state_dict()) == json.dumps(other.state_dict())
        seen += batch.num_rows
        assert loader.metrics().rows == seen


def check_batch(batch):
    """The row numbers of a batch, after checking that every column belongs to them."""
    rows = batch["row"].tolist()
    assert batch["payload"].tolist() == payload(rows).tolist()
    assert list(batch["name"]) == [f"row-{row}" for row in rows]
    assert batch.num_rows == len(rows)
    return rows


def dataset_of_rank(source, topology, rank, state=None, **options):
    """The data set of one rank, where a state stood if there is one, which has been JSON meanwhile."""
    dataset = StructuredDataset(
        source,
        num_ranks=topology.num_ranks,
        rank=rank,
        batch_size=topology.batch_size,
        num_workers=topology.num_workers,
        decoding=Decoding(threads=1),
        **options,
    )
    if state is not None:
        dataset.load_state_dict(json.loads(json.dumps(state)))
    return dataset


def wait_until(is_so):
    """Wait for another thread, for a minute at most."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "waited a minute"
        time.sleep(0.01)
