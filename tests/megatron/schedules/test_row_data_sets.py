"""Packs planned from our own data sets: every length is known before a sequence is read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from torch_dataloader_utils import RowDataset
from torch_dataloader_utils.megatron.schedules import ComputeBalancedScheduler, PlannedPackedLoader

LENGTHS = [3, 4, 5, 2, 6, 1, 7, 4]


def test_a_row_data_set_of_list_columns_is_packed_without_reading_it_twice(tmp_path):
    tokens = [[10 * row + position for position in range(length)] for row, length in enumerate(LENGTHS)]
    table = pa.table(
        {
            "tokens": pa.array(tokens, pa.list_(pa.int64())),
            "labels": pa.array(tokens, pa.list_(pa.int64())),
            "loss_mask": pa.array([[1.0] * length for length in LENGTHS], pa.list_(pa.float32())),
            "position_ids": pa.array([list(range(length)) for length in LENGTHS], pa.list_(pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "documents.parquet", row_group_size=3)
    rows = RowDataset(str(tmp_path), length_column="tokens")
    assert rows.lengths.tolist() == LENGTHS
    loader = PlannedPackedLoader(rows, rows.lengths, ComputeBalancedScheduler(8), global_batch_size=len(LENGTHS))
    (batch,) = loader
    packed = torch.cat([micro["tokens"].flatten() for micro in batch.data_iterator])
    assert sorted(packed[packed > 0].tolist()) == sorted(np.concatenate(tokens)[1:].tolist())
