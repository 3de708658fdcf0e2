"""Resume in constant time, on lanes, with filters, with ranks that drifted apart, and from a distributed checkpoint."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch.distributed.checkpoint as dcp

from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import Lanes, StructuredDataset, merge_states
from torch_dataloader_utils._core.block import RowGroupReader
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.packed_numbers import packed
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows
from torch_dataloader_utils._core.sealed_state import sealed
from torch_dataloader_utils._core.state import encode_state
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError

TABLE = [[40, 33, 40], [22, 50], [1, 30, 60, 24]]
TOTAL = 300


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    assert write_table(folder, TABLE) == TOTAL
    return str(folder)


def load(table, **options):
    return StructuredDataset.create_dataloader(
        table, **{"batch_size": 8, "num_workers": 0, "shuffle": True, "split_rows": 20, **options}
    )


@dataclass
class CountingReader:
    """A reader that remembers which rows of which row groups it read."""

    reader: RowGroupReader
    read_groups: list = field(default_factory=list)

    def read_columns(self, task, rows=ALL_ROWS):
        self.read_groups.append((task.path, task.ordinal, rows))
        return self.reader.read_columns(task, rows)


def counted(dataset):
    reader = CountingReader(dataset.pipeline.reader)
    decode = replace(dataset.stages.decode, threads=1, budget_bytes=0)
    dataset.stages = replace(dataset.stages, pipeline=replace(dataset.pipeline, reader=reader), decode=decode)
    return reader.read_groups


@pytest.mark.parametrize(("shuffle_rows", "most"), [(None, 1), (32, 4)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_resume_reads_only_what_the_next_batch_needs(table, shuffle_rows, most, ranks):
    """With nothing decoded ahead, the first batch of a resume at 90 % opens one row group; a window, its chunks."""
    options = (
        {"shuffle": True, "shuffle_rows": shuffle_rows, "interleave": 4} if shuffle_rows else {"shuffle": "chunks"}
    )
    loader, _ = load(table, **options)
    batches = iter(loader)
    for _ in range(len(loader) * 9 // 10):
        next(batches)
    state = loader.state_dict()
    _, dataset = resumed = load(table, **options, num_ranks=ranks, rank=0, batch_size=3 if ranks > 1 else 8)
    groups = counted(dataset)
    resumed[0].load_state_dict(state)
    batches = iter(resumed[0])
    next(batches)
    batches.close()
    assert 1 <= len(groups) <= most + 1
    assert len(set(groups)) == len(groups)


def test_a_resume_or_a_cut_within_a_row_group_reads_the_rows_that_are_left(tmp_path):
    pq.write_table(pa.table({"row": range(100), "half": range(100)}), tmp_path / "a.parquet")
    options = {"shuffle": False, "split_rows": None, "num_ranks": 2, "rank": 0}
    loader, _ = load(tmp_path, **options)
    batches = iter(loader)
    first = [next(batches)["row"].tolist() for _ in range(3)]
    resumed, dataset = load(tmp_path, **options)
    groups = counted(dataset)
    resumed.load_state_dict(loader.state_dict())
    rest = [batch["row"].tolist() for batch in resumed]
    assert [row for batch in first + rest for row in batch] == list(range(50, 100))
    assert [rows for *_, rows in groups] == [GroupRows(74, 100)]


LANE_SHAPES = [(ranks, workers, batch) for ranks in (1, 2, 3, 4, 6) for workers in (0, 2) for batch in (2, 4)]


def global_batches(table, num_lanes, ranks, workers, batch, state=None, steps=None):
    """Per step, the rows of all ranks; and the state after `steps` steps."""
    by_rank, states = [], []
    for rank in range(ranks):
        loader, _ = load(
            table, num_ranks=ranks, rank=rank, num_workers=workers, batch_size=batch, lanes=Lanes(num_lanes, rows=2)
        )
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        by_rank.append(
            [check_batch(next(batches)) for _ in range(len(loader) if steps is None else steps)]
            if steps
            else [check_batch(item) for item in batches]
        )
        states.append(loader.state_dict())
    assert all(other == states[0] for other in states)
    return [sorted(row for rank in by_rank for row in rank[step]) for step in range(len(by_rank[0]))], states[0]


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("num_lanes", [24, 48])
def test_global_batches_are_the_same_rows_on_every_topology(table, num_lanes):
    expected, _ = global_batches(table, num_lanes, 1, 0, 24)
    assert sorted(row for step in expected for row in step) == list(range(TOTAL))
    for ranks, workers, batch in LANE_SHAPES:
        if 24 % (ranks * batch) or num_lanes % (max(1, workers) * ranks * batch // 2) or (workers and ranks > 2):
            continue
        steps, _ = global_batches(table, num_lanes, ranks, workers, batch)
        per_step = ranks * batch
        for step, rows in enumerate(expected[: TOTAL // 24]):
            narrow = steps[step * 24 // per_step : (step + 1) * 24 // per_step]
            assert sorted(row for part in narrow for row in part) == rows


@pytest.mark.processes
def test_lanes_keep_their_sequence_over_a_change_of_topology(table):
    expected, _ = global_batches(table, 24, 1, 0, 24)
    first, state = global_batches(table, 24, 2, 2, 12, steps=3)
    second, state = global_batches(table, 24, 3, 0, 8, state=state, steps=4)
    rest, _ = global_batches(table, 24, 1, 0, 24, state=state)
    assert first + second + rest == expected


@pytest.mark.parametrize("shuffle_rows", [None, 40])
def test_unknown_counts_resume_on_another_topology_from_merged_states(table, shuffle_rows):
    options = {"filters": pc.field("payload") > 400_000, "count_rows": False, "shuffle_rows": shuffle_rows}
    expected = [row for batch in load(table, **options)[0] for row in check_batch(batch)]
    received, states = [], []
    for rank, steps in enumerate((2, 1, 3)):
        loader, _ = load(table, **options, num_ranks=3, rank=rank)
        batches = iter(loader)
        received += [row for _ in range(steps) for row in check_batch(next(batches))]
        states.append(json.loads(json.dumps(loader.state_dict())))
    merged = merge_states(states)
    for rank in range(2):
        loader, _ = load(table, **options, num_ranks=2, rank=rank, batch_size=5)
        loader.load_state_dict(merged)
        received += [row for batch in loader for row in check_batch(batch)]
    assert sorted(received) == sorted(expected)
    lonely, _ = load(table, **options, num_ranks=2, rank=0)
    with pytest.raises(CheckpointMismatchError, match="merge_states"):
        lonely.load_state_dict(states[0])


def test_ranks_that_drifted_apart_resume_from_merged_states(table):
    received, states = [], []
    for rank, steps in enumerate((2, 4, 3)):
        loader, _ = load(table, num_ranks=3, rank=rank)
        batches = iter(loader)
        received += [row for _ in range(steps) for row in check_batch(next(batches))]
        states.append(loader.state_dict())
    merged = merge_states(states)
    lengths = set()
    for rank in range(3):
        loader, _ = load(table, num_ranks=3, rank=rank)
        loader.load_state_dict(merged)
        rest = [row for batch in loader for row in check_batch(batch)]
        lengths.add(len(rest) // 8)
        received += rest
    assert Counter(received) == Counter(range(TOTAL))
    assert len(lengths) == 1
    with pytest.raises(ConfigError, match="one state a rank"):
        merge_states(states[:2])


def test_lengths_on_more_ranks_than_had_drifted_apart(table):
    states = []
    for rank, steps in enumerate((2, 4)):
        loader, _ = load(table, num_ranks=2, rank=rank)
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        states.append(loader.state_dict())
    loader, _ = load(table, num_ranks=3, rank=2)
    loader.load_state_dict(merge_states(states))
    assert len(loader) == 4 + sum(1 for _ in loader)


@pytest.mark.filterwarnings("ignore")  # torch's own, about a process group that is not there
def test_a_loader_is_a_stateful_of_a_distributed_checkpoint(table, tmp_path):
    whole = [check_batch(batch) for batch in load(table)[0]]
    loader, _ = load(table)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    dcp.save({"loader": loader}, checkpoint_id=str(tmp_path / "checkpoint"))
    resumed, _ = load(table)
    dcp.load({"loader": resumed}, checkpoint_id=str(tmp_path / "checkpoint"))
    assert [check_batch(batch) for batch in resumed] == whole[5:]


def test_rows_that_repeat_only_after_a_resume_are_told_when_the_state_is_loaded(tmp_path):
    write_table(tmp_path, [[70]])
    loader, _ = load(str(tmp_path), batch_size=32)
    next(iter(loader))
    state = loader.state_dict()
    resumed, _ = load(str(tmp_path), batch_size=1, num_ranks=5, rank=0)
    with pytest.warns(UserWarning, match="2 rows will come a second time") as warned:
        resumed.load_state_dict(state)
    assert [warning.filename for warning in warned] == [__file__]
    assert resumed.plan.repeated_rows == 2


@pytest.mark.parametrize("epoch", ["0", 1.0, None, True])
def test_an_epoch_that_is_no_whole_number_is_refused(table, epoch):
    with pytest.raises(ConfigTypeError, match="epoch="):
        load(table)[0].set_epoch(epoch)


@pytest.mark.parametrize("epoch", [-1, 1 << 63])
def test_an_epoch_out_of_range_is_refused(table, epoch):
    with pytest.raises(ConfigError, match=f"epoch={epoch}"):
        load(table)[0].set_epoch(epoch)


def test_numpy_counts_epochs_too(table):
    loader, same = load(table)[0], load(table)[0]
    loader.set_epoch(np.int64(2))
    same.set_epoch(2)
    assert [check_batch(batch) for batch in loader] == [check_batch(batch) for batch in same]
    json.dumps(loader.state_dict())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", -1),
        ("epoch", "1"),
        ("worker", None),
        ("options", [1]),
        ("settings", 5),
        ("log", [3]),
        ("num_ranks", [2**40]),
        ("num_workers", [0]),
        ("batch_size", [8, 8]),
        ("batch_size", [2**70]),
        ("drop_last", [0]),
        ("steps", [-1]),
        ("steps", [True]),
        ("steps", [1.5]),
        ("steps", [[1, 2, 3]]),
        ("steps", 5),
        ("cursors", [[[0, [[1, -1]]]]]),
        ("cursors", [[[7, [[1, 1]]]]]),
        ("cursors", [[1]]),
        ("cursors", [[[0, [[1, 1]], 1]]]),
        ("cursors", [[[0, [[1, 1]], 0, 0]]]),
        ("earlier", 5),
        ("earlier", "not base 85"),
        ("earlier", packed([[1], [0], [1], [1], [0], [2]])),
    ],
)
def test_a_state_whose_values_no_loader_writes_is_refused_though_its_checksum_fits(table, name, value):
    loader, _ = load(table)
    next(iter(loader))
    state = loader.state_dict()
    place = state["log"] if name in state["log"] else state
    place[name] = value
    del state["checksum"]
    for take in (load(table)[0].load_state_dict, lambda forged: merge_states([forged])):
        with pytest.raises(CheckpointMismatchError, match=rf"says (log|num_ranks|{name})=.*no loader writes"):
            take(sealed(state))


@pytest.mark.slow
def test_a_state_of_very_many_topologies_is_exact_and_warns_once(table):
    loader, dataset = load(table)
    history = [Segment(topology=Topology(num_workers=1 + hop**7 % 500, batch_size=8), steps=0) for hop in range(400)]
    position = Position(epoch=0, history=tuple(history), segment=Segment(topology=dataset.topology, steps=3))
    loader.load_state_dict(json.loads(json.dumps(encode_state(dataset.planner.identity, position))))
    with pytest.warns(
        UserWarning, match=r"state has 1,\d+ bytes, more than 1 kB: it lists the 401 topologies"
    ) as warned:
        states = [loader.state_dict() for _ in range(2)]
    assert len(warned) == 1
    assert states[0] == states[1]
    resumed, dataset = load(table)
    resumed.load_state_dict(json.loads(json.dumps(states[0])))
    assert dataset.next_position == position
