"""`streaming_shard` over plain streams: which items, in which order, how often a transform runs."""

import collections
import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.effort import effort
from tests.wrappers.streams import PlainStream, oracle_shard
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, RowCountError
from torch_dataloader_utils.wrappers import SupportsRowSharding, streaming_shard

# More workers than cores, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# (items, batch_size, shards, drop_last, split_batches) -> items of each shard: observed with IterableDatasetShard.
ACCELERATE_ORDERS = [
    ((10, 2, 2, False, False), [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]]),
    ((10, 2, 2, True, False), [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ((10, 4, 2, False, True), [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]]),
    ((10, 4, 2, True, True), [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ((3, 2, 2, False, False), [[0, 1], [2, 0]]),
    ((3, 2, 2, True, False), [[], []]),
    ((1, 4, 2, False, True), [[0, 0], [0, 0]]),
]

# (items, batch_size, shards, drop_last, split_batches, even_batches): observed with BatchSamplerShard.
BATCH_SAMPLER_ORDERS = [
    ((10, 2, 2, False, False, True), [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]]),
    ((10, 2, 2, False, False, False), [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7]]),
    ((10, 2, 2, True, False, True), [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ((7, 2, 2, False, False, True), [[0, 1, 4, 5], [2, 3, 6, 0]]),
    ((7, 2, 2, False, False, False), [[0, 1, 4, 5], [2, 3, 6]]),
    ((10, 4, 2, False, True, True), [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]]),
    ((10, 4, 2, False, True, False), [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7]]),
    ((3, 2, 2, False, False, True), [[0, 1], [2, 0]]),
    ((3, 2, 2, False, False, False), [[0, 1], [2]]),
    ((5, 2, 4, False, False, True), [[0, 1], [2, 3], [4, 0], [1, 2]]),
    ((5, 2, 4, False, False, False), [[0, 1], [2, 3], [4], []]),
    ((2, 3, 2, False, False, True), [[0, 1, 0], [1, 0, 1]]),
    ((2, 4, 2, False, True, True), [[0, 1], [0, 1]]),
]


def shards(dataset, num_shards, **options):
    return [streaming_shard(dataset, num_shards, index, **options) for index in range(num_shards)]


def contents(dataset, num_shards, **options):
    return [list(shard) for shard in shards(dataset, num_shards, **options)]


def test_sample_mode_gives_items_round_robin():
    assert contents(range(8), 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert contents(range(10), 4) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


@pytest.mark.parametrize(("case", "wanted"), ACCELERATE_ORDERS)
def test_batch_mode_has_the_order_of_iterable_dataset_shard_and_its_true_length(case, wanted):
    count, batch_size, num_shards, drop_last, split_batches = case
    every_shard = shards(
        range(count), num_shards, batch_size=batch_size, drop_last=drop_last, split_batches=split_batches
    )
    assert [list(shard) for shard in every_shard] == wanted
    assert [len(shard) for shard in every_shard] == [len(items) for items in wanted]


@pytest.mark.cases(3)
@pytest.mark.parametrize(("case", "wanted"), BATCH_SAMPLER_ORDERS)
def test_even_batches_means_what_it_means_for_batch_sampler_shard(case, wanted):
    count, batch_size, num_shards, drop_last, split_batches, even_batches = case
    options = {"batch_size": batch_size, "drop_last": drop_last, "split_batches": split_batches}
    every_shard = shards(range(count), num_shards, even_batches=even_batches, **options)
    assert [list(shard) for shard in every_shard] == wanted
    assert [len(shard) for shard in every_shard] == [len(items) for items in wanted]


@pytest.mark.parametrize(
    ("count", "last_batches"),
    [(21, [[18, 19, 20], [0, 1, 2]]), (22, [[18, 19, 20], [21, 0, 1]]), (20, [[18, 19, 0], [1, 2, 3]])],
)
def test_last_batches_are_filled_from_the_start(count, last_batches):
    assert [items[-3:] for items in contents(range(count), 2, batch_size=3)] == last_batches


def test_contiguous_spans_differ_by_at_most_one():
    assert contents(range(10), 4, contiguous=True) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert contents(range(10), 4, contiguous=True, drop_last=True) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert contents(range(10), 4, contiguous=True, even_batches=True) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]


options_of_a_cut = st.fixed_dictionaries(
    {"batch_size": st.none() | st.integers(1, 4), "drop_last": st.booleans(), "even_batches": st.booleans()}
)


@settings(max_examples=effort(150), deadline=None)
@given(st.integers(0, 40), st.integers(1, 7), options_of_a_cut, st.booleans())
def test_shards_agree_with_the_oracle(count, num_shards, options, contiguous):
    run_items = options["batch_size"] or 1
    tail = "drop" if options["drop_last"] else "pad" if options["even_batches"] else "keep"
    every_shard = shards(list(range(count)), num_shards, contiguous=contiguous, **options)
    given_items = [list(shard) for shard in every_shard]
    assert [len(items) for items in given_items] == [len(shard) for shard in every_shard]
    if not contiguous:
        assert given_items == [
            oracle_shard(list(range(count)), num_shards, index, run_items, tail) for index in range(num_shards)
        ]
    flat = [item for items in given_items for item in items]
    group_items = num_shards * run_items
    if tail == "keep":
        assert sorted(flat) == list(range(count))
    elif tail == "drop":
        assert sorted(flat) == list(range(count // group_items * group_items))
    else:
        assert len(flat) == -(-count // group_items) * group_items
        assert set(flat) == set(range(count))
        assert {len(items) for items in given_items} == {len(flat) // num_shards}
    if contiguous and tail != "pad":
        assert flat == sorted(flat)


@settings(max_examples=effort(80), deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), options_of_a_cut)
def test_split_batches_is_the_same_cut_with_a_smaller_run(count, num_shards, options):
    run_items = options.pop("batch_size") or 1
    split = contents(range(count), num_shards, batch_size=run_items * num_shards, split_batches=True, **options)
    assert split == contents(range(count), num_shards, batch_size=run_items, **options)


def test_a_transform_after_the_cut_runs_for_kept_items_only():
    class Transformed(IterableDataset):
        def __init__(self, source):
            self.source, self.num_calls = source, 0

        def __iter__(self):
            for item in self.source:
                self.num_calls += 1
                yield item * 10

    ranks = [Transformed(shard) for shard in shards(range(1000), 8)]
    everything = sorted(item for rank in ranks for item in rank)
    assert everything == [item * 10 for item in range(1000)]
    assert [rank.num_calls for rank in ranks] == [125] * 8


def test_contiguous_reads_nothing_behind_its_span():
    source = PlainStream(100)
    assert list(streaming_shard(source, 10, 2, contiguous=True, length=100)) == list(range(20, 30))
    assert source.num_read == 30


def test_generator_function_starts_anew_every_epoch():
    shard = streaming_shard(lambda: (item for item in range(5)), 2, 0)
    assert [list(shard), list(shard)] == [[0, 2, 4], [0, 2, 4]]


def test_a_generator_is_refused_because_it_is_empty_in_the_second_epoch():
    with pytest.raises(ConfigTypeError, match="Give the function"):
        streaming_shard((item for item in range(5)), 2, 0)


def test_a_map_style_dataset_is_sent_to_sharded_dataset():
    class MapStyle(Dataset):
        def __getitem__(self, index):
            return index

    with pytest.raises(ConfigTypeError, match="ShardedDataset"):
        streaming_shard(MapStyle(), 2, 0)


def test_length_of_an_unsized_source_is_a_type_error_as_len_gives_it():
    shard = streaming_shard(PlainStream(4), 2, 0)
    with pytest.raises(TypeError, match="PlainStream has no length"):
        len(shard)
    assert list(shard) == [0, 2]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 0), {}, "Shard 0 of 0"),
        ((2, 2), {}, "Shard 2 of 2"),
        ((2, -1), {}, "Shard -1 of 2"),
        ((2, 0), {"batch_size": 0}, "batch_size=0"),
        ((2, 0), {"split_batches": True}, "multiple of 2"),
        ((2, 0), {"split_batches": True, "batch_size": 3}, "multiple of 2"),
        # accelerate lets this one pass, gives nothing on any process and reports a length of 2.
        ((2, 0), {"split_batches": True, "batch_size": 1}, "multiple of 2"),
    ],
)
def test_impossible_options_are_refused(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        streaming_shard(range(4), *arguments, **options)


@pytest.mark.parametrize(
    "option", ["split_batches", "drop_last", "even_batches", "contiguous", "source_splits_workers"]
)
def test_an_option_that_is_on_or_off_takes_no_text(option):
    with pytest.raises(ConfigTypeError, match=f"{option}='no': pass True or False"):
        streaming_shard(PlainStream(8), 2, 0, batch_size=4, **{option: "no"})


def test_an_epoch_below_0_is_refused():
    shard = streaming_shard(PlainStream(8), 2, 0)
    with pytest.raises(ConfigError, match="epoch=-1: pass a whole number of at least 0"):
        shard.set_epoch(-1)
    assert shard.state_dict()["epoch"] == 0


def test_contiguous_without_a_length_is_refused_and_with_a_wrong_one_noticed():
    with pytest.raises(ConfigTypeError, match="length="):
        streaming_shard(PlainStream(4), 2, 0, contiguous=True)
    with pytest.raises(RowCountError, match="ended after 4 items, 10 were declared"):
        list(streaming_shard(PlainStream(4), 2, 0, contiguous=True, length=10))


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True}])
@pytest.mark.parametrize("declared", [0, 1, 6, 7, 8])
def test_the_last_contiguous_shard_notices_a_length_that_is_too_short(options, declared):
    def read(num_items):
        shards = [
            streaming_shard(PlainStream(num_items), 3, rank, contiguous=True, length=declared, **options)
            for rank in range(3)
        ]
        return [list(shard) for shard in shards[:-1]], lambda: list(shards[-1])

    for surplus in (1, 5):
        _, read_last = read(declared + surplus)
        with pytest.raises(RowCountError, match=f"more than the {declared} items that were declared"):
            read_last()
    others, read_last = read(declared)
    assert [*others, read_last()] == [
        list(streaming_shard(list(range(declared)), 3, rank, contiguous=True, **options)) for rank in range(3)
    ]


def test_the_length_of_a_contiguous_shard_is_checked_where_it_is_given():
    for wrong, error in ((-2, ConfigError), (2.0, ConfigTypeError), ("2", ConfigTypeError), (True, ConfigTypeError)):
        with pytest.raises(error, match=f"length={wrong!r}: pass a whole number of at least 0"):
            streaming_shard(PlainStream(4), 2, 0, contiguous=True, length=wrong)
    with pytest.raises(ConfigError, match=r"length=3, and the list has 4 items\. Leave length out"):
        streaming_shard([1, 2, 3, 4], 2, 0, contiguous=True, length=3)
    assert list(streaming_shard([1, 2, 3, 4], 2, 1, contiguous=True, length=4)) == [3, 4]


def test_set_epoch_reaches_the_source():
    shard = streaming_shard(PlainStream(4), 2, 1)
    shard.set_epoch(2)
    assert list(shard) == [2001, 2003]


def test_a_source_with_a_generator_is_seeded_with_the_epoch_from_the_first_on():
    class Shuffled(IterableDataset):
        def __init__(self):
            self.generator = torch.Generator()

        def __iter__(self):
            return iter(torch.randperm(20, generator=self.generator).tolist())

    ranks = shards(Shuffled(), 2)
    first = [list(rank) for rank in ranks]
    assert sorted(first[0] + first[1]) == list(range(20))
    for rank in ranks:
        rank.set_epoch(1)
    second = [list(rank) for rank in ranks]
    assert sorted(second[0] + second[1]) == list(range(20))
    assert first != second


def test_nested_shards_are_cut_one_in_the_other():
    nested = [streaming_shard(outer, 3, index) for outer in shards(range(20), 2) for index in range(3)]
    given_items = [list(shard) for shard in nested]
    assert given_items[:3] == [[0, 6, 12, 18], [2, 8, 14], [4, 10, 16]]
    assert sorted(itertools.chain(*given_items)) == list(range(20))


def test_a_dataset_that_shards_itself_is_asked_for_its_rows():
    class Rows:
        def shard_rows(self, num_shards, index, contiguous):
            return ("rows", num_shards, index, contiguous)

    assert isinstance(Rows(), SupportsRowSharding)
    assert streaming_shard(Rows(), 4, 3, contiguous=True) == ("rows", 4, 3, True)
    with pytest.raises(ConfigError, match="makes its own batches"):
        streaming_shard(Rows(), 4, 3, batch_size=2)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("tail", [{}, {"even_batches": False}, {"drop_last": True}])
def test_batches_of_workers_are_those_of_one_process(num_workers, tail):
    for shard in shards(list(range(23)), 2, batch_size=3, **tail):
        alone = [batch.tolist() for batch in DataLoader(shard, batch_size=3)]
        together = [batch.tolist() for batch in DataLoader(shard, batch_size=3, num_workers=num_workers)]
        assert together == alone


@pytest.mark.processes
@pytest.mark.parametrize("is_nested", [False, True])
def test_ranks_times_workers_have_no_duplicates(is_nested):
    seen = collections.Counter()
    for index in range(3):
        shard = streaming_shard(list(range(50)), 3, index)
        parts = shards(shard, 2) if is_nested else [shard]
        for part in parts:
            seen.update(DataLoader(part, batch_size=None, num_workers=2))
    assert seen == collections.Counter(range(50))


@pytest.mark.processes
def test_a_source_that_divides_among_workers_itself_is_not_divided_twice():
    class WorkerAware(IterableDataset):
        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            return iter(range(info.id, 20, info.num_workers))

    ranks = shards(WorkerAware(), 2, source_splits_workers=True)
    seen = [item for rank in ranks for item in DataLoader(rank, batch_size=None, num_workers=2)]
    assert sorted(seen) == list(range(20))


@pytest.mark.processes
def test_set_epoch_reaches_persistent_workers():
    shard = streaming_shard(PlainStream(8), 2, 0)
    loader = DataLoader(shard, batch_size=None, num_workers=2, persistent_workers=True)
    epochs = []
    for epoch in range(3):
        shard.set_epoch(epoch)
        epochs.append(sorted(loader))
    del loader
    assert epochs == [[epoch * 1000 + item for item in (0, 2, 4, 6)] for epoch in range(3)]


def test_a_copy_has_an_epoch_of_its_own():
    shard = streaming_shard(PlainStream(2), 1, 0)
    twin = copy.deepcopy(shard)
    twin.set_epoch(1)
    assert [list(shard), list(twin)] == [[0, 1], [1000, 1001]]


@pytest.mark.processes
def test_a_stream_in_the_middle_of_a_pass_goes_to_spawned_workers_as_new():
    shard = streaming_shard(PlainStream(6), 2, 1)
    shard.set_epoch(1)
    items = iter(shard)
    next(items)
    loader = DataLoader(shard, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert list(loader) == [1001, 1003, 1005]
    assert next(items) == 1003
