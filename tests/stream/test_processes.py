"""Real worker processes: every start method, persistent workers, epochs, resume, and what leaves with them."""

import contextlib
import copy
import functools
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from types import FrameType
from typing import ClassVar

import psutil
import pyarrow.compute as pc
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as worker_loop

from tests.stream.tables import TABLE, check_batch, write_table
from torch_dataloader_utils import DevicePrefetcher, StructuredDataset, blend, merge_states
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, TransformError, WorkerDiedError
from torch_dataloader_utils.integrations.torchdata import for_torchdata
from torch_dataloader_utils.stream.transport import torch_workers
from torch_dataloader_utils.stream.transport.receiver import Receiver
from torch_dataloader_utils.stream.transport.requests import BatchResponse
from torch_dataloader_utils.stream.transport.slabs import SlabReader
from torch_dataloader_utils.stream.transport.worker_death import Notes, responses_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores, on purpose
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
]

ROOT = Path(__file__).parents[2]
START_METHODS = ["fork", "forkserver", "spawn"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    return folder, write_table(folder, TABLE)


def is_worker(process):
    """Whether a child is ours to end; the helpers of multiprocessing and of tests stay until this process ends."""
    helpers = ("forkserver", "resource_tracker")
    try:
        return not any(name in " ".join(process.cmdline()) for name in helpers)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def workers_here():
    """Gives those of this test, of which none is left; not what an earlier one left to the garbage collector."""
    before = set(psutil.Process().children())

    def workers():
        return [child for child in set(psutil.Process().children()) - before if is_worker(child)]

    yield workers
    _, alive = psutil.wait_procs(workers(), timeout=60)
    assert [process.as_dict(["pid", "status", "create_time", "cmdline"]) for process in alive] == []


@pytest.fixture
def kept_frames():
    yield KeptFrame.kept
    KeptFrame.kept.clear()


def let_go(raised):
    """Of what the frames of an error refer to: torch ends the workers of an iterator that a collection of garbage finds
    only seconds later."""
    traceback.clear_frames(raised.tb)


def load(folder, **options):
    return StructuredDataset.create_dataloader(
        str(folder), **{"batch_size": 8, "num_workers": 2, "shuffle": True, "split_rows": 20, **options}
    )


def double(batch):
    batch["payload"] = batch["payload"] * 2
    return batch


def fail_on_row_60(batch):
    if 60 in batch["row"]:
        raise ValueError("bad label")
    return batch


class KeptFrame:
    """Arrives and keeps the frame that it is unpickled in, and with it those of the pass, as errors that travel with
    their tracebacks do (tblib, which Dask brings along)."""

    kept: ClassVar[list[FrameType]] = []

    def __reduce__(self):
        return keep_frame, ()


def keep_frame():
    KeptFrame.kept.append(sys._getframe())
    return KeptFrame()


def keep_frames_and_fail(batch):
    return {**fail_on_row_60(batch), "kept": KeptFrame()}


def die_on_row_60(batch):
    if 60 in batch["row"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


class Cycle:
    """Garbage from the start, which writes down in which process it ends."""

    def __init__(self, file):
        self.own = self
        self.file = file

    def __del__(self):
        with self.file.open("a") as file:
            file.write(f"{os.getpid()} ")


def collect_garbage(batch):
    gc.collect()
    return batch


@pytest.mark.skipif("fork" not in START_METHODS, reason="no fork")
@pytest.mark.parametrize("collects", [True, False])
def test_forked_workers_do_not_collect_the_garbage_of_the_trainer(table, tmp_path, collects):
    (folder, _), file = table, tmp_path / "pids"
    loader, _ = load(folder, transform=collect_garbage, multiprocessing_context="fork")
    gc.collect()
    gc.disable()
    try:
        Cycle(file)
        if collects:
            gc.enable()
        sum(batch.num_rows for batch in loader)
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    gc.collect()
    assert file.read_text() == f"{os.getpid()} "


@pytest.mark.cases(2)
@pytest.mark.parametrize("method", START_METHODS)
def test_every_start_method_delivers_the_planned_order(table, method):
    expected = [check_batch(batch) for batch in load(table[0], num_workers=2)[0]]
    loader, _ = load(table[0], multiprocessing_context=method, persistent_workers=True, shuffle_rows=None)
    assert [check_batch(batch) for batch in loader] == expected
    assert sorted(row for batch in expected for row in batch) == list(range(table[1]))
    loader.set_epoch(1)
    later = [check_batch(batch) for batch in loader]
    assert later != expected
    assert sorted(row for batch in later for row in batch) == list(range(table[1]))


def test_workers_of_one_start_method_leave_those_of_another_alone(table):
    """Workers share tensors through a directory of the trainer, which outlives each of them."""
    expected = [check_batch(batch) for batch in load(table[0])[0]]
    for method in ("forkserver", "fork"):
        assert [check_batch(batch) for batch in load(table[0], multiprocessing_context=method)[0]] == expected


@pytest.mark.full
@pytest.mark.cases(1)
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_error_of_a_program_that_starts_itself_in_its_workers_says_what_to_do(table, tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(
        "from torch_dataloader_utils import StructuredDataset\n"
        f"loader, _ = StructuredDataset.create_dataloader({str(table[0])!r}, batch_size=8, num_workers=1, "
        f"multiprocessing_context={method!r})\n"
        "for batch in loader:\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, program], env={**os.environ, "PYTHONPATH": f"{ROOT}/src"}, capture_output=True, timeout=300
    )
    assert done.returncode == 1
    assert 'put all code that runs into `if __name__ == "__main__":`' in done.stderr.decode().splitlines()[-1]


@pytest.mark.cases(2)
@pytest.mark.parametrize("num_workers", [1, 3, 5])
@pytest.mark.parametrize("shuffle_rows", [None, 30])
def test_state_with_prefetching_workers_counts_what_was_received(table, num_workers, shuffle_rows):
    whole = [check_batch(batch) for batch in load(table[0], num_workers=num_workers, shuffle_rows=shuffle_rows)[0]]
    loader, _ = load(table[0], num_workers=num_workers, shuffle_rows=shuffle_rows, prefetch_factor=3)
    batches = iter(loader)
    for step in range(4):
        assert check_batch(next(batches)) == whole[step]
    state = json.loads(json.dumps(loader.state_dict()))
    del batches
    resumed, _ = load(table[0], num_workers=num_workers, shuffle_rows=shuffle_rows)
    resumed.load_state_dict(state)
    assert len(resumed) == len(whole)
    assert [check_batch(batch) for batch in resumed] == whole[4:]
    moved, _ = load(table[0], num_workers=0, batch_size=5, shuffle_rows=shuffle_rows)
    moved.load_state_dict(state)
    rest = [row for batch in moved for row in check_batch(batch)]
    assert sorted(rest) == sorted(row for batch in whole[4:] for row in batch)


def test_a_broken_pass_of_persistent_workers_leaves_nothing_behind(table):
    loader, _ = load(table[0], persistent_workers=True)
    first = [check_batch(batch) for batch in loader]
    loader.set_epoch(0)
    for batch in loader:
        assert check_batch(batch) == first[0]
        break
    assert [check_batch(batch) for batch in loader] == first


class Deadly:
    """What a worker cannot unpickle and live."""

    def __new__(cls):
        os.kill(os.getpid(), signal.SIGKILL)


def let_worker_1_die_of_a_second_pass(worker):
    if worker == 1:
        worker_loop._ResumeIteration = Deadly


def test_a_persistent_worker_that_dies_when_the_next_pass_starts_is_named(table):
    loader, _ = load(table[0], persistent_workers=True, worker_init_fn=let_worker_1_die_of_a_second_pass)
    first = [check_batch(batch) for batch in loader]
    loader.set_epoch(0)
    with pytest.raises(WorkerDiedError, match="Worker process 1") as raised:
        next(iter(loader))
    let_go(raised)
    del raised
    loader.set_epoch(0)
    assert [check_batch(batch) for batch in loader] == first


class Death:
    """As worker_init_fn, the death of a worker; as a sampler, which torch asks once all workers run, a wait for it."""

    def __init__(self):
        self.readable, self.writable = os.pipe()

    def __call__(self, worker):
        os.write(self.writable, str(os.getpid()).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    def __iter__(self):
        pid = int(os.read(self.readable, 20))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # torch looks only at those that nobody has waited for
        yield 0


def test_a_worker_that_dies_as_others_are_started_is_named():
    heard, before = [], signal.getsignal(signal.SIGCHLD)

    def hear(number, frame):
        heard.append(number)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGCHLD, hear)
    try:
        death = Death()
        options = {"num_workers": 1, "multiprocessing_context": "fork", "worker_init_fn": death}
        loader = DataLoader([0], batch_size=None, sampler=death, **options)
        with pytest.raises(WorkerDiedError, match=r"before its first read: it ended with exit code -9\. Restart"):
            next(responses_of(loader, Notes(1), lambda are_new: None))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert heard


class PreemptedError(Exception):
    """Raised by a trainer's signal handler."""


def poke_until(is_received):
    while not is_received.value:
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.0005)


class Poking:
    """A transform in whose worker a thread sends the trainer signals, until the trainer has received one."""

    def __init__(self, is_received):
        self.is_received = is_received
        self.has_begun = False

    def __call__(self, batch):
        if not self.has_begun:
            self.has_begun = True
            threading.Thread(target=poke_until, args=(self.is_received,), daemon=True).start()
        return batch


def read_for_ever(loader):
    while True:
        list(loader)


@pytest.mark.cases(2)
@pytest.mark.parametrize("error", [KeyboardInterrupt, PreemptedError])
@pytest.mark.parametrize("place", ["_reset", "_recv"])  # when workers get the next pass, and inside a message
def test_persistent_workers_deliver_every_row_after_a_signal_handler_raised(tmp_path, place, error):
    # No event: its lock would stay taken if a worker is killed, or a signal comes, while it is looked at.
    total, is_received = write_table(tmp_path, [[3000] * 4]), multiprocessing.get_context("fork").RawValue("b", 0)
    options = {"batch_size": 500, "output_format": "dict", "transform": Poking(is_received), "shuffle": False}
    options |= {"persistent_workers": True, "multiprocessing_context": "fork"}
    loader, _ = load(tmp_path, **options, split_rows=3000)

    def interrupt(_, frame):
        if not is_received.value and any(each.f_code.co_name == place for each, _ in traceback.walk_stack(frame)):
            is_received.value = 1
            raise error

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(error):
            read_for_ever(loader)
        for _ in range(2):
            assert sorted(row for batch in loader for row in batch["row"]) == list(range(total))
    finally:
        is_received.value = 1
        signal.signal(signal.SIGUSR1, before)


def test_workers_end_if_a_signal_handler_raised_while_a_request_was_put_into_a_queue(tmp_path):
    write_table(tmp_path, [[3000] * 4])
    loader, _ = load(tmp_path, batch_size=500, persistent_workers=True)
    next(iter(loader))
    torch_loader = loader._workers._loader
    workers = torch_loader._iterator._workers
    torch_loader._iterator._index_queues[0]._notempty.acquire()  # what such an exception leaves behind
    torch_workers.end(torch_loader._iterator)
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("in_order", [True, False])
def test_of_two_iterators_at_once_the_earlier_raises_that_persistent_workers_left_it(table, in_order):
    loader, _ = load(table[0], persistent_workers=True, in_order=in_order)
    earlier = iter(loader)
    seen = check_batch(next(earlier))
    later = iter(loader)
    rows = check_batch(next(later))
    with pytest.raises(ConfigError, match="Another iterator over this loader was made since"):
        seen.extend(row for batch in earlier for row in check_batch(batch))
    assert len(seen) < table[1]
    rows += [row for batch in later for row in check_batch(batch)]
    assert sorted(rows) == list(range(table[1]))


def test_out_of_order_delivery_is_complete_and_never_gives_a_wrong_state(table):
    whole = [check_batch(batch) for batch in load(table[0])[0]]
    loader, _ = load(table[0], in_order=False)
    received = []
    for step, batch in enumerate(loader, start=1):
        received.append(check_batch(batch))
        is_prefix = sorted(received) == sorted(whole[:step])
        try:
            assert loader.state_dict()["log"]["steps"] == ([step] if step < len(whole) else [])
            assert is_prefix
        except ConfigError:
            assert not is_prefix
    assert sorted(received) == sorted(whole)


class LateWorker:
    """A transform under which the first batch of worker 0 comes after the first of worker 1."""

    def __init__(self):
        self.gate = multiprocessing.get_context("fork").Event()
        self.calls = 0

    def __call__(self, batch):
        self.calls += 1
        if get_worker_info().id == 0:
            assert self.gate.wait(60)
        elif self.calls == 2:
            self.gate.set()
        return batch


def test_a_prefetcher_gives_no_state_of_batches_that_came_out_of_turn(table):
    whole = [check_batch(batch) for batch in load(table[0])[0]]
    loader, _ = load(table[0], in_order=False, transform=LateWorker(), multiprocessing_context="fork")
    prefetcher, received, refused = DevicePrefetcher(loader, "cpu"), [], 0
    for step, batch in enumerate(prefetcher, start=1):
        received.append(check_batch(batch))
        try:
            assert prefetcher.state_dict()["log"]["steps"] == ([step] if step < len(whole) else [])
            assert sorted(received) == sorted(whole[:step])
        except ConfigError:
            refused += 1
    assert refused
    assert sorted(received) == sorted(whole)
    assert prefetcher.state_dict()["epoch"] == 1


def test_a_blend_refuses_sources_whose_batches_come_out_of_turn(table):
    loader, _ = load(table[0], in_order=False)
    with pytest.raises(ConfigError, match="Source 0 of the blend has in_order=False"):
        blend([loader], [1])


def test_unknown_counts_over_processes_resume_by_cursor(table):
    import pyarrow.compute as pc

    options = {"filters": pc.field("row") > 30, "count_rows": False}
    whole = [check_batch(batch) for batch in load(table[0], **options)[0]]
    assert sorted(row for batch in whole for row in batch) == list(range(31, table[1]))
    loader, _ = load(table[0], **options)
    batches = iter(loader)
    received = [check_batch(next(batches)) for _ in range(5)]
    state = loader.state_dict()
    del batches
    resumed, _ = load(table[0], **options)
    resumed.load_state_dict(state)
    rest = [check_batch(batch) for batch in resumed]
    assert sorted(row for batch in received + rest for row in batch) == list(range(31, table[1]))


def test_a_transform_runs_in_the_workers(table):
    loader, _ = load(table[0], transform=double, num_workers=None)
    assert loader.num_workers >= 1
    plain = {
        row: value for batch in load(table[0])[0] for row, value in zip(batch["row"], batch["payload"], strict=True)
    }
    for batch in loader:
        for row, value in zip(batch["row"].tolist(), batch["payload"].tolist(), strict=True):
            assert value == 2 * {int(k): int(v) for k, v in plain.items()}[row]


def test_a_transform_that_raises_in_a_worker_names_the_rows(table):
    loader, _ = load(table[0], transform=fail_on_row_60, shuffle=False)
    with pytest.raises(
        TransformError, match=r"^fail_on_row_60 raised ValueError: bad label.*part-01.parquet row group 0"
    ):
        list(loader)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("bad label"), "between two row groups"),  # the worker goes on elsewhere
        (KeyboardInterrupt(), "in a function on the batch that ends in f1 and reading f2"),  # it ends here
    ],
)
def test_the_note_of_a_worker_is_of_the_place_where_it_ends(error, says):
    notes = Notes(1)
    with pytest.raises(type(error)), notes.calling(0, "f1"), notes.reading(0, "f2"):
        raise error
    assert notes.of_worker(0) == f"Worker process 0 (pid {os.getpid()}), {says}"


@pytest.mark.parametrize(("done", "left"), [("f1", "f2"), ("f2", "f1")])
def test_the_note_says_what_one_thread_still_reads_when_another_is_done(done, left):
    notes = Notes(1)
    threads = {where: notes.reading(0, where) for where in ("f1", "f2")}
    for reading in threads.values():
        reading.__enter__()
    for where, says in ((done, f"reading {left}"), (left, "between two row groups")):
        threads[where].__exit__(None, None, None)
        assert notes.of_worker(0) == f"Worker process 0 (pid {os.getpid()}), {says}"


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("is_given_up", [True, False])
def test_workers_end_with_their_pass_whoever_keeps_its_frames(table, in_order, is_given_up, kept_frames, workers_here):
    loader, _ = load(table[0], transform=keep_frames_and_fail, shuffle=False, in_order=in_order)
    batches = iter(loader)
    next(batches)
    if is_given_up:
        batches.close()
    else:
        with pytest.raises(TransformError, match="bad label"):
            list(batches)
    assert kept_frames
    assert workers_here() == []


def wait_for_ever_after_row_0(pipe, batch):
    if 0 not in batch["row"]:
        pipe.write_bytes(b"!")
        threading.Event().wait()
    return batch


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="workers tell through a pipe that they are busy")
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_that_are_busy_are_killed_and_not_waited_for_one_by_one(table, tmp_path, persistent):
    pipe = tmp_path / "busy"
    os.mkfifo(pipe)
    loader, _ = load(
        table[0],
        transform=functools.partial(wait_for_ever_after_row_0, pipe),
        shuffle=False,
        batch_size=1,
        persistent_workers=persistent,
    )
    others = set(multiprocessing.active_children())
    batches = iter(loader)
    next(batches)
    workers = set(multiprocessing.active_children()) - others
    # Open for writing too: it has no end then, whichever worker comes first.
    with os.fdopen(os.open(pipe, os.O_RDWR), "rb", buffering=0) as listening:
        assert [listening.read(1) for _ in workers] == [b"!"] * 2
    batches.close()
    del batches, loader
    gc.collect()  # persistent workers end with their loader
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * 2


def keep_the_process(batch):
    threading.Thread(target=threading.Event().wait).start()
    return batch


@pytest.mark.parametrize("in_order", [True, False])
def test_workers_that_do_not_end_after_their_last_batch_are_killed_without_an_error(table, in_order, workers_here):
    loader, _ = load(table[0], transform=keep_the_process, in_order=in_order)
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert sorted(row for batch in loader for row in batch["row"].tolist()) == list(range(table[1]))
        assert workers_here() == []


@pytest.mark.parametrize("in_order", [True, False])
def test_the_error_of_a_worker_does_not_keep_what_received_it(in_order):
    receiver = Receiver({0: SlabReader(None)}, LoaderMeter())
    responses = (BatchResponse(worker=0, error=TransformError(text)) for text in ["row 60"])
    seen = weakref.ref(receiver)
    gc.disable()
    try:
        with contextlib.suppress(TransformError):
            list(receiver.in_plan_order(responses, [0], 1) if in_order else receiver.as_they_come(responses))
        del receiver, responses
        assert seen() is None
    finally:
        gc.enable()


def test_a_killed_worker_is_an_error_and_the_rest_can_be_resumed(table):
    loader, _ = load(table[0], transform=die_on_row_60, shuffle=False)
    received = []
    with pytest.raises(RuntimeError, match=r"killed|exited"):
        received.extend(check_batch(batch) for batch in loader)
    resumed, _ = load(table[0], shuffle=False)
    resumed.load_state_dict(loader.state_dict())
    received.extend(check_batch(batch) for batch in resumed)
    assert sorted(row for batch in received for row in batch) == list(range(table[1]))


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_a_plain_dataloader_with_any_number_of_workers(table, num_workers):
    dataset = StructuredDataset(str(table[0]), "parquet", batch_size=8, shuffle=True, num_workers=4, split_rows=20)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0, collate_fn=as_it_is
    )
    epochs = []
    for epoch in range(4):
        dataset.set_epoch(epoch)
        batches = [check_batch(batch) for batch in loader]
        assert len(batches) == len(dataset)
        assert sorted(row for batch in batches for row in batch) == list(range(table[1]))
        epochs.append(batches)
    assert any(batches != epochs[0] for batches in epochs)


def test_persistent_workers_of_a_copied_data_set_follow_its_epochs(table):
    dataset = copy.deepcopy(StructuredDataset(str(table[0]), batch_size=8, shuffle=True, split_rows=20))
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True, collate_fn=as_it_is)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        received = [check_batch(batch) for batch in loader]
        dataset.set_epoch(epoch)
        assert received == [check_batch(batch) for batch in dataset]


def test_a_state_loaded_before_a_plain_dataloader_starts_continues_in_order(table):
    options = {"batch_size": 8, "shuffle": True, "num_workers": 2}
    whole = [check_batch(batch) for batch in load(table[0], split_rows=None, num_workers=2)[0]]
    loader, _ = load(table[0], split_rows=None, num_workers=2)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    dataset = StructuredDataset(str(table[0]), **options)
    dataset.load_state_dict(loader.state_dict())
    del batches
    plain = DataLoader(dataset, batch_size=None, num_workers=2, collate_fn=as_it_is)
    assert [check_batch(batch) for batch in plain] == whole[5:]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_that_was_loaded_serves_one_pass_of_a_plain_dataloader(table, persistent):
    """Each pass has new workers, with a copy of what was loaded, or the same ones, who never hear of it."""
    dataset = StructuredDataset(str(table[0]), batch_size=8, split_rows=20)
    batches = iter(dataset)
    received = {row for _ in range(5) for row in check_batch(next(batches))}
    state = dataset.state_dict()
    del batches
    whole = list(range(table[1]))
    left = [row for row in whole if row not in received]
    options = {"batch_size": None, "num_workers": 2, "collate_fn": as_it_is, "persistent_workers": persistent}
    plain = DataLoader(dataset, **options)
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    assert sorted_rows(plain) == left
    with pytest.raises(ConfigError, match=r"Workers of a DataLoader read this data set.*StatefulDataLoader"):
        dataset.state_dict()
    for _ in range(2):
        assert sorted_rows(plain) == whole
    dataset.load_state_dict(state)
    if persistent:
        with pytest.raises(ConfigError, match=r"persistent workers.*make a new DataLoader") as raised:
            next(iter(plain))
        let_go(raised)
        del raised
    else:
        assert sorted_rows(plain) == left
        assert sorted_rows(plain) == whole
    dataset.set_epoch(3)
    assert dataset.state_dict()["epoch"] == 3


def test_without_row_counts_a_resume_begins_with_the_next_worker(table):
    """After each stop in new processes, then in those of a plain DataLoader, whose first worker is always number 0."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    options = {"filters": pc.bit_wise_and(pc.field("row"), 3) > 0, "count_rows": False, "num_workers": 3}
    whole, received, state = [check_batch(batch) for batch in load(table[0], **options)[0]], [], None
    for stop in (5, 7, 1):
        loader, dataset = load(table[0], **options)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        received += [check_batch(next(batches)) for _ in range(stop)]
        state = json.loads(json.dumps(loader.state_dict()))
        batches.close()
    assert received == whole[:13]
    dataset.load_state_dict(state)
    plain = DataLoader(dataset, batch_size=None, num_workers=3, collate_fn=as_it_is)
    assert received + [check_batch(batch) for batch in plain] == whole
    dataset.load_state_dict(state)
    ours = stateful.StatefulDataLoader(for_torchdata(dataset), batch_size=None, num_workers=3, collate_fn=as_it_is)
    batches = iter(ours)
    received.append(check_batch(next(batches)))
    state = ours.state_dict()
    del batches
    dataset = load(table[0], **options)[1]
    ours = stateful.StatefulDataLoader(for_torchdata(dataset), batch_size=None, num_workers=3, collate_fn=as_it_is)
    ours.load_state_dict(state)
    assert received + [check_batch(batch) for batch in ours] == whole


def sorted_rows(loader):
    return sorted(row for batch in loader for row in check_batch(batch))


@pytest.mark.cases(4)
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
@pytest.mark.parametrize("num_workers", [0, 2, 4])
@pytest.mark.parametrize("steps", [0, 3, 11, 15, 16, 17, 18])
def test_torchdata_stateful_dataloader_resumes_exactly(table, num_workers, steps):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def build():
        dataset = StructuredDataset(str(table[0]), batch_size=8, shuffle=True, split_rows=20)
        return stateful.StatefulDataLoader(
            for_torchdata(dataset), batch_size=None, num_workers=num_workers, collate_fn=as_it_is
        )

    whole = [check_batch(batch) for batch in build()]
    assert len(whole) == 18
    loader = build()
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    state = loader.state_dict()
    del batches
    resumed = build()
    resumed.load_state_dict(state)
    rest = [check_batch(batch) for batch in resumed]
    assert rest == whole[steps:]
    resumed.dataset.set_epoch(0)
    assert [check_batch(batch) for batch in resumed] == whole
    assert torch.is_tensor(next(iter(build()))["row"])


@pytest.mark.cases(3)
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
@pytest.mark.parametrize("num_workers", [0, 2, 4])
@pytest.mark.parametrize("legs", [(5, 1), (5, 0), (3, 2, 1), (16, 1), (17, 1, 0)])
def test_torchdata_stateful_dataloader_resumes_again_before_every_worker_gave_a_batch(table, num_workers, legs):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    options = {"batch_size": 8, "shuffle": True, "split_rows": 20, "num_workers": 3}

    def build(state=None):
        dataset = StructuredDataset(str(table[0]), **options)
        loader = stateful.StatefulDataLoader(
            for_torchdata(dataset), batch_size=None, num_workers=num_workers, collate_fn=as_it_is
        )
        if state is not None:
            loader.load_state_dict(state)
        return loader

    whole, received, state = [check_batch(batch) for batch in build()], [], None
    for steps in legs:
        loader = build(state)
        batches = iter(loader)
        received += [check_batch(next(batches)) for _ in range(steps)]
        state = loader.state_dict()
        del batches
    loader = build(state)
    assert received + [check_batch(batch) for batch in loader] == whole
    loader.dataset.set_epoch(0)
    assert [check_batch(batch) for batch in loader] == whole


@pytest.mark.cases(3)
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("other", [{"batch_size": 4}, {"batch_size": 16}, {"drop_last": True}])
def test_torchdata_stateful_dataloader_resumes_on_another_topology_or_says_that_it_cannot(table, num_workers, other):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def build(**options):
        dataset = StructuredDataset(str(table[0]), shuffle=True, split_rows=20, **{"batch_size": 8, **options})
        return stateful.StatefulDataLoader(
            for_torchdata(dataset), batch_size=None, num_workers=num_workers, collate_fn=as_it_is
        )

    loader, resumed = build(), build(**other)
    batches = iter(loader)
    received = [row for _ in range(5) for row in check_batch(next(batches))]
    resumed.load_state_dict(loader.state_dict())
    del batches
    if num_workers > 1:
        with pytest.raises(
            CheckpointMismatchError, match=r"With several workers.* resumes only with the same .*batch 8"
        ) as raised:
            list(resumed)
        let_go(raised)
        del resumed, raised  # torchdata ends the other workers when nothing refers to its iterator any more
        return
    rest = sorted_rows(resumed)
    assert sorted(received + rest) == list(range(143)) or (other == {"drop_last": True} and len(rest) == 96)


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_state_of_one_worker_is_not_that_of_its_rank(table, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    dataset = StructuredDataset(str(table[0]), batch_size=8)
    loader = stateful.StatefulDataLoader(
        for_torchdata(dataset), batch_size=None, num_workers=num_workers, collate_fn=as_it_is
    )
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    workers = loader.state_dict()["_snapshot"]["_worker_snapshots"]
    del batches
    of_last = json.loads(json.dumps(workers[f"worker_{num_workers - 1}"]["dataset_state"]))
    wanted = f"belongs to worker {num_workers - 1} alone"
    for target in (load(table[0], shuffle=False, split_rows=None)[0], StructuredDataset(str(table[0]), batch_size=8)):
        with pytest.raises(CheckpointMismatchError, match=wanted):
            target.load_state_dict(of_last)
    with pytest.raises(CheckpointMismatchError, match=wanted):
        merge_states([of_last])


def as_it_is(batch):
    return batch


def test_start_methods_are_those_of_this_platform():
    assert set(START_METHODS) <= set(multiprocessing.get_all_start_methods())


class Wrapping(IterableDataset):
    """A data set of somebody else's that hands on what it is asked."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(self.dataset)

    def state_dict(self):
        return self.dataset.state_dict()

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state)


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
def test_torchdata_resumes_behind_the_last_batch_of_a_data_set_that_is_wrapped(table):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def build():
        dataset = for_torchdata(StructuredDataset(str(table[0]), batch_size=50))
        return stateful.StatefulDataLoader(Wrapping(dataset), batch_size=None)

    loader = build()
    batches = iter(loader)
    assert [next(batches).num_rows for _ in range(3)] == [50, 50, 43]
    resumed = build()
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_adapter_for_torchdata_has_the_epoch_and_the_position_of_its_data_set(table, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    dataset = StructuredDataset(str(table[0]), batch_size=8, shuffle=True, split_rows=20)
    adapted = for_torchdata(dataset)
    loader = stateful.StatefulDataLoader(adapted, batch_size=None, num_workers=num_workers, collate_fn=as_it_is)
    first = [check_batch(batch) for batch in loader]
    dataset.set_epoch(1)
    second = [check_batch(batch) for batch in loader]
    adapted.set_epoch(0)
    assert dataset.epoch == 0
    assert [check_batch(batch) for batch in loader] == first != second
    assert len(adapted) == len(first) == len(dataset)
    assert repr(adapted) == f"for_torchdata({dataset!r})"
