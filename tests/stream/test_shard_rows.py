"""Row shards of streaming data sets: over all shards every row once, however they nest; nothing else is read."""

import json
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.effort import effort
from tests.stream.tables import TABLE, TOTAL, check_batch, files, write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.wrappers import SupportsRowSharding, streaming_shard


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, TABLE)
    return str(folder)


def open_table(folder, **options):
    return StructuredDataset(str(folder), **{"batch_size": 8, "split_rows": 20, **options})


def rows_of(dataset):
    return [row for batch in dataset for row in check_batch(batch)]


def row_groups_read(dataset):
    """(path, row group) of all row groups in the plan of this data set's rank."""
    plan = dataset.plan.to_arrow([dataset.rank]).to_pydict()
    return set(zip(plan["path"], plan["row_group"], strict=True))


@pytest.mark.slow
@given(
    files=files,
    nesting=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=3),
    shuffle=st.booleans(),
    shuffle_rows=st.one_of(st.none(), st.integers(1, 60)),
    filtered=st.booleans(),
    num_ranks=st.integers(1, 2),
)
@settings(max_examples=effort(60), deadline=None)
def test_every_row_once_over_all_shards(files, nesting, shuffle, shuffle_rows, filtered, num_ranks):
    assume(sum(map(sum, files)) > 0)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        total = write_table(Path(folder), files)
        options = {"shuffle": shuffle, "shuffle_rows": shuffle_rows}
        if filtered:
            options["filters"] = pc.field("row") >= 20
        shards = [open_table(folder, num_ranks=num_ranks, rank=rank, **options) for rank in range(num_ranks)]
        for num_shards, contiguous in nesting:
            shards = [
                streaming_shard(shard, num_shards, index, contiguous=contiguous)
                for shard in shards
                for index in range(num_shards)
            ]
        counts = Counter(row for shard in shards for row in rows_of(shard))
        repeats = 0
        for plan in {shard.plan.fingerprint: shard.plan for shard in shards}.values():
            repeats += plan.repeated_rows
    assert set(counts) == set(range(20 if filtered else 0, total))
    assert sum(counts.values()) - len(counts) == repeats


def test_a_table_data_set_is_one_that_shards_itself(table):
    assert isinstance(open_table(table), SupportsRowSharding)


def test_shards_in_turn_are_ranks_and_take_equal_steps(table):
    shards = [streaming_shard(open_table(table), 3, index) for index in range(3)]
    ranks = [open_table(table, num_ranks=3, rank=rank) for rank in range(3)]
    assert [rows_of(shard) for shard in shards] == [rows_of(rank) for rank in ranks]
    assert len({len(shard) for shard in shards}) == 1


def test_shards_of_a_rank_deal_out_its_chunks(table):
    whole = [open_table(table, num_ranks=2, rank=rank, rank_sharding="chunks") for rank in range(2)]
    parts = [[rows_of(streaming_shard(rank, 2, index)) for index in range(2)] for rank in whole]
    assert [sorted(part[0] + part[1]) for part in parts] == [sorted(rows_of(rank)) for rank in whole]


def test_contiguous_shards_are_spans_of_stored_rows(table):
    shards = [streaming_shard(open_table(table), 4, index, contiguous=True) for index in range(4)]
    assert [rows_of(shard) for shard in shards] == [
        list(range(36)),
        list(range(36, 72)),
        list(range(72, 108)),
        list(range(108, 143)),
    ]
    assert "rows [36, 72) only" in shards[1].plan.explain()
    inner = [streaming_shard(shards[1], 2, index, contiguous=True) for index in range(2)]
    assert [rows_of(shard) for shard in inner] == [list(range(36, 54)), list(range(54, 72))]


def test_shuffling_stays_within_a_contiguous_shard(table):
    shard = streaming_shard(open_table(table, shuffle=True, shuffle_rows=20), 4, 2, contiguous=True)
    orders = []
    for epoch in range(3):
        shard.set_epoch(epoch)
        orders.append(rows_of(shard))
        assert sorted(orders[-1]) == list(range(72, 108))
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("contiguous", [False, True])
def test_row_groups_of_others_are_not_read(table, contiguous):
    read = [row_groups_read(streaming_shard(open_table(table), 3, i, contiguous=contiguous)) for i in range(3)]
    groups = sum(len(groups) for groups in TABLE)
    assert groups <= sum(map(len, read)) <= groups + 2


def test_a_transform_sees_the_rows_of_its_shard_only(table):
    seen = []

    def transform(batch):
        seen.extend(batch["row"].tolist())
        return batch

    rows = rows_of(streaming_shard(open_table(table, transform=transform), 5, 3))
    assert sorted(seen) == sorted(rows)


def test_fewer_rows_than_contiguous_shards(tmp_path):
    write_table(tmp_path, [[2]])
    shards = [streaming_shard(open_table(tmp_path), 5, index, contiguous=True) for index in range(5)]
    assert [rows_of(shard) for shard in shards] == [[0], [1], [], [], []]


@pytest.mark.parametrize("contiguous", [False, True])
def test_a_shard_resumes_and_its_state_fits_no_other_data(table, contiguous):
    def shard(index=1):
        return streaming_shard(open_table(table, shuffle=True), 2, index, contiguous=contiguous)

    whole = [check_batch(batch) for batch in shard()]
    part = shard()
    batches = iter(part)
    assert [check_batch(next(batches)) for _ in range(3)] == whole[:3]
    state = json.loads(json.dumps(part.state_dict()))
    resumed = shard()
    resumed.load_state_dict(state)
    assert [check_batch(batch) for batch in resumed] == whole[3:]
    if contiguous:
        with pytest.raises(CheckpointMismatchError, match="first_row"):
            shard(0).load_state_dict(state)


@pytest.mark.processes
def test_a_shard_begins_at_the_present_epoch_with_workers_of_its_own(table):
    dataset = open_table(table, shuffle=True)
    dataset.set_epoch(4)
    shard = streaming_shard(dataset, 2, 0)
    assert shard.epoch == 4
    alone = sorted(rows_of(shard))
    shard.set_epoch(4)
    batches = DataLoader(shard, batch_size=None, num_workers=2)
    assert sorted(row for batch in batches for row in check_batch(batch)) == alone
    dataset.set_epoch(5)
    assert shard.epoch == 4


class OldStrategy:
    """A split strategy from before ranks."""

    def generate(self, files, num_workers, epoch):
        from torch_dataloader_utils import Split
        from torch_dataloader_utils.splits import Shard

        return [Shard(id=0, splits=[Split(file) for file in files])]


class RankedStrategy(OldStrategy):
    """All files to rank 0's first worker."""

    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        return super().generate(files if rank == 0 else [], num_workers, epoch)


def test_custom_strategies(table):
    ranked = open_table(table, split_strategy=RankedStrategy())
    for contiguous in (False, True):
        shards = [streaming_shard(ranked, 3, index, contiguous=contiguous) for index in range(3)]
        assert sorted(row for shard in shards for row in rows_of(shard)) == list(range(TOTAL))
    old = open_table(table, split_strategy=OldStrategy())
    with pytest.raises(ConfigError, match="OldStrategy has no rank arguments"):
        streaming_shard(old, 3, 0)
    shards = [streaming_shard(old, 3, index, contiguous=True) for index in range(3)]
    assert sorted(row for shard in shards for row in rows_of(shard)) == list(range(TOTAL))


def test_refusals(table):
    with pytest.raises(ConfigError, match=r"[Ss]hard"):
        streaming_shard(open_table(table), 3, 3)
    for contiguous in (False, True):
        with pytest.raises(ConfigError, match="does not exist"):
            open_table(table).shard_rows(3, -1, contiguous)
    with pytest.raises(ConfigError, match="makes its own batches"):
        streaming_shard(open_table(table), 2, 0, batch_size=4)
    unknown = open_table(table, filters=pc.field("row") > 100, count_rows=False)
    with pytest.raises(ConfigError, match="row counts"):
        streaming_shard(unknown, 2, 0, contiguous=True)
    shards = [streaming_shard(unknown, 2, index) for index in range(2)]
    assert sorted(row for shard in shards for row in rows_of(shard)) == list(range(101, TOTAL))
