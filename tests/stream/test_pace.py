"""Quick batches of a transform travel many at once; rows, states, counts and errors are those of single ones."""

import itertools

import pytest
import torch

from tests.stream.tables import check_batch, check_same_passes, write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import TransformError
from torch_dataloader_utils.stream.transport import worker_requests as pace
from torch_dataloader_utils.stream.transport.processes import WorkerProcesses
from torch_dataloader_utils.stream.transport.worker_requests import BatchPace

MILLISECOND = 1_000_000


def learnt(*answers):
    learner = BatchPace()
    for batches, num_bytes, milliseconds in answers:
        learner.learn(batches, num_bytes, milliseconds * MILLISECOND)
    return learner.length


def test_quick_answers_grow_and_slow_ones_shrink():
    assert learnt((1, 1000, 1)) == 2
    assert learnt((1, 1000, 1), (2, 2000, 2)) == 4
    assert learnt((16, 1000, 100)) == 8
    assert learnt((1, 1000, 100)) == 1
    assert learnt((8, 1000, 20)) == 8


def test_an_answer_has_some_megabytes_and_some_batches_at_most():
    assert learnt((8, pace.MOST_BYTES // 2, 1)) == 16
    assert learnt((8, pace.MOST_BYTES // 2 + 1, 1)) == 8
    assert learnt((8, 2 * pace.MOST_BYTES, 1)) == 4
    assert learnt((16, 1000, 1)) == 16


def test_batches_that_are_not_in_slabs_come_one_by_one():
    assert learnt((1, 0, 1)) == 1
    assert learnt((8, 0, 1)) == 1


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[200, 90], [110, 300]])
    return folder


def same(batch):
    return batch


def load(folder, **options):
    return StructuredDataset.create_dataloader(
        str(folder), **{"shuffle": True, "split_rows": 90, "batch_size": 6, "transform": same, **options}
    )


@pytest.fixture
def answers(monkeypatch):
    """How many batches each answer carried."""
    lengths = []
    paced = WorkerProcesses._paced

    def counted(self, answers, demand):
        for answer in paced(self, answers, demand):
            lengths.append(len(answer.batches))
            yield answer

    monkeypatch.setattr(WorkerProcesses, "_paced", counted)
    return lengths


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_batches_states_and_counts_are_those_of_one_process(table, num_workers, answers):
    loader, _ = load(table, num_workers=num_workers)
    plain, _ = load(table, num_workers=num_workers, transform=None)
    check_same_passes(loader, plain)


def test_many_batches_travel_at_once(table, answers, monkeypatch):
    monkeypatch.setattr(pace, "_FAST_NS", 10**12)  # a machine that is busy is no reason to be slow here
    monkeypatch.setattr(pace, "_SLOW_NS", 10**12)
    loader, _ = load(table, num_workers=2)
    assert sum(batch.num_rows for batch in loader) == 700
    assert sum(answers) == len(loader)
    assert answers[:2] == [1, 1]
    assert max(answers) >= 8


class OneBuffer:
    """A transform that gives all its batches in the same memory."""

    def __init__(self):
        self.memory = torch.empty(6, dtype=torch.int64)

    def __call__(self, batch):
        rows = self.memory[: batch.num_rows]
        rows.copy_(batch["row"])
        return {"row": rows}


def test_a_transform_may_use_one_buffer_for_all_batches(table, answers, monkeypatch):
    monkeypatch.setattr(pace, "_FAST_NS", 10**12)
    monkeypatch.setattr(pace, "_SLOW_NS", 10**12)
    loader, _ = load(table, num_workers=2, transform=OneBuffer())
    plain, _ = load(table, num_workers=2)
    assert [batch["row"].tolist() for batch in loader] == [batch["row"].tolist() for batch in plain]
    assert max(answers) >= 8


def test_a_timeout_is_one_for_every_batch(table, answers):
    loader, _ = load(table, num_workers=2, timeout=600)
    assert sum(batch.num_rows for batch in loader) == 700
    assert set(answers) == {1}


@pytest.mark.parametrize("stop", [1, 7, 24, 25, 66])
def test_a_resumed_pass_gives_the_rest(table, stop, monkeypatch):
    whole = [check_batch(batch) for batch in load(table, num_workers=2)[0]]
    loader, _ = load(table, num_workers=2)
    came = [check_batch(batch) for batch in itertools.islice(loader, stop)]
    state = loader.state_dict()
    resumed, _ = load(table, num_workers=2)
    resumed.load_state_dict(state)
    assert came + [check_batch(batch) for batch in resumed] == whole


def fails_at_last(batch):
    if batch.num_rows < 6:
        raise ValueError("too short")
    return batch


@pytest.mark.parametrize("num_workers", [1, 2])
def test_batches_before_an_error_arrive(table, num_workers):
    """700 rows are 116 batches of 6 and one of 4, which alone is refused."""
    loader, _ = load(table, num_workers=num_workers, transform=fails_at_last)
    came = []
    with pytest.raises(TransformError, match="too short"):
        came.extend(batch.num_rows for batch in loader)
    assert came == [6] * 116
    assert loader.state_dict()["log"]["steps"] == [116]
