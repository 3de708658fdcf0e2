"""A shard of a Hugging Face stream keeps exactly its rows, whatever steps of `datasets` come after the cut."""

import collections
import itertools
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

from tests.effort import effort
from tests.wrappers.streams import oracle_shard
from torch_dataloader_utils.errors import ConfigError, MissingDependencyError
from torch_dataloader_utils.wrappers import streaming_shard

datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.usefixtures("ends_at_once"),
]

FEATURES = datasets.Features({"id": datasets.Value("int64")})
TAILS = {"pad": {}, "keep": {"even_batches": False}, "drop": {"drop_last": True}}
# (what becomes of the tail, the options)
layouts = st.just(("keep", {})) | st.builds(
    lambda size, tail: (tail, {"batch_size": size, **TAILS[tail]}), st.integers(1, 3), st.sampled_from(sorted(TAILS))
)

# Another stream, of two files, that some steps put beside the first: its rows begin here.
OTHER = 1000
OTHER_SIZES = [9, 4]

PARQUET_SIZES = [18, 7, 25]


@pytest.fixture(scope="module")
def ends_at_once():
    """`datasets` sleeps for seconds after each pass of several sources."""
    patch = pytest.MonkeyPatch()
    patch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    datasets.logging.set_verbosity_error()
    yield
    datasets.logging.set_verbosity_warning()
    patch.undo()


@pytest.fixture(scope="module")
def parquet_files(tmp_path_factory):
    """Rows 0, 1, … in three files with row groups of 7."""
    folder, paths, first = tmp_path_factory.mktemp("parquet"), [], 0
    for size in PARQUET_SIZES:
        paths.append(str(folder / f"{first:02}.parquet"))
        pq.write_table(pa.table({"id": range(first, first + size)}), paths[-1], row_group_size=7)
        first += size
    return paths


@contextmanager
def inside_worker(number, num_workers):
    """The information that torch gives inside worker `number` of a DataLoader, without its process."""
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=num_workers, seed=number, dataset=None)
    try:
        yield
    finally:
        torch_worker._worker_info = None


def rows_of(files):
    for file in files:
        for row in range(*file):
            yield {"id": row}


def generated(sizes, first=0):
    """A stream of rows first, first + 1, … in one file for each size."""
    bounds = [(first + sum(sizes[:index]), first + sum(sizes[: index + 1])) for index in range(len(sizes))]
    return datasets.IterableDataset.from_generator(rows_of, features=FEATURES, gen_kwargs={"files": bounds})


def same(rows):
    return {"id": rows["id"]}


def flatten(rows):
    return {"id": list(itertools.chain(*rows["id"]))}


def mapped(data):
    return data.map(same, features=FEATURES)


BEFORE = {
    "nothing": lambda data, sizes: data,
    "map": lambda data, sizes: mapped(data),
    "shuffle": lambda data, sizes: data.shuffle(seed=3, buffer_size=6),
    "shuffle and skip": lambda data, sizes: data.shuffle(seed=3, buffer_size=6).skip(0),
    "concatenate": lambda data, sizes: datasets.concatenate_datasets(
        [generated(sizes[:1]), generated(sizes[1:] or [0], sizes[0])]
    ),
}

# (data, the shard of the other stream, rank). Seeds may differ from rank to rank after the cut.
AFTER = {
    "shuffle": lambda data, other, rank: data.shuffle(seed=rank + 1, buffer_size=5),
    "shuffle unseeded": lambda data, other, rank: data.shuffle(buffer_size=100),
    "shuffle files only": lambda data, other, rank: data.shuffle(seed=7, buffer_size=1),
    "map": lambda data, other, rank: mapped(data),
    "map batches": lambda data, other, rank: data.map(same, batched=True, batch_size=4, features=FEATURES),
    "filter": lambda data, other, rank: data.filter(lambda row: row["id"] >= 0),
    "select": lambda data, other, rank: data.select_columns(["id"]),
    "batch": lambda data, other, rank: data.batch(3).map(flatten, batched=True, features=FEATURES),
    "format": lambda data, other, rank: data.with_format("numpy"),
    "take": lambda data, other, rank: data.take(100_000),
    "skip": lambda data, other, rank: data.skip(0),
    "concatenate": lambda data, other, rank: datasets.concatenate_datasets([data, other]),
    "interleave": lambda data, other, rank: datasets.interleave_datasets(
        [other, data], stopping_strategy="all_exhausted_without_replacement"
    ),
    "reshard": lambda data, other, rank: data.reshard(),
}
chains = st.lists(st.sampled_from(sorted(AFTER)), max_size=4).filter(
    lambda steps: steps.count("concatenate") + steps.count("interleave") <= 1
)


def passes(stream, num_workers):
    """The ids of each worker, in order; one list without workers."""
    if not num_workers:
        return [[int(row["id"]) for row in stream]]
    given = []
    for number in range(num_workers):
        with inside_worker(number, num_workers):
            given.append([int(row["id"]) for row in stream])
    return given


def check_ranks(ranks, rows, tail, batch_size, num_cuts):
    """All ranks together have the rows of the stream. num_cuts: workers that cut files of their own."""
    counts = [len(given) for given in ranks]
    seen = collections.Counter(itertools.chain(*ranks))
    most_of_tails = num_cuts * (batch_size * len(ranks) - 1)
    if tail == "keep":
        assert seen == collections.Counter(rows)
        assert max(counts) - min(counts) <= num_cuts * batch_size
        return
    assert len(set(counts)) == 1
    if tail == "drop":
        assert seen <= collections.Counter(rows)
        assert len(rows) - sum(counts) <= most_of_tails
    else:
        assert set(seen) == set(rows)
        assert sum(counts) - len(rows) <= most_of_tails


def check_chain(source, sizes, num_shards, layout, steps, epoch, num_workers):
    """The shards of a source, whose files have these sizes, have its rows after these steps; gives them."""
    (tail, options), ranks = layout, []
    for rank in range(num_shards):
        data = streaming_shard(source, num_shards, rank, **options)
        other = streaming_shard(generated(OTHER_SIZES, OTHER), num_shards, rank, **options)
        for step in steps:
            data = AFTER[step](data, other, rank)
        data.set_epoch(epoch)
        ranks.append(list(itertools.chain(*passes(data, num_workers))))
    batch_size = options.get("batch_size", 1)
    first = [[row for row in given if row < OTHER] for given in ranks]
    check_ranks(first, range(sum(sizes)), tail, batch_size, max(1, min(num_workers, len(sizes))))
    if "concatenate" in steps or "interleave" in steps:
        second = [[row for row in given if row >= OTHER] for given in ranks]
        rows = range(OTHER, OTHER + sum(OTHER_SIZES))
        check_ranks(second, rows, tail, batch_size, max(1, min(num_workers, len(OTHER_SIZES))))
    return first


@pytest.mark.slow
@settings(max_examples=effort(60), deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.integers(1, 5),
    layouts,
    st.sampled_from(sorted(BEFORE)),
    chains,
    st.integers(0, 2),
    st.integers(0, 4),
)
def test_any_chain_after_the_cut_keeps_the_rows(sizes, num_shards, layout, before, steps, epoch, num_workers):
    source = BEFORE[before](generated(sizes), sizes)
    ranks = check_chain(source, sizes, num_shards, layout, steps, epoch, num_workers)
    if not num_workers and not epoch and "shuffle" not in before:
        tail, options = layout
        for rank, given in enumerate(ranks):
            mine = oracle_shard(list(range(sum(sizes))), num_shards, rank, options.get("batch_size", 1), tail)
            assert sorted(given) == sorted(mine)


@pytest.mark.slow
@settings(max_examples=effort(20), deadline=None)
@given(
    st.integers(1, 5),
    layouts,
    st.sampled_from(["nothing", "shuffle", "shuffle and skip"]),
    chains,
    st.integers(0, 2),
    st.integers(0, 4),
)
def test_any_chain_after_a_cut_of_tables_keeps_the_rows(
    parquet_files, num_shards, layout, before, steps, epoch, num_workers
):
    source = BEFORE[before](datasets.IterableDataset.from_parquet(parquet_files), PARQUET_SIZES)
    check_chain(source, PARQUET_SIZES, num_shards, layout, steps, epoch, num_workers)


@pytest.mark.slow
def test_a_shuffle_after_the_cut_leaves_even_ranks():
    for options, count in (({}, (6, 7)), ({"batch_size": 2, "drop_last": True}, (6,)), ({"batch_size": 2}, (8,))):
        ranks = []
        for rank in range(64):
            shard = streaming_shard(generated([101] * 4), 64, rank, **options).shuffle(seed=0, buffer_size=100)
            ranks.append([row["id"] for row in shard])
        assert {len(given) for given in ranks} <= set(count)
        assert len(set(itertools.chain(*ranks))) == min(404, sum(map(len, ranks)))


def test_epochs_reorder_files_below_the_cut_unless_a_take_after_it_forbids_it():
    def first_rows(epoch, *steps):
        shard = streaming_shard(generated([10] * 6), 2, 0)
        for step in steps:
            shard = AFTER[step](shard, None, 0)
        shard.set_epoch(epoch)
        return [row["id"] // 10 for row in shard][::5]

    assert len({tuple(first_rows(epoch, "map")) for epoch in range(4)}) > 1
    assert {tuple(first_rows(epoch, "map", "take")) for epoch in range(4)} == {tuple(range(6))}


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 2, "drop_last": True}, {"contiguous": True, "length": 40}], ids=str
)
def test_a_cut_by_rows_is_not_cut_by_files_after_it(options):
    shard = streaming_shard(generated([10] * 4), 2, 0, **options)
    assert shard.num_shards == 1
    for misused in (shard, shard.map(same), shard.shuffle(seed=0, buffer_size=4)):
        with pytest.raises(ConfigError, match="before streaming_shard"):
            misused.shard(2, 0)


def test_a_node_split_after_the_cut_is_a_split_of_rows():
    from datasets.distributed import split_dataset_by_node

    seen = collections.Counter()
    for rank, node in itertools.product(range(2), range(3)):
        shard = streaming_shard(generated([10, 7, 8, 6]), 2, rank).shuffle(seed=0, buffer_size=4)
        seen.update(row["id"] for row in split_dataset_by_node(shard, node, 3))
    assert seen == collections.Counter(range(31))


def test_a_shuffle_without_a_seed_before_the_cut_is_refused():
    for shuffled in (generated([4, 4]).shuffle(buffer_size=4), mapped(generated([4, 4]).shuffle(buffer_size=4))):
        assert sorted(row["id"] for row in streaming_shard(shuffled, 1, 0)) == list(range(8))
        with pytest.raises(ConfigError, match="the same seed"):
            streaming_shard(shuffled, 2, 0)


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "drop_last": True}], ids=str)
def test_real_workers_share_a_shuffled_shard(options):
    seen = collections.Counter()
    for rank in range(2):
        shard = streaming_shard(generated([9, 4, 6, 11, 2]), 2, rank, **options).shuffle(seed=rank, buffer_size=4)
        shard.set_epoch(1)
        seen.update(int(row["id"]) for row in DataLoader(mapped(shard), batch_size=None, num_workers=3))
    assert max(seen.values()) == 1
    assert len(seen) == 32 if not options else len(seen) >= 32 - 3 * 3


def test_an_older_datasets_is_refused(monkeypatch):
    monkeypatch.setattr(datasets, "__version__", "5.0.0")
    with pytest.raises(MissingDependencyError, match=r"datasets 5\.1 or newer; installed is 5\.0\.0"):
        streaming_shard(generated([4]), 2, 0)
