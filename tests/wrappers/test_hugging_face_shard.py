"""`streaming_shard` over real Hugging Face data sets."""

import collections
import contextlib
import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.effort import effort
from tests.wrappers.streams import oracle_shard
from torch_dataloader_utils.errors import CheckpointMismatchError, RowCountError
from torch_dataloader_utils.wrappers import streaming_shard

datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")

# More workers than files, and than cores, on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

TAILS = {"pad": {}, "keep": {"even_batches": False}, "drop": {"drop_last": True}}


def rows_of(files):
    for file in files:
        for row in range(*file):
            yield {"id": row}


def generated(sizes):
    """A stream of rows 0, 1, … in one file for each size."""
    bounds = [(sum(sizes[:index]), sum(sizes[: index + 1])) for index in range(len(sizes))]
    return datasets.IterableDataset.from_generator(rows_of, gen_kwargs={"files": bounds})


@pytest.fixture(scope="module")
def parquet_stream(tmp_path_factory):
    """50 rows in three Parquet files with row groups of 7."""
    folder = tmp_path_factory.mktemp("parquet")
    paths = []
    for start, stop in ((0, 18), (18, 25), (25, 50)):
        paths.append(str(folder / f"{start:02}.parquet"))
        pq.write_table(pa.table({"id": range(start, stop)}), paths[-1], row_group_size=7)
    return datasets.IterableDataset.from_parquet(paths)


def ids(stream):
    return [row["id"] for row in stream]


def check_resume(make, counts):
    """A stream saved after each of these numbers of rows goes on with exactly the rest."""
    whole = ids(make())
    for count in sorted(counts):
        stream = make()
        rows = iter(stream)
        part = [next(rows)["id"] for _ in range(count)]
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert part + ids(resumed) == whole, count


def contents(stream, num_shards, **options):
    return [ids(streaming_shard(stream, num_shards, index, **options)) for index in range(num_shards)]


def test_one_file_is_divided_item_by_item():
    assert contents(generated([8]), 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert contents(generated([10]), 4) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_rows_go_round_robin_whatever_the_files():
    assert contents(generated([7, 1, 1, 1]), 2) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_map_after_the_cut_runs_for_kept_rows_only():
    calls = collections.Counter()

    def transform(rank, row):
        calls[rank] += 1
        return {"id": row["id"]}

    for rank in range(4):
        shard = streaming_shard(generated([40]), 4, rank)
        mapped = shard.map(lambda row, rank=rank: transform(rank, row))
        assert ids(mapped) == list(range(rank, 40, 4))
    assert calls == dict.fromkeys(range(4), 10)


def test_images_of_other_shards_are_not_decoded():
    def rows():
        yield {"image": {"bytes": b"no image", "path": None}, "id": 0}
        yield {"image": None, "id": 1}

    features = datasets.Features({"image": datasets.Image(), "id": datasets.Value("int64")})
    stream = datasets.IterableDataset.from_generator(rows, features=features)
    assert ids(streaming_shard(stream, 2, 1)) == [1]


@settings(max_examples=effort(60), deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 2),
)
def test_every_row_once_whatever_the_files_and_the_epoch(sizes, num_shards, epoch):
    seen = collections.Counter()
    for index in range(num_shards):
        shard = streaming_shard(generated(sizes), num_shards, index)
        shard.set_epoch(epoch)
        seen.update(ids(shard))
    assert seen == collections.Counter(range(sum(sizes)))


@settings(max_examples=effort(40), deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(sorted(TAILS)),
)
def test_batch_mode_has_the_order_of_the_oracle(sizes, num_shards, batch_size, tail):
    rows = list(range(sum(sizes)))
    assert contents(generated(sizes), num_shards, batch_size=batch_size, **TAILS[tail]) == [
        oracle_shard(rows, num_shards, index, batch_size, tail) for index in range(num_shards)
    ]


def test_tables_are_cut_as_rows_are(parquet_stream):
    assert contents(parquet_stream, 4) == [list(range(index, 50, 4)) for index in range(4)]
    kept = streaming_shard(parquet_stream, 4, 1, batch_size=3, even_batches=False)
    assert ids(kept) == oracle_shard(list(range(50)), 4, 1, 3, "keep")
    tables = streaming_shard(parquet_stream.with_format("arrow"), 4, 3)
    assert [table["id"].to_pylist() for table in tables.iter(100)] == [list(range(3, 50, 4))]


def test_contiguous_spans_of_a_declared_length(parquet_stream):
    assert contents(parquet_stream, 4, contiguous=True, length=50) == [
        list(range(13)),
        list(range(13, 26)),
        list(range(26, 38)),
        list(range(38, 50)),
    ]


def test_a_span_that_has_ended_stays_at_its_end_and_notices_more_rows_than_declared(parquet_stream):
    options = {"batch_size": 4, "drop_last": True, "contiguous": True}
    shard = streaming_shard(parquet_stream, 4, 3, length=50, **options)
    assert ids(shard) == list(range(36, 48))
    again = streaming_shard(parquet_stream, 4, 3, length=50, **options)
    again.load_state_dict(shard.state_dict())
    assert ids(again) == []
    with pytest.raises(RowCountError, match="more than the 49 items"):
        ids(streaming_shard(parquet_stream, 4, 3, length=49, **options))


@pytest.mark.parametrize("kind", ["generator", "parquet"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": 3, "even_batches": False},
        {"contiguous": True, "length": 50},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_mapped", [False, True])
def test_resume_is_exact(parquet_stream, kind, options, is_mapped):
    def make():
        source = parquet_stream if kind == "parquet" else generated([18, 7, 25])
        shard = streaming_shard(source, 2, 0, **options)
        return shard.map(lambda row: {"id": row["id"]}) if is_mapped else shard

    num_rows = len(ids(make()))
    # Around the borders of files, row groups and rounds, and at the end.
    check_resume(make, {1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 18, num_rows - 1, num_rows})


@pytest.fixture
def ends_at_once(monkeypatch):
    """`datasets` sleeps for seconds after each shuffled pass."""
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)


@pytest.mark.usefixtures("ends_at_once")
@pytest.mark.parametrize("kind", ["generator", "parquet"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_resume_is_exact_after_a_shuffle_before_the_cut(parquet_stream, kind, epoch):
    def make():
        source = parquet_stream if kind == "parquet" else generated([18, 7, 25])
        shard = streaming_shard(source.shuffle(seed=5, buffer_size=8), 2, 0)
        shard.set_epoch(epoch)
        return shard.map(lambda row: {"id": row["id"]})

    check_resume(make, {1, 13, len(ids(make()))})


@pytest.mark.usefixtures("ends_at_once")
def test_a_state_of_a_stream_that_was_not_shuffled_is_refused_by_one_that_is():
    source = generated([10, 10])
    shard = streaming_shard(source, 2, 0)
    next(iter(shard))
    other = streaming_shard(source.shuffle(seed=5, buffer_size=8), 2, 0)
    other.load_state_dict(shard.state_dict())
    with pytest.raises(CheckpointMismatchError, match="without a shuffle"):
        list(other)


@pytest.mark.usefixtures("ends_at_once")
def test_a_shuffled_shard_that_is_cut_again_resumes_exactly():
    def make():
        return streaming_shard(streaming_shard(generated([20, 30]).shuffle(seed=5, buffer_size=8), 2, 1), 2, 0)

    check_resume(make, {5})


def test_resume_reads_on_and_does_not_start_over():
    num_read = 0

    def rows(files):
        nonlocal num_read
        for file in files:
            for row in range(*file):
                num_read += 1
                yield {"id": row}

    stream = datasets.IterableDataset.from_generator(rows, gen_kwargs={"files": [(0, 500), (500, 1000)]})
    shard = streaming_shard(stream, 4, 1)
    taken = iter(shard)
    for _ in range(200):
        next(taken)
    resumed = streaming_shard(stream, 4, 1)
    resumed.load_state_dict(shard.state_dict())
    num_read = 0
    assert next(iter(resumed))["id"] == 801
    # `datasets` can only re-enter a generator by stepping over its rows; the file before it is not read again.
    assert num_read == 302


@pytest.mark.slow
def test_a_state_is_of_its_own_rank_or_right_on_others(parquet_stream):
    for stream in (parquet_stream, generated([18, 7, 25])):
        for options in ({"batch_size": 3, "drop_last": True}, {"batch_size": 3}, {}):
            wholes = contents(stream, 3, **options)
            for taken in range(1, 10):
                shard = streaming_shard(stream, 3, 0, **options)
                rows = iter(shard)
                for _ in range(taken):
                    next(rows)
                for index in (1, 2):
                    resumed = streaming_shard(stream, 3, index, **options)
                    resumed.load_state_dict(json.loads(json.dumps(shard.state_dict())))
                    with contextlib.suppress(CheckpointMismatchError):
                        assert ids(resumed) == wholes[index][taken:]


def test_a_state_of_another_shard_of_tables_says_so(parquet_stream):
    shard = streaming_shard(parquet_stream, 4, 0)
    next(iter(shard))
    other = streaming_shard(parquet_stream, 4, 1)
    other.load_state_dict(shard.state_dict())
    with pytest.raises(CheckpointMismatchError, match="load each on its own"):
        list(other)


@pytest.mark.parametrize("num_shards", [2, 3])
def test_a_state_of_another_number_of_shards_is_refused(num_shards):
    shard = streaming_shard(generated([5, 5, 5, 5]), 4, 0)
    next(iter(shard))
    other = streaming_shard(generated([5, 5, 5, 5]), num_shards, 0)
    other.load_state_dict(shard.state_dict())
    with pytest.raises(CheckpointMismatchError, match="Shard with the same options, into as many"):
        list(other)


def test_batches_dropped_at_an_end_are_dropped_once():
    stream = generated([5, 5, 5]).map(lambda rows: rows, batched=True, batch_size=4, drop_last_batch=True)
    assert sorted(itertools.chain(*contents(stream, 3))) == ids(stream) == list(range(12))


def test_a_state_of_other_options_is_refused():
    shard = streaming_shard(generated([20]), 2, 0)
    next(iter(shard))
    for other in (streaming_shard(generated([20]), 4, 0), streaming_shard(generated([20]), 2, 0, batch_size=2)):
        other.load_state_dict(shard.state_dict())
        with pytest.raises(CheckpointMismatchError, match="Shard with the same options, into as many"):
            list(other)


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("num_shards", [2, 3])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_ranks_times_workers_have_no_duplicates(num_shards, num_workers):
    seen = collections.Counter()
    for index in range(num_shards):
        shard = streaming_shard(generated([9, 4, 6, 11, 3]), num_shards, index)
        loader = DataLoader(shard, batch_size=None, num_workers=num_workers)
        seen.update(int(row["id"]) for row in loader)
    assert seen == collections.Counter(range(33))


def test_shuffle_before_and_after_the_cut_keeps_every_row():
    for before in (True, False):
        seen = collections.Counter()
        for index in range(3):
            stream = generated([10, 10, 5, 6])
            if before:
                stream = stream.shuffle(seed=7, buffer_size=8)
            shard = streaming_shard(stream, 3, index)
            if not before:
                shard = shard.shuffle(seed=7, buffer_size=8)
            shard.set_epoch(1)
            seen.update(ids(shard))
        assert seen == collections.Counter(range(31))


def test_steps_that_choose_rows_by_position_are_sharded_after_them():
    seen = collections.Counter()
    for index in range(2):
        seen.update(ids(streaming_shard(generated([5, 5, 5, 5]).take(10), 2, index)))
    assert seen == collections.Counter(range(10))


def test_nested_shards_keep_every_row():
    seen = collections.Counter()
    for outer in range(2):
        for inner in range(3):
            seen.update(ids(streaming_shard(streaming_shard(generated([7, 8, 9]), 2, outer), 3, inner)))
    assert seen == collections.Counter(range(24))


def test_a_map_style_dataset_gives_a_selection():
    table = datasets.Dataset.from_dict({"id": range(10)})
    shard = streaming_shard(table, 2, 1, batch_size=2)
    assert isinstance(shard, datasets.Dataset)
    assert (shard["id"][:], len(shard)) == ([2, 3, 6, 7, 0, 1], 6)
    assert contents(table, 4, contiguous=True) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


def test_features_and_format_stay():
    features = datasets.Features({"id": datasets.Value("int32")})
    stream = datasets.IterableDataset.from_generator(
        rows_of, gen_kwargs={"files": [(0, 4)]}, features=features
    ).with_format("torch")
    shard = streaming_shard(stream, 2, 1)
    assert shard.features == features
    assert [row["id"].tolist() for row in shard] == [1, 3]
