"""A sharded stream inside torchdata's StatefulDataLoader: resume from every batch."""

import pytest

from tests.wrappers.streams import PlainStream, StatefulStream
from torch_dataloader_utils.wrappers import BufferSortedDataset, ShardedDataset, streaming_shard

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

# torchdata 0.11 calls a function that torch 2.13 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")


def make_loader(kind, num_workers, **options):
    shard = streaming_shard(kind(30), 2, 1, batch_size=4, **options)
    return stateful_dataloader.StatefulDataLoader(shard, batch_size=4, num_workers=num_workers)


@pytest.mark.processes
@pytest.mark.cases(3)
@pytest.mark.parametrize("kind", [PlainStream, StatefulStream])
@pytest.mark.parametrize(("num_workers", "stops"), [(0, (0, 1, 2, 3, 4)), (2, (1, 2))])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"even_batches": False}], ids=str)
def test_resume_gives_the_remaining_batches(kind, num_workers, stops, options):
    whole = [batch.tolist() for batch in make_loader(kind, 0, **options)]
    for stop in stops:
        if stop >= len(whole):
            continue
        loader = make_loader(kind, num_workers, **options)
        batches = iter(loader)
        part = [next(batches).tolist() for _ in range(stop)]
        state = loader.state_dict()
        del batches
        resumed = make_loader(kind, num_workers, **options)
        resumed.load_state_dict(state)
        assert part + [batch.tolist() for batch in resumed] == whole


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_workers_that_ended_before_others_give_nothing_again(persistent_workers):
    def loader():
        shard = streaming_shard(list(range(5)), 1, 0)
        return stateful_dataloader.StatefulDataLoader(
            shard, batch_size=4, num_workers=3, persistent_workers=persistent_workers
        )

    whole = [[0, 3], [1, 4], [2]]
    for stop in (1, 2, 3):
        first = loader()
        batches = iter(first)
        assert [next(batches).tolist() for _ in range(stop)] == whole[:stop]
        if stop == 3:
            assert next(batches, None) is None
        resumed = loader()
        resumed.load_state_dict(first.state_dict())
        assert [batch.tolist() for batch in resumed] == (whole[stop:] or whole)
        assert [batch.tolist() for batch in resumed] == whole


def rows_of(files):
    for file in files:
        yield from ({"id": row} for row in range(*file))


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("files", [4, 5])
def test_hugging_face_files_resume_in_workers(files):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    bounds = [(4 * file, 4 * file + 4) for file in range(files)]

    def loader():
        stream = datasets.IterableDataset.from_generator(rows_of, gen_kwargs={"files": bounds})
        return stateful_dataloader.StatefulDataLoader(streaming_shard(stream, 2, 0), batch_size=2, num_workers=2)

    whole = [batch["id"].tolist() for batch in loader()]
    for stop in (0, 1, 3):
        first = loader()
        batches = iter(first)
        part = [next(batches)["id"].tolist() for _ in range(stop)]
        resumed = loader()
        resumed.load_state_dict(first.state_dict())
        assert part + [batch["id"].tolist() for batch in resumed] == whole


def test_a_plain_source_is_stepped_and_not_replayed_through_the_loader():
    loader = make_loader(PlainStream, 0)
    next(iter(loader))
    state = loader.state_dict()
    assert state["fetcher_state"]["dataset_iter_state"] is None
    assert state["dataset_state"]["yielded"] == 4


def test_sorted_shards_resume_in_the_saved_epoch():
    class Lengths:
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return index

        def sort_key(self, index):
            return index * 7 % 5

    def loader():
        dataset = ShardedDataset(BufferSortedDataset(Lengths(), 8, 2), 2, 1, "sequential", False)
        dataset.set_epoch(3)
        return stateful_dataloader.StatefulDataLoader(dataset, batch_size=3)

    whole = [batch.tolist() for batch in loader()]
    first = loader()
    batches = iter(first)
    part = [next(batches).tolist() for _ in range(2)]
    resumed = loader()
    resumed.dataset.set_epoch(0)
    resumed.load_state_dict(first.state_dict())
    assert part + [batch.tolist() for batch in resumed] == whole
