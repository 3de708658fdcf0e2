"""The default windows of shuffle=True: their size, the chunks that batches draw from, and the memory that they need."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compat.make import make_inventory
from tests.plan.model import bytes_of_groups, files, make_plan, make_space, rank_batches, resume, topologies
from torch_dataloader_utils import Lanes, StructuredDataset, TokenBatches, merge_states, plan_epoch, scan_files
from torch_dataloader_utils._core.inventory import UNKNOWN, FileTable, StringColumn
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._runtime.system_limits import memory_bytes
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.plan.planner import Planner
from torch_dataloader_utils.plan.windows import size_windows

GROUPS, ROWS = 64, 512
NUM_ROWS = GROUPS * ROWS


def options_of(*, shuffle=True, interleave=None, shuffle_rows=None, lanes=None, token_batches=None, **others):
    return PlanOptions.of(
        shuffle=shuffle,
        interleave=interleave,
        shuffle_rows=shuffle_rows,
        lanes=lanes,
        token_batches=token_batches,
        split_bytes=None,
        **others,
    )


def table(*, groups=GROUPS, rows=ROWS, row_bytes=1 << 16, **changes):
    """The inventory of one file with row groups of equal size; windows of 16 chunks have 512 rows by default."""
    inventory, ones = make_inventory(), np.ones(groups, dtype=np.int64)
    table = replace(
        inventory.groups,
        file=np.zeros(groups, dtype=np.int32),
        ordinal=np.arange(groups, dtype=np.int32),
        first_row=ones * 0,
        projected_bytes=ones * rows * row_bytes,
        byte_offset=ones * 0,
        byte_length=ones * 0,
        **{"physical_rows": ones * rows, "live_rows": ones * rows, **changes},
    )
    one = FileTable(
        paths=StringColumn.of(["a"]),
        sizes=np.array([1]),
        identities=StringColumn.of(["i"]),
        formats=np.ones(1, dtype=np.uint8),
    )
    return replace(inventory, files=one, groups=table)


def batches(plan, rank=0):
    """The plan rows of each batch of a rank."""
    parts = {"programs": plan.programs, "rank_steps": plan.rank_steps, "position": plan.inputs.position}
    return rank_batches(SimpleNamespace(**parts), rank)


@given(files, bytes_of_groups, st.integers(1, 1 << 20), st.integers(1, 40), topologies, topologies, st.data())
def test_every_row_comes_once_and_windows_depend_on_data_and_options_alone(
    files, sizes, scale, interleave, topology, later, data
):
    space = make_space(files, [size * scale for size in sizes])
    options = size_windows(options_of(interleave=interleave, seed=scale), space)
    assert options == size_windows(options_of(interleave=interleave, seed=scale), space)
    assert options.shuffle_rows % interleave == 0
    assert 1 <= options.shuffle_rows // interleave <= 1 << 14
    topology = replace(topology, drop_last=False)
    plan = make_plan(space=space, options=options, topology=topology)
    steps = min(plan.rank_steps.tolist())
    taken = data.draw(st.integers(0, steps))
    received = Counter(
        row for rank in range(topology.num_ranks) for batch in rank_batches(plan, rank)[:taken] for row in batch
    )
    repeats = plan.repeated_rows if taken == steps and steps else 0
    position = replace(plan.position.segment, steps=taken)
    rest = resume(replace(plan, position=replace(plan.position, segment=position)), replace(later, drop_last=False))
    received.update(row for rank in range(later.num_ranks) for batch in rank_batches(rest, rank) for row in batch)
    assert set(received) == set(range(space.num_rows))
    assert received.total() == space.num_rows + repeats + rest.repeated_rows


@pytest.mark.parametrize("lanes", [None, Lanes(8), Lanes(8, rows=64), Lanes(32, rows=32)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_batch_of_256_rows_draws_from_16_chunks(lanes, ranks):
    plan = plan_epoch(table(groups=256), batch_size=256, shuffle=True, num_ranks=ranks, lanes=lanes)
    for rank in range(ranks):
        drawn = [len({row // ROWS for row in batch}) for batch in batches(plan, rank)]
        assert min(drawn) >= 16 - (lanes is not None)
        assert np.mean(drawn) >= 16


def test_rows_of_any_size_have_windows_of_32_mib_or_262_144_rows():
    def window(row_bytes, **options):
        plan = plan_epoch(table(row_bytes=row_bytes), shuffle=True, **options)
        return plan.inputs.options.shuffle_rows

    assert window(1) == window(64) == 262_144
    assert window(200) == 16 * ((2 << 20) // 200)
    assert window(1 << 20) == 32
    assert window(1 << 30) == 16  # a row of each chunk
    assert window(1 << 20, interleave=4) == 8
    assert window(1 << 20, num_ranks=4, num_workers=8, batch_size=7, epoch=3, split_rows=100) == 32
    assert plan_epoch(table(groups=0), shuffle=True).steps == 0


def test_without_row_counts_a_window_has_row_groups_of_16_chunks():
    rows = np.full(GROUPS, ROWS, dtype=np.int64)
    rows[::3] //= 2
    plan = plan_epoch(table(physical_rows=rows, live_rows=np.full(GROUPS, UNKNOWN)), shuffle=True, split_rows=1)
    (lane,) = plan.programs(0)[0].lanes
    assert lane.windows.permuted
    groups = np.diff(lane.windows.offsets)
    assert len(groups) > 1
    assert (groups[:-1] >= 16).all()
    nothing_known = plan_epoch(
        table(physical_rows=np.full(GROUPS, UNKNOWN), live_rows=np.full(GROUPS, UNKNOWN)), shuffle=True
    )
    assert set(np.diff(nothing_known.programs(0)[0].lanes[0].windows.offsets).tolist()) == {16}


def test_batches_of_similar_length_take_default_windows_of_whole_batches():
    plan = plan_epoch(table(), shuffle=True, batch_size=100, token_batches=TokenBatches("length"))
    (lane,) = plan.programs(0)[0].lanes
    assert set(lane.rows[:-1].tolist()) == {600}  # 512, rounded up


def test_explain_says_which_windows_an_epoch_has():
    text = plan_epoch(table(), shuffle=True, batch_size=256).explain()
    assert "seed 42, chunks permuted, windows of 512 rows of 16 chunks" in text
    assert "a batch of 256 rows draws from about 16 chunks" in text
    assert "seed 42, chunks permuted\n" in plan_epoch(table(), shuffle="chunks").explain()


@pytest.fixture
def path(tmp_path):
    """A file of 64 row groups of 100 rows."""
    pq.write_table(pa.table({"row": np.arange(6_400)}), tmp_path / "a.parquet", row_group_size=100)
    return str(tmp_path / "a.parquet")


def load(path, part=0.0, groups=GROUPS, **options):
    """The data set of the first row groups of the file, as if each had this part of the memory of this host."""
    inventory = scan_files(path)
    sizes = np.full(GROUPS, max(800, int(memory_bytes() * part)))
    table = replace(inventory.groups, projected_bytes=sizes).take(slice(0, groups))
    options = {"shuffle": True, "num_workers": 0, **options}
    return StructuredDataset(path, inventory=replace(inventory, groups=table), **options)


def test_a_host_with_too_little_memory_is_told_what_to_pass(path):
    match = (
        r"this host, which has .*1 worker keeps row groups of 16 chunks"
        r'.*Pass shuffle="chunks".*interleave=.*smaller row gr'
    )
    with pytest.raises(ConfigError, match=match):
        load(path, 0.1)
    for enough in ({"shuffle": "chunks"}, {"interleave": 4}, {"shuffle_rows": 1_600}, {"shuffle": False}):
        load(path, 0.1, **enough)
    load(path, 0.1, groups=4)  # all data fit


def test_workers_need_their_own_memory_and_never_more_than_the_data(path):
    load(path, 0.025)
    with pytest.raises(ConfigError, match="each of 3 workers keeps"):
        load(path, 0.025, num_workers=3)
    load(path, 0.025, groups=16, num_workers=8)


def test_all_processes_of_a_host_share_its_memory(path, monkeypatch):
    load(path, 0.025, num_ranks=2, rank=0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")  # as torchrun does
    with pytest.raises(ConfigError, match="each of 3 workers keeps"):
        load(path, 0.025, num_ranks=2, rank=0)


def test_states_of_both_shuffles_do_not_load_into_the_other_and_say_what_to_pass(path):
    rows, chunks = load(path), load(path, shuffle="chunks")
    rows.set_epoch(1)
    chunks.set_epoch(1)
    assert dict(rows.state_dict()["options"]) == {
        "seed": 42,
        "shuffle": True,
        "interleave": 16,
        "default_windows": True,
    }
    assert dict(chunks.state_dict()["options"]) == {"seed": 42, "shuffle": True}
    with pytest.raises(CheckpointMismatchError, match=r"saved with shuffle='chunks', here True\. Resume with"):
        load(path).load_state_dict(chunks.state_dict())
    with pytest.raises(CheckpointMismatchError, match=r"saved with shuffle=True, here 'chunks'\. Resume with"):
        load(path, shuffle="chunks").load_state_dict(rows.state_dict())
    with pytest.raises(CheckpointMismatchError, match=r"saved with shuffle_rows=None, here 500\. Resume with"):
        load(path, shuffle_rows=500).load_state_dict(rows.state_dict())
    with pytest.raises(CheckpointMismatchError, match=r"saved with interleave=4, here None\. Resume with"):
        load(path).load_state_dict(load(path, interleave=4).state_dict())
    assert merge_states([rows.state_dict()]) == rows.state_dict()


def test_a_table_that_grows_has_other_default_windows_and_states_of_equal_options():
    small, large = (Planner(inventory=table(row_bytes=row_bytes), options=options_of()) for row_bytes in (400, 800))
    assert small.sized_options.shuffle_rows > large.sized_options.shuffle_rows
    assert small.identity.options == large.identity.options


def test_shuffle_true_asks_for_windows_of_16_chunks():
    assert options_of(shuffle="chunks") == PlanOptions(shuffle=True)
    assert options_of(shuffle=np.True_) == PlanOptions(shuffle=True, interleave=16, default_windows=True)
    assert options_of(shuffle_rows=9) == PlanOptions(shuffle=True, shuffle_rows=9, interleave=16)
    assert options_of(shuffle=False, shuffle_rows=9) == PlanOptions(shuffle_rows=9, interleave=4)
