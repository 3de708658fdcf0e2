"""Merged states of ranks that differ in steps, where some have finished the epoch: every row once, on any topology."""

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.compute as pc
import pytest
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.lines_run import lines_run
from tests.promises.jobs import STREAMS, Rank
from tests.promises.sources import Source
from tests.stream.tables import check_batch, dataset_of_rank, files, write_table
from torch_dataloader_utils import RoundRobinSplitStrategy, StructuredDataset, merge_states
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* come a second time:UserWarning"),
    pytest.mark.filterwarnings("ignore:Ranks take different numbers of steps:UserWarning"),
]

TABLE = [[40, 33, 40], [22, 50], [1, 30, 60, 24]]
CHUNKS = {"rank_sharding": "chunks", "split_rows": 20}
# Of every row group some rows, and statistics cannot tell how many.
UNKNOWN = {"filters": pc.bit_wise_and(pc.field("row"), 3) > 0, "count_rows": False, "split_rows": 20}


def rank_of(folder, options, topology, rank, state=None):
    """One rank of a job whose workers are plain iterators."""
    source = Source(lambda **own: StructuredDataset(str(folder), **own), Counter(), check_batch, is_counted=False)
    return Rank(source, options, topology, rank, state, STREAMS)


topologies = st.builds(
    Topology,
    num_ranks=st.integers(1, 4),
    num_workers=st.integers(1, 3),
    batch_size=st.integers(2, 30),
    drop_last=st.just(False),
)
counts = st.lists(st.one_of(st.integers(0, 6), st.just(1000)), min_size=4, max_size=4)


@pytest.mark.slow
@given(
    files=files,
    topology=topologies,
    stops=st.lists(st.integers(0, 5), max_size=5),
    merges=st.lists(st.booleans(), min_size=5, max_size=5),
    mode=st.sampled_from([{}, {"split_strategy": RoundRobinSplitStrategy()}]),
    shuffle_rows=st.one_of(st.none(), st.integers(1, 60)),
    split_rows=st.integers(1, 60),
)
@settings(max_examples=effort(40), deadline=None)
def test_without_row_counts_a_chain_of_resumes_gives_the_batches_of_one_pass(
    files, topology, stops, merges, mode, shuffle_rows, split_rows
):
    """On the same topology, each rank from its own state or all from a merged one, with workers that have ended too."""
    with TemporaryDirectory() as folder:
        write_table(Path(folder), [[8], *files])
        options = {**UNKNOWN, **mode, "shuffle": True, "shuffle_rows": shuffle_rows, "split_rows": split_rows}
        ranks = range(topology.num_ranks)
        whole = [rank_of(folder, options, topology, rank).take(1000) for rank in ranks]
        received, states = [[] for _ in ranks], [None] * topology.num_ranks
        for stop, merge in zip([*stops, 1000], [*merges, False], strict=False):
            for rank in ranks:
                if states[rank] is None or states[rank]["epoch"] == 0:
                    job = rank_of(folder, options, topology, rank, states[rank])
                    received[rank] += job.take(stop)
                    states[rank] = job.state()
                    job.close()
            if merge and not any(state["epoch"] for state in states):
                states = [merge_states(states)] * topology.num_ranks
        assert received == whole


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, TABLE)
    return folder


def load(table, num_ranks, rank, state=None, **options):
    loader, _ = StructuredDataset.create_dataloader(
        str(table), **{"batch_size": 8, "num_workers": 0, "shuffle": True, **options}, num_ranks=num_ranks, rank=rank
    )
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def receive(loader, most=1000):
    """Up to so many batches of a loader, as lists of rows."""
    batches, received = iter(loader), []
    for _ in range(most):
        batch = next(batches, None)
        if batch is None:
            break
        received.append(check_batch(batch))
    return received


def stop_ranks(table, counts, **options):
    """The rows that ranks receive in up to so many batches each, and their states."""
    loaders = [load(table, len(counts), rank, **options) for rank in range(len(counts))]
    rows = [
        row for loader, most in zip(loaders, counts, strict=True) for batch in receive(loader, most) for row in batch
    ]
    return rows, [loader.state_dict() for loader in loaders]


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("options", [CHUNKS, UNKNOWN], ids=["chunks", "unknown counts"])
def test_a_rank_may_have_finished_the_epoch_before_others(table, options, num_ranks):
    expected = [row for batch in receive(load(table, 1, 0, **options)) for row in batch]
    received, states = stop_ranks(table, [2, 1000, 0], **options)
    assert [state["epoch"] for state in states] == [0, 1, 0]
    merged = merge_states(states)
    assert merged["epoch"] == 0
    loaders = [load(table, num_ranks, rank, merged, **options) for rank in range(num_ranks)]
    rest = [receive(loader) for loader in loaders]
    assert sorted(received + [row for batches in rest for batch in batches for row in batch]) == sorted(expected)
    assert merge_states([loader.state_dict() for loader in loaders])["epoch"] == 1


@pytest.mark.processes
def test_worker_processes_finish_an_epoch_before_other_ranks_do(table):
    received, states = stop_ranks(table, [1000, 3], num_workers=2, **CHUNKS)
    assert [state["epoch"] for state in states] == [1, 0]
    rest = [
        row
        for rank in range(2)
        for batch in receive(load(table, 2, rank, merge_states(states), **CHUNKS))
        for row in batch
    ]
    assert Counter(received + rest) == Counter(range(300))


def test_lengths_count_what_a_finished_rank_had_received(table):
    _, states = stop_ranks(table, [2, 1000, 1], **CHUNKS)
    had = load(table, 3, 1, **CHUNKS).plan.rank_steps[1]
    for rank, before in enumerate([2, had, 1]):
        loader = load(table, 3, rank, merge_states(states), **CHUNKS)
        assert len(loader) == before + len(receive(loader))


def test_rows_that_a_finished_rank_would_have_dropped_are_dealt(table):
    received, states = stop_ranks(table, [2, 1000, 1], drop_last=True, **CHUNKS)
    merged = merge_states(states)
    rest = [row for rank in range(2) for batch in receive(load(table, 2, rank, merged, **CHUNKS)) for row in batch]
    assert Counter(received + rest) == Counter(range(300))


@pytest.mark.parametrize("options", [CHUNKS, UNKNOWN, {}], ids=["chunks", "unknown counts", "equal steps"])
def test_states_at_the_end_of_an_epoch_are_the_same_on_every_rank_and_begin_the_next(table, options):
    _, states = stop_ranks(table, [1000] * 3, **options)
    assert states[0]["epoch"] == 1
    assert states == [states[0]] * 3
    assert merge_states(states) == states[0]
    fresh = load(table, 2, 1, **options)
    fresh.set_epoch(1)
    resumed = load(table, 2, 1, states[0], **options)
    assert resumed.state_dict() == states[0]
    resumed.set_epoch(1)
    assert resumed.state_dict() == fresh.state_dict()
    assert receive(resumed) == receive(fresh)


def test_where_there_is_one_rank_the_log_is_empty_at_the_end_of_an_epoch(table):
    _, (state,) = stop_ranks(table, [1000], **CHUNKS)
    assert state["log"]["steps"] == []


EVEN = [{}, {"shuffle_rows": 30}, {"split_rows": 20, "batch_size": 7}]


@pytest.mark.parametrize("options", EVEN, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_rank_of_equal_steps_that_was_stopped_before_its_last_ones_is_merged(table, options, ranks):
    steps = len(load(table, 3, 0, **options))
    received, states = stop_ranks(table, [steps, steps - 1, steps - 3], **options)
    merged = merge_states(states)
    assert (merged["epoch"], merged["log"]["steps"]) == (0, [[None, steps - 1, steps - 3]])
    rested = [load(table, ranks, rank, merged, **options) for rank in range(ranks)]
    rest = [row for loader in rested for batch in receive(loader) for row in batch]
    assert set(received + rest) == set(range(300))
    assert len(received + rest) <= 300 + 2 * ranks  # equal steps repeat a row of each rank at most, before and after


def test_each_rank_goes_on_at_its_own_place_from_its_own_state_and_can_be_merged_again(table):
    received, states = stop_ranks(table, [2, 1000, 1], **CHUNKS)
    loaders = [load(table, 3, rank, state, **CHUNKS) for rank, state in enumerate(states)]
    assert [loader.epoch for loader in loaders] == [0, 1, 0]
    received += [row for rank in (0, 2) for batch in receive(loaders[rank], 2) for row in batch]
    merged = merge_states([loader.state_dict() for loader in loaders])
    rest = [row for rank in range(2) for batch in receive(load(table, 2, rank, merged, **CHUNKS)) for row in batch]
    assert Counter(received + rest) == Counter(range(300))


def test_ranks_that_did_not_say_that_they_finished_are_not_taken_to_have(table):
    _, (middle, finished) = stop_ranks(table, [2, 1000], **CHUNKS)
    jumped = load(table, 2, 1, **CHUNKS)
    jumped.set_epoch(1)
    begun = load(table, 2, 1, finished, **CHUNKS)
    receive(begun, 1)
    _, (_, elsewhere) = stop_ranks(table, [2, 1000], batch_size=5, **CHUNKS)
    for state in (jumped.state_dict(), begun.state_dict()):
        with pytest.raises(CheckpointMismatchError, match=r"rank 1 is in epoch 1.*before set_epoch\(\)"):
            merge_states([middle, state])
    with pytest.raises(CheckpointMismatchError, match="topology"):
        merge_states([middle, elsewhere])
    with pytest.raises(ConfigError, match="one state a rank"):
        merge_states([middle, finished, finished])
    assert merge_states([middle, finished])["epoch"] == 0


def test_a_rank_that_begins_the_next_epoch_has_received_nothing_of_it(table):
    _, states = stop_ranks(table, [1000, 1000], **CHUNKS)
    begun = load(table, 2, 0, states[0], **CHUNKS)
    received = [row for batch in receive(begun, 3) for row in batch]
    merged = merge_states([begun.state_dict(), states[1]])
    assert (merged["epoch"], merged["log"]["steps"]) == (1, [[3, 0]])
    rest = [row for rank in range(2) for batch in receive(load(table, 2, rank, merged, **CHUNKS)) for row in batch]
    assert Counter(received + rest) == Counter(range(300))


def test_a_rank_that_finished_after_another_history_is_refused(table):
    _, states = stop_ranks(table, [2, 1000], **CHUNKS)
    _, others = stop_ranks(table, [3, 3], **CHUNKS)
    resumed = load(table, 3, 0, merge_states(states), **CHUNKS)
    finished = load(table, 3, 1, merge_states(others), **CHUNKS)
    last = load(table, 3, 2, merge_states(states), **CHUNKS)
    receive(resumed, 1)
    receive(finished)
    with pytest.raises(CheckpointMismatchError, match="log of earlier topologies"):
        merge_states([resumed.state_dict(), finished.state_dict(), last.state_dict()])


@pytest.mark.parametrize("steps", [[2, 1000, 1], [0, 1, 2], [1, 1, 1]])
def test_states_of_unknown_counts_out_of_rank_order_are_refused(table, steps):
    _, states = stop_ranks(table, steps, **UNKNOWN)
    with pytest.raises(ConfigError, match="rank order"):
        merge_states([states[1], states[0], states[2]])


def test_states_out_of_rank_order_that_give_a_rank_more_steps_than_it_has_are_refused(table):
    topology = Topology(num_ranks=2, num_workers=1, batch_size=4)
    ranks = [rank_of(table, CHUNKS, topology, rank) for rank in range(2)]
    longer = max(ranks, key=lambda rank: rank.steps)
    assert longer.steps > min(rank.steps for rank in ranks) + 1
    longer.take(longer.steps - 1)
    states = [rank.dataset.state_dict() for rank in ranks]
    dataset_of_rank(table, topology, 0, merge_states(states), **CHUNKS)
    with pytest.raises(CheckpointMismatchError, match="were not in rank order"):
        dataset_of_rank(table, topology, 0, merge_states(states[::-1]), **CHUNKS)


def test_a_rank_that_received_nothing_yet_is_merged_where_counts_are_unknown(table):
    expected = [row for batch in receive(load(table, 1, 0, **UNKNOWN)) for row in batch]
    received, states = stop_ranks(table, [2, 0, 1], **UNKNOWN)
    merged = merge_states(states)
    rest = [row for rank in range(2) for batch in receive(load(table, 2, rank, merged, **UNKNOWN)) for row in batch]
    assert sorted(received + rest) == sorted(expected)


def test_the_merged_state_has_its_keys_in_the_order_of_the_states(table):
    _, states = stop_ranks(table, [2, 1, 3], **CHUNKS)
    assert list(merge_states(states)) == list(states[0])


def test_equal_options_of_many_ranks_are_compared_at_a_glance(table):
    _, states = stop_ranks(table, [2, 1, 3], **CHUNKS)
    merge_states(states)
    merged = merge_states(states)
    # Some 330 lines a state; looking at each option of each state took 1,300.
    assert lines_run(lambda: merge_states([merged] * 3)) < 3 * 600


def test_merging_merged_states_changes_nothing(table):
    _, states = stop_ranks(table, [2, 1000, 1], **CHUNKS)
    merged = merge_states(states)
    assert merge_states([merged] * 3) == merged


@pytest.mark.filterwarnings("ignore")  # torch's own, about a process group that is not there
@pytest.mark.parametrize(("saved", "present"), [(1000, 0), (2, 1000)])
def test_a_distributed_checkpoint_takes_the_place_of_a_finished_epoch_and_is_one(table, tmp_path, saved, present):
    """It loads values into the keys that are there; so all states have the same keys."""
    loader, other = load(table, 2, 0, **CHUNKS), load(table, 2, 0, **CHUNKS)
    receive(loader, saved)
    receive(other, present)
    dcp.save({"loader": loader}, checkpoint_id=str(tmp_path / "checkpoint"))
    dcp.load({"loader": other}, checkpoint_id=str(tmp_path / "checkpoint"))
    assert other.state_dict() == loader.state_dict()


def test_the_state_of_another_rank_is_refused_where_counts_are_unknown(table):
    first, second = load(table, 2, 0, **UNKNOWN), load(table, 2, 1, **UNKNOWN)
    assert len(receive(first, 2)) == 2
    state = first.state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"ranks \[1\] are missing. Gather state_dict\(\) of all ranks"):
        second.load_state_dict(state)
    assert second.epoch == 0
    assert len(receive(second)) > 2
    first.load_state_dict(state)
    own = load(table, 2, 0, first.state_dict(), **UNKNOWN)
    assert receive(own) == receive(first)
