"""`tdu state`: a checkpoint in words, with rows where the data is at hand."""

import json

import pyarrow.compute as pc
import pytest

from tests.cli.shell import one_line, tdu, tdu_json
from torch_dataloader_utils import Holdout, RoundRobinSplitStrategy, StructuredDataset, TokenBatches, merge_states


def state_after(table, batches, state=None, **options):
    """The state after so many batches."""
    options = {"batch_size": 10, "num_workers": 0, "shuffle": True, **options}
    loader, _ = StructuredDataset.create_dataloader(str(table), **options)
    if state is not None:
        loader.load_state_dict(state)
    source = iter(loader)
    for _ in range(batches):
        next(source)
    after = loader.state_dict()
    source.close()
    return after


def saved(tmp_path, document):
    path = tmp_path / "state.json"
    path.write_text(json.dumps(document))
    return path


def test_rows_done_and_to_come(table, tmp_path):
    state = state_after(table, 30, num_ranks=4, shuffle_rows=100)
    state = state_after(table, 7, state, num_ranks=2, batch_size=5, shuffle_rows=100)
    path = saved(tmp_path, {"step": 37, "loader": {"train": state}})
    (report,) = tdu_json("state", path, table)["states"]
    assert report["at"] == "loader.train"
    assert [(each["num_ranks"], each["steps"]) for each in report["topologies"]] == [(4, 30), (2, 7)]
    assert report["rows"] == {
        "total_rows": 1500,
        "done_rows": 30 * 4 * 10 + 7 * 2 * 5,
        "remaining_rows": 230,
        "remaining_steps": 23,
        "dropped_rows": 0,
    }
    text = tdu("state", path, table).stdout
    assert "1,270 of 1,500 rows (84.7%)" in text
    assert "30 steps on 4 ranks" in text


@pytest.mark.parametrize(
    ("text", "holdout", "options"),
    [
        ("0.1,train", Holdout(0.1, "train"), {}),
        ("0.25,holdout,by=id,seed=7", Holdout(0.25, "holdout", by="id", seed=7), {}),
        ("0.25, train", Holdout(0.25, "train"), {"filters": pc.field("id") < 700}),
    ],
)
def test_a_state_of_a_part_of_the_rows_fits_the_part_alone(table, tmp_path, text, holdout, options):
    path = saved(tmp_path, state_after(table, 2, batch_size=5, holdout=holdout, **options))
    where = [table, *(["--filter", "id < 700"] if options else [])]
    (report,) = tdu_json("state", path, *where, "--holdout", text)["states"]
    dataset = StructuredDataset(str(table), holdout=holdout, **options)
    plan = tdu_json("plan", *where, "--holdout", text)
    assert report["rows"]["total_rows"] == plan["num_rows"] == sum(batch.num_rows for batch in dataset)
    assert report["rows"]["done_rows"] == 10
    assert "here not named" in one_line(tdu("state", path, *where, code=1))
    part = {"train": "holdout", "holdout": "train"}[holdout.part]
    tdu("state", path, *where, "--holdout", text.replace(holdout.part, part), code=1)


def test_topologies_that_are_packed_are_said_as_well(table, tmp_path):
    sizes, state = [10, 20, 30] * 4, None
    for batch_size in sizes:
        state = state_after(table, 1, state, batch_size=batch_size)
    assert state["log"]["batch_size"] == sizes[-1:]
    path = saved(tmp_path, state)
    (report,) = tdu_json("state", path, table)["states"]
    assert [each["batch_size"] for each in report["topologies"]] == sizes
    assert report["rows"]["done_rows"] == sum(sizes)
    assert tdu("state", path).stdout.count("1 step on 1 rank × 1 worker") == len(sizes)


def test_without_the_data_it_says_what_it_can(table, tmp_path):
    path = saved(tmp_path, state_after(table, 3))
    assert tdu_json("state", path)["states"][0]["rows"] is None
    assert "at most 30 rows" in tdu("state", path).stdout


def test_a_token_budget_leaves_rows_unknown(table, tmp_path):
    state = state_after(table, 3, shuffle_rows=100, token_batches=TokenBatches("id", max_tokens=20_000))
    (report,) = tdu_json("state", saved(tmp_path, state), table)["states"]
    assert report["rows"] is None
    assert report["options"]["max_tokens_per_batch"] == 20_000


def test_a_split_strategy_leaves_rows_unknown(table, tmp_path):
    state = state_after(table, 3, split_strategy=RoundRobinSplitStrategy(shuffle=True))
    (report,) = tdu_json("state", saved(tmp_path, state), table)["states"]
    assert report["rows"] is None
    assert report["topologies"][0]["steps"] == 3


@pytest.mark.parametrize(("batches", "epoch"), [(0, 0), (150, 1)])
def test_the_start_of_an_epoch(table, tmp_path, batches, epoch):
    path = saved(tmp_path, state_after(table, batches))
    (report,) = tdu_json("state", path, table)["states"]
    assert (report["epoch"], report["rows"]["done_rows"]) == (epoch, 0)
    assert "nothing of this epoch" in tdu("state", path, table).stdout


def test_the_rows_of_a_contiguous_shard_are_all_that_counts(table, tmp_path):
    _, dataset = StructuredDataset.create_dataloader(str(table), batch_size=10, num_workers=0)
    shard = dataset.shard_rows(3, 1, contiguous=True)
    batches = iter(shard)
    next(batches)
    path = saved(tmp_path, shard.state_dict())
    batches.close()
    (report,) = tdu_json("state", path, table)["states"]
    rows = report["rows"]
    assert (rows["total_rows"], rows["done_rows"], rows["remaining_rows"]) == (500, 10, 490)


def test_drop_last(table, tmp_path):
    path = saved(tmp_path, state_after(table, 2, batch_size=400, drop_last=True))
    (report,) = tdu_json("state", path, table)["states"]
    assert report["rows"]["done_rows"] == 800
    assert (report["rows"]["remaining_rows"], report["rows"]["dropped_rows"]) == (400, 300)


def test_ranks_that_drifted_apart(table, tmp_path):
    states = [state_after(table, batches, num_ranks=2, rank=rank) for rank, batches in enumerate((5, 9))]
    (report,) = tdu_json("state", saved(tmp_path, merge_states(states)), table)["states"]
    assert report["rows"]["done_rows"] == 140
    assert "5 to 9 steps (ranks differ)" in tdu("state", tmp_path / "state.json").stdout


@pytest.mark.filterwarnings("ignore:Ranks take different numbers of steps:UserWarning")
def test_ranks_that_have_finished_are_told_of(table, tmp_path):
    options = {"rank_sharding": "chunks", "split_rows": 100, "num_ranks": 3}
    loader, _ = StructuredDataset.create_dataloader(str(table), batch_size=10, shuffle=True, rank=1, **options)
    all_steps = len(loader)
    states = [state_after(table, count, rank=rank, **options) for rank, count in enumerate((2, all_steps, 1))]
    path = saved(tmp_path, {"merged": merge_states(states), "finished": states[1]})
    merged, finished = tdu_json("state", path, table)["states"]
    assert merged["topologies"][0]["steps"] == [2, None, 1]
    assert merged["rows"]["done_rows"] == 10 * (2 + all_steps + 1)
    assert (finished["epoch"], finished["topologies"]) == (1, [])
    text = tdu("state", path, table).stdout
    assert "1 to 2 steps (ranks differ) on 3 ranks × 1 worker, batch 10; 1 of the ranks took all of theirs" in text


def test_rows_that_are_not_counted_are_not_claimed(table, tmp_path):
    options = {"filters": pc.field("id") < 77, "count_rows": False}
    path = saved(tmp_path, state_after(table, 3, **options))
    assert tdu_json("state", path)["states"][0]["rows"] is None


def test_a_state_of_other_data_is_refused(table, tmp_path):
    path = saved(tmp_path, state_after(table, 3))
    (table / "part-2.parquet").unlink()
    assert "fingerprint" in one_line(tdu("state", path, table, code=1))


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [("{", 2, "is no JSON"), ('{"a": 1}', 1, "holds no loader state"), ("\x80\x04", 1, "holds no")],
)
def test_files_that_are_no_states(tmp_path, text, code, says):
    path = tmp_path / "state.json"
    path.write_text(text if text != "\x80\x04" else "[]")
    assert says in one_line(tdu("state", path, code=code))


def test_pickles_are_not_opened(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"\x80\x04K\x01.")
    assert "executes it" in one_line(tdu("state", path, code=2))


def test_a_changed_state_is_refused(table, tmp_path):
    state = state_after(table, 3)
    state["epoch"] = 5
    assert "changed" in one_line(tdu("state", saved(tmp_path, state), code=1))


def test_states_in_lists_are_found(table, tmp_path):
    states = [state_after(table, 3), state_after(table, 5)]
    reports = tdu_json("state", saved(tmp_path, {"loaders": [{"train": state} for state in states]}), table)["states"]
    assert [(each["at"], each["rows"]["done_rows"]) for each in reports] == [
        ("loaders.0.train", 30),
        ("loaders.1.train", 50),
    ]


def test_steps_to_come_are_not_claimed_where_no_topology_is_known(table, tmp_path):
    path = saved(tmp_path, state_after(table, 150))
    (report,) = tdu_json("state", path, table)["states"]
    assert (report["rows"]["remaining_rows"], report["rows"]["remaining_steps"]) == (1500, None)
    assert tdu("state", path, table).stdout.endswith("remains   1,500 rows\n")


def test_the_next_epoch_of_several_ranks_has_the_steps_of_their_topology(table, tmp_path):
    (report,) = tdu_json("state", saved(tmp_path, state_after(table, 75, num_ranks=2)), table)["states"]
    assert (report["epoch"], report["rows"]["remaining_rows"], report["rows"]["remaining_steps"]) == (1, 1500, 75)
