"""Quick batches of a transform travel many at once; rows, states, counts and errors are those of single ones."""

import itertools
from functools import cached_property

import pytest
import torch

from tests.stream.tables import check_batch, check_same_passes, write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import TransformError
from torch_dataloader_utils.stream.transport import requests
from torch_dataloader_utils.stream.transport.processes import WorkerProcesses
from torch_dataloader_utils.stream.transport.requests import ResponseSize

pytestmark = pytest.mark.processes

MILLISECOND = 1_000_000


def learned(*response_batches):
    learner = ResponseSize()
    for batches, num_bytes, milliseconds in response_batches:
        learner.learn(batches, num_bytes, milliseconds * MILLISECOND)
    return learner.batches


def test_quick_responses_grow_and_slow_ones_shrink():
    assert learned((1, 1000, 1)) == 2
    assert learned((1, 1000, 1), (2, 2000, 2)) == 4
    assert learned((16, 1000, 100)) == 8
    assert learned((1, 1000, 100)) == 1
    assert learned((8, 1000, 20)) == 8


def test_a_response_has_some_megabytes_and_some_batches_at_most():
    assert learned((8, requests.MOST_BYTES // 2, 1)) == 16
    assert learned((8, requests.MOST_BYTES // 2 + 1, 1)) == 8
    assert learned((8, 2 * requests.MOST_BYTES, 1)) == 4
    assert learned((16, 1000, 1)) == 16


def test_batches_that_are_not_in_slabs_come_one_by_one():
    assert learned((1, 0, 1)) == 1
    assert learned((8, 0, 1)) == 1


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
def response_batches(monkeypatch):
    """How many batches each response carried."""
    lengths = []
    set_size = WorkerProcesses._set_size

    def counted(self, responses, size):
        for response in set_size(self, responses, size):
            lengths.append(len(response.batches))
            yield response

    monkeypatch.setattr(WorkerProcesses, "_set_size", counted)
    return lengths


@pytest.mark.cases(1)
@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_batches_states_and_counts_are_those_of_one_process(table, num_workers, response_batches):
    loader, _ = load(table, num_workers=num_workers)
    plain, _ = load(table, num_workers=num_workers, transform=None)
    check_same_passes(loader, plain)


def test_many_batches_travel_at_once(table, response_batches, monkeypatch):
    monkeypatch.setattr(requests, "_FAST_NS", 10**12)  # a machine that is busy is no reason to be slow here
    monkeypatch.setattr(requests, "_SLOW_NS", 10**12)
    loader, _ = load(table, num_workers=2)
    assert sum(batch.num_rows for batch in loader) == 700
    assert sum(response_batches) == len(loader)
    assert response_batches[:2] == [1, 1]
    assert max(response_batches) >= 8


class OneBuffer:
    """A transform that gives all batches of a worker in the same memory."""

    @cached_property
    def memory(self):
        return torch.empty(6, dtype=torch.int64)

    def __call__(self, batch):
        rows = self.memory[: batch.num_rows]
        rows.copy_(batch["row"])
        return {"row": rows}


def test_a_transform_may_use_one_buffer_for_all_batches(table, response_batches, monkeypatch):
    monkeypatch.setattr(requests, "_FAST_NS", 10**12)
    monkeypatch.setattr(requests, "_SLOW_NS", 10**12)
    loader, _ = load(table, num_workers=2, transform=OneBuffer())
    plain, _ = load(table, num_workers=2)
    assert [batch["row"].tolist() for batch in loader] == [batch["row"].tolist() for batch in plain]
    assert max(response_batches) >= 8


def test_a_timeout_is_one_for_every_batch(table, response_batches):
    loader, _ = load(table, num_workers=2, timeout=600)
    assert sum(batch.num_rows for batch in loader) == 700
    assert set(response_batches) == {1}


@pytest.mark.cases(2)
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
