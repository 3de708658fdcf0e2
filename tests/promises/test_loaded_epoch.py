"""A loop that begins at epoch 0 again after a state was loaded: every loader warns, at the caller's line."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.megatron.schedules.sequences import Sequences
from tests.wrappers.streams import PlainStream
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.blending import blend
from torch_dataloader_utils.megatron.schedules import DpBalancedScheduler, PlannedPackedLoader
from torch_dataloader_utils.wrappers import streaming_shard


def table(folder):
    pq.write_table(pa.table({"row": range(20)}), folder / "0.parquet")
    return StructuredDataset.create_dataloader(folder, batch_size=4, num_workers=0)[0]


MAKERS = {
    "table": table,
    "blend": lambda folder: blend([table(folder)], [1]),
    "stream": lambda folder: streaming_shard(PlainStream(20), 1, 0),
    "packs": lambda folder: PlannedPackedLoader(
        Sequences([3] * 8), [3] * 8, DpBalancedScheduler(8), global_batch_size=2
    ),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_to_go_back_from_the_epoch_of_a_loaded_state_warns(make, tmp_path):
    loader = make(tmp_path)
    loader.set_epoch(2)
    items = iter(loader)
    next(items)
    state = loader.state_dict()
    del items
    for epoch in (2, 3):
        loader.load_state_dict(state)
        loader.set_epoch(epoch)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"is in epoch 2, and set_epoch\(0\) leaves it .*range\(2, epochs") as warned:
        loader.set_epoch(0)
    assert [warning.filename for warning in warned] == [__file__]
    loader.set_epoch(0)
    assert len(list(loader)) == len(list(make(tmp_path)))
