"""User functions whose results, or which themselves, cannot travel between processes: an error, never a hang."""

import collections
import multiprocessing
import pickle
import sys
import tempfile
import threading
import traceback

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import ConfigError, TransformError
from torch_dataloader_utils.stream.transport.sendable import SentFunctions

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[20, 20], [20]])
    return folder


def load(folder, **options):
    return StructuredDataset.create_dataloader(str(folder), batch_size=8, num_workers=2, **options)[0]


def with_lock(batch):
    return {**batch, "nested": [1, {"lock": threading.Lock()}]}


def rows_alone(batch):
    return batch["row"]


def with_lambdas(batch):
    return {"rows": np.array([len, lambda: 0], dtype=object)}


class Scale:
    """A transform that pickles, and returns things that travel. shared: a Value of all workers, which counts rows."""

    def __init__(self, shared):
        self.shared = shared

    def __call__(self, batch):
        with self.shared:
            self.shared.value += batch.num_rows
        batch["extra"] = [{"half": row / 2, "set": {row}} for row in batch["row"].tolist()]
        return batch


class OneBuffer:
    """A transform that writes each batch into the same memory, and counts its rows in memory of all processes."""

    def __init__(self):
        self.memory = torch.empty(8, dtype=torch.int64)
        self.counts = torch.zeros(8, dtype=torch.int64).share_memory_()

    def __call__(self, batch):
        rows = self.memory[: batch.num_rows]
        rows.copy_(batch["row"])
        self.counts[batch["row"] % 8] = 1
        return {"row": rows}


def with_gradients(batch):
    return {"x": [batch["row"], (batch["row"].double().requires_grad_() * 2).to_sparse()]}


def of_a_local_class(batch):
    point = collections.namedtuple("Point", "row rest")
    return point(batch["row"], 1)


def with_a_default_of_its_own(batch):
    groups = collections.defaultdict(lambda: [0])
    groups[0].append(batch["row"])
    return {"groups": groups}


def by_a_function(batch):
    return {"rows": {(lambda: 1): batch["row"]}}


def of_local_numbers(batch):
    class Rows(torch.Tensor):
        pass

    return [batch["row"].as_subclass(Rows)]


def of_a_user_dict(batch):
    user_dict = collections.UserDict(batch)
    user_dict.compute = lambda: 0
    return user_dict


UNSENDABLE = {
    with_lock: r"a lock at \['nested'\]\[1\]\['lock'\]",
    with_lambdas: r"a ndarray at \['rows'\]",
    with_gradients: r"a Tensor at \['x'\]\[1\].*detach\(\)",
    of_a_local_class: "a Point, ",
    with_a_default_of_its_own: r"a defaultdict at \['groups'\]",
    by_a_function: r"a dict at \['rows'\]",
    of_local_numbers: r"a Rows at \[0\]",
    of_a_user_dict: "a UserDict, ",
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("plain_loader", [False, True], ids=["our loader", "DataLoader"])
@pytest.mark.parametrize("transform", UNSENDABLE)
def test_a_batch_that_cannot_be_sent_is_an_error_with_its_place(table, transform, plain_loader):
    if plain_loader:
        dataset = StructuredDataset(str(table), batch_size=8, transform=transform)
        loader = DataLoader(dataset, batch_size=None, num_workers=1)
    else:
        loader = load(table, transform=transform)
    message = f"{transform.__name__} raised TypeError: it returned {UNSENDABLE[transform]}.*part-"
    with pytest.raises(TransformError, match=message) as raised:
        list(loader)
    # A worker of torch's hears at once of the end of its iterator, but not if a collection of garbage finds that.
    traceback.clear_frames(raised.tb)


class Unrestorable:
    """Pickles, and does not come back."""

    def __getstate__(self):
        return {"x": 1}

    def __setstate__(self, state):
        raise ValueError("no x for you")


def with_an_unrestorable(batch):
    return {"rows": batch["row"], "more": Unrestorable()}


@pytest.mark.parametrize("persistent", [False, True])
def test_a_batch_that_does_not_unpickle_is_an_error_of_the_transform(table, persistent):
    loader = load(table, transform=with_an_unrestorable, persistent_workers=persistent)
    for _ in range(2):
        with pytest.raises(TransformError, match=r"cannot be unpickled here: ValueError: no x for you\. .*__reduce__"):
            list(loader)


def test_what_a_transform_gives_to_the_collate_function_does_not_travel(table):
    batches = list(load(table, transform=with_lock, collate_fn=rows_alone))
    assert sorted(torch.cat(batches).tolist()) == list(range(60))


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_travels_arrives(table, method):
    rows = []
    transform = Scale(multiprocessing.get_context(method).Value("q", 0))
    for batch in load(table, transform=transform, multiprocessing_context=method):
        assert [extra["half"] * 2 for extra in batch["extra"]] == batch["row"].tolist()
        rows += check_batch(batch)
    assert sorted(rows) == list(range(60))
    assert transform.shared.value == 60


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("kind", ["Lock", "Event", "Queue"])
def test_what_pickles_only_while_a_process_starts_may_be_part_of_a_function(table, kind, method):
    transform = Scale(getattr(multiprocessing.get_context(method), kind)())
    assert len(load(table, transform=transform, multiprocessing_context=method)) == 8


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_lock_for_forked_processes_is_refused(table, method):
    transform = Scale(multiprocessing.get_context("fork").Lock())
    with pytest.raises(ConfigError, match=rf"cannot be sent .*come from multiprocessing.get_context\({method!r}\)"):
        load(table, transform=transform, multiprocessing_context=method)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_lambda_is_refused_when_the_loader_is_built(table, method):
    with pytest.raises(ConfigError, match=f"<lambda> cannot be sent .* {method!r}.*top level"):
        load(table, transform=lambda batch: batch, multiprocessing_context=method)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_lambda_for_credentials_is_refused_too(table, method):
    with pytest.raises(ConfigError, match=f"<lambda> cannot be sent .* {method!r}.*top level"):
        load(table, credentials=lambda: {"anon": True}, multiprocessing_context=method)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_each_worker_has_the_tensors_of_a_function_for_itself_unless_they_are_shared(tmp_path, method):
    write_table(tmp_path, [[500] * 8])
    transform = OneBuffer()
    rows = [batch["row"] for batch in load(tmp_path, transform=transform, multiprocessing_context=method)]
    assert sorted(torch.cat(rows).tolist()) == list(range(4000))
    assert transform.counts.tolist() == [1] * 8
    assert not transform.memory.is_shared()


def test_tensors_over_one_memory_are_sent_with_it_once_and_have_one_memory_again():
    memory = torch.zeros(1 << 16)
    sent = pickle.dumps(SentFunctions([memory, memory[:2], memory[1:3], memory.view(torch.int32)]))
    assert len(sent) < memory.nbytes + 4_096
    whole, first, second, numbers = pickle.loads(sent)
    whole[1] = 1
    assert (first.tolist(), second.tolist(), int(numbers[1])) == ([0, 1], [1, 0], 0x3F800000)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0),
        torch.tensor(True),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.eye(3).to_sparse(),
        torch.tensor([0, 1, 2], dtype=torch.uint16),
        torch.arange(3, dtype=torch.bfloat16),
        torch.arange(3.0).to(torch.float8_e4m3fn),
        torch.tensor([1 + 2j]).conj(),
    ],
    ids=lambda tensor: f"{type(tensor).__name__}-{tensor.dtype}-{tensor.layout}-{tuple(tensor.shape)}",
)
def test_tensors_of_all_kinds_arrive_as_they_were_in_memory_of_their_own(tensor):
    (sent,) = pickle.loads(pickle.dumps(SentFunctions([tensor])))
    assert (type(sent), sent.dtype, sent.layout) == (type(tensor), tensor.dtype, tensor.layout)
    assert (sent.requires_grad, sent.shape) == (tensor.requires_grad, tensor.shape)
    assert (
        sent.tolist() == tensor.tolist() if tensor.layout is torch.strided else sent.to_dense().equal(tensor.to_dense())
    )
    assert tensor.layout is not torch.strided or not (tensor.is_shared() or sent.is_shared())


def test_a_lambda_is_inherited_under_fork(table):
    loader = load(table, transform=lambda batch: batch, multiprocessing_context="fork")
    assert sum(batch.num_rows for batch in loader) == 60


def forgets(batch):
    batch["row"] += 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_error_of_a_transform_that_does_not_return_the_batch_says_so(table, num_workers):
    loader, _ = StructuredDataset.create_dataloader(
        str(table), batch_size=8, num_workers=num_workers, transform=forgets
    )
    with pytest.raises(TransformError, match=r"forgets returned None .*part-.*: return the batch"):
        next(iter(loader))


@pytest.mark.parametrize("bytes_over", [-1, 0, 1])
def test_a_directory_whose_sockets_have_no_room_is_refused_before_anything_waits(
    table, tmp_path_factory, monkeypatch, bytes_over
):
    room = (103 if sys.platform == "darwin" else 107) - len("/pymp-12345678/listener-12345678")
    short = tmp_path_factory.mktemp("s")
    folder = short / ("x" * (room - len(str(short)) - 1 + bytes_over))
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    # What multiprocessing has made already stays where it is.
    monkeypatch.setitem(multiprocessing.process.current_process()._config, "tempdir", None)
    if bytes_over > 0:
        with pytest.raises(ConfigError, match=r"names would have \d+ bytes.*Set TMPDIR"):
            load(table)
        assert StructuredDataset.create_dataloader(str(table), num_workers=0)
        whole = load(table, output_format="numpy", multiprocessing_context="fork")
        assert sum(len(batch["row"]) for batch in whole) == 60
    else:
        assert sum(batch.num_rows for batch in load(table, multiprocessing_context="fork")) == 60
