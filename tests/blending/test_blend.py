"""Blends of real loaders: every row once, equal steps, exact resume on the same topology and on others."""

import json
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.blending.rule import blend_picks
from tests.effort import effort
from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import Decoding, Lanes, StructuredDataset, TokenBatches, scan_files
from torch_dataloader_utils._core.sealed_state import sealed
from torch_dataloader_utils.blending import blend
from torch_dataloader_utils.blending.picks import count_steps
from torch_dataloader_utils.blending.sources import Mark, RankPlace
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError
from torch_dataloader_utils.splits import TargetSizeSplitStrategy
from torch_dataloader_utils.stream.device import DevicePrefetcher

SIZES = (41, 17, 6)
WEIGHTS = (5.0, 2.0, 1.5)
STARTS = (0, 1_000, 2_000)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Inventories of three tables; rows of table k are 1,000 k and on."""
    inventories = []
    for size, start in zip(SIZES, STARTS, strict=True):
        folder = tmp_path_factory.mktemp("table")
        write_table(folder, [[size // 3, size - size // 3]], first_row=start)
        inventories.append(scan_files(str(folder)))
    return inventories


def make(tables, *, num_ranks=1, rank=0, batch_sizes=(4, 4, 4), weights=WEIGHTS, source_options=None, **options):
    loaders = [
        StructuredDataset.create_dataloader(
            "",
            inventory=inventory,
            batch_size=batch_size,
            decoding=Decoding(threads=1),
            num_ranks=num_ranks,
            rank=rank,
            **{"num_workers": 0, "shuffle": True, "shuffle_rows": 20, "split_rows": 9, **(source_options or {})},
        )[0]
        for inventory, batch_size in zip(tables, batch_sizes, strict=True)
    ]
    return blend(loaders, weights, **options)


def rows_of(loader):
    return [check_batch(batch) for batch in loader]


def source_of(row):
    return row // 1_000


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", 17])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_batches_come_in_turn_by_the_rule(tables, stop, num_ranks):
    ranks = [make(tables, stop=stop, num_ranks=num_ranks, rank=rank) for rank in range(num_ranks)]
    lengths = [len(source.loader) for source in ranks[0].sources]
    expected = blend_picks(WEIGHTS, lengths, stop)
    for loader in ranks:
        batches = rows_of(loader)
        assert [source_of(batch[0]) for batch in batches] == expected
        assert len(loader) == len(expected)


def test_batches_are_counted_once_for_each_place_where_a_pass_would_begin(tables):
    loader, other = make(tables, per="sample"), make(tables, per="sample")
    calls = []
    earlier = sys.getprofile()
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    try:
        lengths = {len(loader) for _ in range(5)}
        loader.set_epoch(1)
        lengths |= {len(loader) for _ in range(5)}
    finally:
        sys.setprofile(earlier)
    assert calls.count(count_steps.__code__) == 2
    assert lengths == {len(rows_of(other))}


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_all_exhausted_delivers_every_row_and_repeats_whole_passes(tables, per):
    counts, steps = Counter(), set()
    for rank in range(3):
        batches = rows_of(make(tables, per=per, stop="all_exhausted", num_ranks=3, rank=rank))
        counts.update(row for batch in batches for row in batch)
        steps.add(len(batches))
    assert len(steps) == 1
    for size, start in zip(SIZES, STARTS, strict=True):
        given = [counts[row] for row in range(start, start + size)]
        assert min(given) >= 1
        # Ranks are in one pass, or some of them already in the next.
        assert max(given) - min(given) <= 1


@pytest.mark.parametrize("batch_size", [1, 5, 16])
@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", 9])
def test_samples_are_mixed_in_their_shares(tables, stop, batch_size):
    loader = make(tables, per="sample", stop=stop, batch_size=batch_size)
    picks = blend_picks(WEIGHTS, SIZES, stop, batch_size)
    batches = rows_of(loader)
    assert len(batches) == len(loader)
    for index, batch in enumerate(batches):
        expected = sorted(picks[index * batch_size : (index + 1) * batch_size])
        assert [source_of(row) for row in batch] == expected
    if stop == "first_exhausted":
        assert max(Counter(row for batch in batches for row in batch).values()) == 1


@pytest.mark.slow
@given(data=st.data(), per=st.sampled_from(["batch", "sample"]), num_ranks=st.integers(1, 3))
@settings(max_examples=effort(12), deadline=None)
def test_a_state_at_any_step_continues_exactly(tables, data, per, num_ranks):
    options = {
        "per": per,
        "stop": data.draw(st.sampled_from(["first_exhausted", "all_exhausted", 30])),
        "batch_sizes": data.draw(st.tuples(*[st.integers(2, 7)] * 3)),
        "num_ranks": num_ranks,
    }
    if per == "sample":
        options["batch_size"] = data.draw(st.integers(1, 12))
    step = data.draw(st.integers(0, 30))
    states = []
    for rank in range(num_ranks):
        loader = make(tables, rank=rank, **options)
        loader.set_epoch(3)
        whole = rows_of(loader)
        step = min(step, len(whole) - 1)
        loader.set_epoch(3)
        batches = iter(loader)
        received = [check_batch(next(batches)) for _ in range(step)]
        states.append(json.dumps(loader.state_dict()))
        batches.close()
        resumed = make(tables, rank=rank, **options)
        resumed.load_state_dict(json.loads(states[0]))
        assert resumed.epoch == 3
        assert len(resumed) == len(whole)
        assert received + rows_of(resumed) == whole
    assert len(set(states)) == 1
    assert len(states[0]) < 3_000


@pytest.mark.slow
@given(steps=st.integers(0, 8), old=st.integers(1, 3), new=st.integers(1, 3), batch_size=st.integers(2, 6))
@settings(max_examples=effort(12), deadline=None)
def test_whole_batches_resume_on_another_topology(tables, steps, old, new, batch_size):
    received, states = Counter(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for rank in range(old):
            loader = make(tables, stop="all_exhausted", num_ranks=old, rank=rank)
            batches = iter(loader)
            received.update(row for _ in range(min(steps, len(loader) - 1)) for row in check_batch(next(batches)))
            states.append(loader.state_dict())
        assert all(state == states[0] for state in states)
        lengths = set()
        for rank in range(new):
            loader = make(tables, stop="all_exhausted", num_ranks=new, rank=rank, batch_sizes=(batch_size,) * 3)
            loader.load_state_dict(states[0])
            lengths.add(len(loader))
            received.update(row for batch in loader for row in check_batch(batch))
    assert len(lengths) == 1
    # The largest source has one pass over both topologies (and may have begun another): each row of it came.
    for size, start in zip(SIZES, STARTS, strict=True):
        assert all(received[row] >= 1 for row in range(start, start + size))


def test_samples_resume_elsewhere_only_between_batches_of_the_sources(tables):
    # 4 + 2 + 2 rows of every batch of 8: sources of such batches are never left inside one.
    options = {"per": "sample", "weights": (2, 1, 1), "batch_size": 8, "stop": 4}
    loader = make(tables, batch_sizes=(4, 2, 2), **options)
    batches = iter(loader)
    received = Counter(row for _ in range(2) for row in check_batch(next(batches)))
    state = loader.state_dict()
    for rank in range(2):
        resumed = make(tables, batch_sizes=(4, 2, 2), num_ranks=2, rank=rank, **options)
        resumed.load_state_dict(state)
        assert len(resumed) == 4
        received.update(row for batch in resumed for row in check_batch(batch))
    assert max(received[row] for row in range(SIZES[0])) == 1
    inside = make(tables, batch_sizes=(3, 3, 3), **options)
    next(iter(inside))
    with pytest.raises(CheckpointMismatchError, match="inside a batch of 3 rows"):
        make(tables, batch_sizes=(3, 3, 3), num_ranks=2, **options).load_state_dict(inside.state_dict())


def place_by_walking(source, mark, rank):
    """Pass by pass, as the definition says."""
    epoch, start, number, items = mark.start.epoch % 2**32, mark.start, mark.passes, mark.taken
    while items >= (length := int(source.passes.lengths(start)[rank])):
        number, items = number + 1, items - length
        start = replace(source.begin(epoch).start, epoch=epoch + number * 2**32)
    return RankPlace(start=start, number=number, items=items)


# What a split strategy decides itself.
WITHOUT_DEAL = {"shuffle": False, "split_rows": None}
SOURCE_OPTIONS = st.one_of(
    st.fixed_dictionaries({"rank_sharding": st.sampled_from(["rows", "chunks"]), "drop_last": st.booleans()}),
    st.just({"lanes": Lanes(120, rows=1)}),
    st.just({**WITHOUT_DEAL, "split_strategy": TargetSizeSplitStrategy(target_rows=3, shuffle=True)}),
    st.just({"token_batches": TokenBatches("row", max_tokens=100)}),
)


@pytest.mark.slow
@given(
    per=st.sampled_from(["batch", "sample"]),
    num_ranks=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    source_options=SOURCE_OPTIONS,
    taken=st.integers(0, 300),
    rest_taken=st.integers(0, 150),
)
# 41 rows: which of the two ranks has one more is another one in every pass.
@example(per="sample", num_ranks=2, batch_size=4, source_options={}, taken=300, rest_taken=0)
@settings(max_examples=effort(30), deadline=None)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of uneven ranks and repeated rows
def test_a_number_of_units_leads_where_walking_its_passes_leads(
    tables, per, num_ranks, batch_size, source_options, taken, rest_taken
):
    options = {"per": "batch" if "token_batches" in source_options else per, "source_options": source_options}
    try:
        source = make(tables[:1], weights=(1,), batch_sizes=(batch_size,), num_ranks=num_ranks, **options).sources[0]
        other = make(tables[:1], weights=(1,), batch_sizes=(batch_size,), num_ranks=4, **options).sources[0]
    except ConfigError:  # lanes that do not fit, a rank that has nothing
        assume(False)
    mark = Mark(start=source.begin(5).start, taken=taken)
    places = source.passes.places(mark, range(num_ranks))
    assert places == [place_by_walking(source, mark, rank) for rank in range(num_ranks)]
    assert [source.passes.places(mark, [rank]) for rank in range(num_ranks)] == [[place] for place in places]
    try:
        rest = replace(other.passes.under_present_topology(mark), taken=rest_taken)
        resumed = other.passes.places(rest, range(4))
    except (CheckpointMismatchError, ConfigError):  # inside a batch; lanes, of which ranks are at different steps
        return
    assert resumed == [place_by_walking(other, rest, rank) for rank in range(4)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of uneven ranks
def test_passes_that_are_even_by_chance_are_walked(tmp_path):
    # Two of the four row groups a rank: 12 rows each, or 8 and 16.
    write_table(tmp_path, [[4, 4, 8, 8]])
    options = {"source_options": {"rank_sharding": "chunks", "split_rows": 1}, "weights": (1,)}
    source = make([scan_files(str(tmp_path))], batch_sizes=(1,), num_ranks=2, **options).sources[0]
    starts = [source.begin(epoch).start for epoch in range(8)]
    assert {len(set(source.passes.lengths(start).tolist())) for start in starts} == {1, 2}
    for start in starts:
        mark = Mark(start=start, taken=500)
        assert source.passes.places(mark, [0, 1]) == [place_by_walking(source, mark, rank) for rank in (0, 1)]


@dataclass
class NotedStrategy:
    """Files round and round; notes the epochs that it is asked for."""

    epochs: list[int] = field(default_factory=list, repr=False)

    def generate(self, files, num_workers, epoch, num_ranks, rank):
        self.epochs.append(epoch)
        return TargetSizeSplitStrategy(target_rows=3).generate(files, num_workers, epoch, num_ranks, rank)


def test_passes_that_may_differ_are_planned_once_for_all_ranks(tables):
    strategy = NotedStrategy()
    options = {"source_options": {**WITHOUT_DEAL, "split_strategy": strategy}, "weights": (1,)}
    source = make(tables[2:], batch_sizes=(1,), num_ranks=3, **options).sources[0]
    other = make(tables[2:], batch_sizes=(1,), num_ranks=2, **options).sources[0]
    strategy.epochs.clear()
    assert other.passes.under_present_topology(Mark(start=source.begin(0).start, taken=20 * 2 + 1)).passes == 20
    # generate() is asked for each of the three ranks.
    assert Counter(strategy.epochs) == {number * 2**32: 3 for number in range(21)}


def test_a_place_a_billion_passes_on_is_found_without_walking_there(tables):
    source = make(tables[2:], weights=(1,), batch_sizes=(1,), num_ranks=3).sources[0]
    mark = Mark(start=source.begin(7).start, taken=10**9 * 2 + 1)
    wanted = replace(source.begin(7).start, epoch=7 + 10**9 * 2**32)
    assert source.passes.places(mark, range(3)) == [RankPlace(start=wanted, number=10**9, items=1)] * 3


@pytest.mark.filterwarnings("ignore:Ranks take different numbers of steps")
def test_whole_batches_in_different_passes_of_a_source_stay_on_their_topology(tables):
    options = {"stop": "all_exhausted", "source_options": {"rank_sharding": "chunks", "split_rows": 4}}
    loader = make(tables[:2], num_ranks=2, batch_sizes=(4, 4), weights=(1, 1), **options)
    for batch in loader:
        check_batch(batch)
        state = loader.state_dict()
        if state["steps"] == 5:
            break
    elsewhere = make(tables[:2], num_ranks=1, batch_sizes=(4, 4), weights=(1, 1), **options)
    says = (
        "Source 1 of the blend has begun another pass on some ranks only, and its topology was 2 ranks × 1 worker, "
        "batch 4, here it is 1 rank × 1 worker, batch 4. Resume on num_ranks=2, num_workers=1, batch_size=4, "
        "drop_last=False, which alone fits"
    )
    with pytest.raises(CheckpointMismatchError, match=says):
        elsewhere.load_state_dict(state)


def test_epochs_and_passes_have_orders_of_their_own(tables):
    loader = make(tables, stop="all_exhausted")
    epochs = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        epochs.append(rows_of(loader))
        assert loader.state_dict()["epoch"] == epoch + 1
    assert epochs[0] != epochs[1]
    small = [row for batch in epochs[0] for row in batch if source_of(row) == 2]
    assert len(small) > SIZES[2]
    assert sorted(small[: SIZES[2]]) == sorted(set(small))
    assert small[: SIZES[2]] != small[SIZES[2] : 2 * SIZES[2]]
    loader.set_epoch(0)
    assert rows_of(loader) == epochs[0]


def test_a_broken_pass_begins_again_and_a_loaded_epoch_keeps_its_place(tables):
    loader = make(tables)
    whole = rows_of(loader)
    for batch in loader:
        assert check_batch(batch) == whole[0]
        break
    state = loader.state_dict()
    assert state["steps"] == 1
    assert rows_of(loader) == whole
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert rows_of(loader) == whole[1:]
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert len(rows_of(loader)) == len(whole)


def test_a_pass_that_was_left_says_nothing_of_where_the_blend_stands(tables):
    loader = make(tables)
    left = iter(loader)
    next(left)
    loader.set_epoch(1)
    next(left)
    assert loader.state_dict()["epoch"] == 1
    present = iter(loader)
    next(present)
    next(left)
    assert (loader.state_dict()["epoch"], loader.state_dict()["steps"]) == (1, 1)


def test_states_of_others_are_refused(tables, tmp_path):
    begun = make(tables)
    next(iter(begun))
    state = begun.state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"[Ww]eights.*5.0.*1.0"):
        make(tables, weights=(1, 1, 1)).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match=r"its blend is .*with the weights and options"):
        make([*tables, tables[0]], batch_sizes=(4, 4, 4, 4), weights=(5, 3, 1, 1)).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="checksum"):
        make(tables).load_state_dict({**state, "epoch": 4})
    for other in (make(tables).sources[0].loader.state_dict(), {"version": 2, "checksum": ""}, {1: 2, "a": 3}, None):
        with pytest.raises(CheckpointMismatchError, match="Not a state of a blend"):
            make(tables).load_state_dict(other)
    with pytest.raises(CheckpointMismatchError, match="has version 9, this library reads version"):
        make(tables).load_state_dict({**state, "version": 9, "order": []})
    write_table(tmp_path, [[9]])
    with pytest.raises(CheckpointMismatchError, match=r"Source 2 of the blend: .*data fingerprint"):
        make([*tables[:2], scan_files(str(tmp_path))]).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", -1),
        ("steps", 1.5),
        ("counts", [1]),
        ("counts", [1, 2, -3]),
        ("sources", [1, 2, 3]),
        ("topology", {}),
        ("topology", 5),
        ("passes", "1"),
        ("taken", -1),
    ],
)
def test_a_state_whose_values_no_blend_writes_is_refused_though_its_checksum_fits(tables, name, value):
    state = make(tables).state_dict()
    place = state if name in state else state["sources"][1]
    place[name] = value
    del state["checksum"]
    with pytest.raises(CheckpointMismatchError, match=f"says {name}=.*no loader writes"):
        make(tables).load_state_dict(sealed(state))


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_rows_of_every_output_format_mix(tables, output_format):
    loader = make(tables, per="sample", batch_size=10, stop=3, source_options={"output_format": output_format})
    for batch in loader:
        rows = batch["row"].to_pylist() if output_format == "arrow" else list(batch["row"])
        names = batch["name"].to_pylist() if output_format == "arrow" else batch["name"]
        assert len(rows) == 10
        assert list(names) == [f"row-{row}" for row in rows]


@pytest.mark.processes
@pytest.mark.parametrize(("stop", "persistent_workers"), [(6, False), ("all_exhausted", True)])
def test_sources_with_worker_processes(tables, stop, persistent_workers):
    threads = make(tables, stop=stop)
    options = {"num_workers": 1, "persistent_workers": persistent_workers}
    processes = make(tables, stop=stop, source_options=options)
    for loader in threads, processes:
        next(iter(loader))  # a pass that is left
        loader.load_state_dict(loader.state_dict())
    for _ in range(2):
        assert rows_of(processes) == rows_of(threads)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sources_decode_ahead_their_shares_of_what_each_would_alone(tables, num_workers):
    inventory = tables[0]
    group_bytes = int(inventory.groups.projected_bytes.max())
    alone_bytes = 100 * group_bytes

    def loader(**options):
        return StructuredDataset.create_dataloader(
            "", inventory=inventory, batch_size=4, num_workers=num_workers, **options
        )[0]

    loaders = [loader(decoding=Decoding(ahead_bytes=alone_bytes)) for _ in range(3)]
    for _ in range(2):  # another blend of them takes no part of a part
        blend(loaders, [5.0, 4.0, 1e-6], stop=1)
        ahead = [each.decode_ahead_bytes for each in loaders]
        # The row group in use and the next one, in each worker, are the least.
        assert ahead == pytest.approx(
            [55 * group_bytes, 44 * group_bytes, 2 * group_bytes * max(1, num_workers)], rel=0.02
        )
    small = loader(decoding=Decoding(ahead_bytes=group_bytes))
    blend([small, loader()], [1, 1])
    assert small.decode_ahead_bytes == group_bytes


def keep_odd(batch):
    return {"row": batch["row"][batch["row"] % 2 == 1]}


def repeat_rows(batch):
    return {"row": batch["row"].repeat(2)}


def lose_one_at_the_end(batch):
    return {"row": batch["row"] if len(batch["row"]) == 4 else batch["row"][1:]}


@pytest.mark.parametrize("function", [keep_odd, repeat_rows, lose_one_at_the_end])
def test_samples_of_a_function_that_changes_how_many_rows_there_are_are_refused(tables, function):
    loader = make(tables, per="sample", stop="all_exhausted", source_options={"transform": function})
    with pytest.raises(ConfigError, match=r"Source \d of the blend delivered \d rows where \d were planned .*filters="):
        list(loader)
    assert list(make(tables, source_options={"transform": function}))  # whole batches may have any number of rows


def test_a_device_prefetcher_gives_the_state_of_what_it_gave(tables):
    loader = make(tables)
    whole = rows_of(loader)
    ahead = DevicePrefetcher(loader, "cpu")
    batches = iter(ahead)
    received = [check_batch(next(batches)) for _ in range(3)]
    resumed = make(tables)
    resumed.load_state_dict(ahead.state_dict())
    assert received + rows_of(resumed) == whole


def test_a_loader_with_a_loaded_position_is_no_source(tables):
    loader = make(tables).sources[0].loader
    next(iter(loader))
    blend([loader], [1])  # a pass that was left leaves no position
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ConfigError, match="Source 0 of the blend is in the middle of an epoch"):
        blend([loader], [1])


def test_what_cannot_be_blended_is_refused(tables):
    good = make(tables).sources[0].loader
    for sources, weights, error in [
        ([], [], ConfigError),
        ([good], [1, 2], ConfigError),
        ([good, good], [1, 1], ConfigError),
        ([[1, 2]], [1], ConfigTypeError),
        ([good, make(tables, num_ranks=2).sources[1].loader], [1, 1], ConfigError),
    ]:
        with pytest.raises(error):
            blend(sources, weights)
    with pytest.raises(ConfigTypeError, match="weights is a set, and its order differs"):
        blend([], {0.3, 0.7})  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match="sources=5: pass a list of loaders"):
        blend(5, [1])
    with pytest.raises(ConfigTypeError, match="drop_last='no': pass True or False"):
        blend([good], [1], per="sample", drop_last="no")
    with pytest.raises(ConfigError, match="drop_last is for"):
        blend([good], [1], drop_last=True)
    with pytest.raises(ConfigTypeError, match=r"pass a list, or WeightSchedule\(\{0: \[1\]\}\)"):
        blend([good], {0: [1]})
    with pytest.raises(ConfigError, match="batch_size is for"):
        blend([good], [1], batch_size=3)
    odd = make(tables, source_options={"transform": list}).sources[1].loader
    with pytest.raises(ConfigTypeError, match="gives list batches"):
        rows_of(blend([good, odd], [1, 1], per="sample"))
    narrow = make(tables, source_options={"columns": ["row"]}).sources[1].loader
    with pytest.raises(ConfigError, match="have batches with different columns"):
        rows_of(blend([good, narrow], [1, 1], per="sample"))


TOKENS = {"token_batches": TokenBatches("row", max_tokens=9_000)}


def test_batches_of_so_many_tokens_blend_whole_and_resume(tables):
    whole = rows_of(make(tables, num_ranks=2, rank=1, source_options=TOKENS))
    assert {len(rows) for rows in whole if rows[0] >= 1_000} <= {1, 2, 3, 4}
    loader = make(tables, num_ranks=2, rank=1, source_options=TOKENS)
    batches = iter(loader)
    received = [check_batch(next(batches)) for _ in range(4)]
    resumed = make(tables, num_ranks=2, rank=1, source_options=TOKENS)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert received + rows_of(resumed) == whole
    with pytest.raises(ConfigError, match="max_tokens"):
        make(tables, source_options=TOKENS, per="sample")
