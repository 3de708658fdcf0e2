"""Work that follows other work is done once, by whoever ends last, and keeps nothing alive."""

import gc
import threading
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stream.tables import wait_until, write_table
from torch_dataloader_utils import Lanes, StructuredDataset
from torch_dataloader_utils._core.block import RowGroupReader
from torch_dataloader_utils._core.row_group_task import ALL_ROWS
from torch_dataloader_utils.shape.shapers import ColumnShaper
from torch_dataloader_utils.stream.decode_jobs import DependentJob


class NoPool:
    """Where nothing may be submitted."""

    def submit(self, job):
        raise AssertionError(f"{job} was left to the pool")


@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_job_runs_once_as_soon_as_the_last_is_done(order, done_before):
    needed, ran = [Future() for _ in order], []
    for number in order[:done_before]:
        needed[number].set_result(number)
    result = DependentJob(NoPool(), ran.append, needed)
    for number in order[done_before:]:
        assert not ran
        needed[number].set_result(number)
    assert ran == [[0, 1, 2, 3]]
    assert result.done()
    assert result.result() is None


def test_the_thread_that_ends_last_does_it():
    needed, threads = [Future(), Future()], []
    result = DependentJob(NoPool(), lambda _: threads.append(threading.current_thread().name), needed)
    for name, future in zip(("first", "last"), needed, strict=True):
        thread = threading.Thread(target=future.set_result, args=(None,), name=name)
        thread.start()
        thread.join()
    assert result.done()
    assert threads == ["last"]


@pytest.mark.parametrize("count", [0, 2])
def test_what_is_ready_is_done_by_the_pool_or_by_who_wants_it(count):
    needed = [Future() for _ in range(count)]
    for future in needed:
        future.set_result(None)
    gate, ran = threading.Event(), []

    def job(results):
        assert results == [None] * count
        ran.append(threading.current_thread().name)
        return len(ran)

    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        alone = DependentJob(pool, job, needed)
        pool.submit(int).result(timeout=60)
        assert alone.done()
        pool.submit(gate.wait)
        wanted = DependentJob(pool, job, needed)
        assert not wanted.done()
        assert (alone.result(), wanted.result()) == (1, 2)
        gate.set()
    assert [name.partition("_")[0] for name in ran] == ["pool", "MainThread"]


def test_errors_and_cancelled_work_come_where_the_result_is_taken():
    failed, cancelled, fine = Future(), Future(), Future()
    of_failed = DependentJob(NoPool(), sum, [failed, fine])
    of_cancelled = DependentJob(NoPool(), len, [cancelled])
    failed.set_exception(OSError("no disk"))
    assert not of_failed.done()
    cancelled.cancel()
    fine.set_result(1)
    with pytest.raises(OSError, match="no disk"):
        of_failed.result()
    with pytest.raises(CancelledError):
        of_cancelled.result()


class Rows:
    """Something that can be seen to die."""


@pytest.fixture
def no_collector():
    """Nothing dies that something refers to, not even itself."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_what_was_waited_for_is_let_go_of():
    needed, rows = [Future()], Rows()
    result = DependentJob(NoPool(), len, needed)
    needed[0].set_result(rows)
    seen = weakref.ref(rows)
    del rows, needed
    assert result.result() == 1
    assert seen() is None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_ready", [True, False])
def test_a_result_that_was_taken_is_kept_by_nobody_else(is_ready):
    """Neither by a row group that lives on, nor by a pool whose threads are all busy."""
    gate, needed = threading.Event(), Future()
    if is_ready:
        needed.set_result(None)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gate.wait)
        work = DependentJob(pool, lambda _: Rows(), [needed])
        if not is_ready:
            needed.set_result(None)
        seen = weakref.ref(work.result())
        del work
        assert seen() is None
        gate.set()


@pytest.mark.usefixtures("no_collector")
def test_what_failed_keeps_nothing():
    rows, needed = Rows(), Future()
    work = DependentJob(NoPool(), lambda _, rows=rows: rows, [needed])
    seen = weakref.ref(rows)
    needed.set_exception(OSError("no disk"))
    del work, rows, needed
    assert seen() is None


@dataclass
class GatedReader:
    """Reads the first `free` row groups, others only once the gate is open; `late` tells that it was waited for."""

    reader: RowGroupReader
    free: int
    gate: threading.Event = field(default_factory=threading.Event)
    late: bool = False

    def read_columns(self, task, rows=ALL_ROWS):
        if task.ordinal >= self.free and not self.gate.wait(timeout=20):
            self.late = True
            self.gate.set()
        yield from self.reader.read_columns(task, rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_window_does_not_wait_for_row_groups_of_later_ones(tmp_path, threads):
    """All are begun at once, as far as the budget goes: on a slow store the first batch must not wait for them."""
    total = write_table(tmp_path, [[4] * 12])
    options = {"batch_size": 4, "num_workers": 0, "shuffle_rows": 8, "interleave": 2}
    dataset = StructuredDataset(str(tmp_path), **options)
    reader = GatedReader(dataset.pipeline.reader, free=2)
    decode = replace(dataset.stages.decode, threads=threads, small_bytes=0)  # as for a store
    dataset.stages = replace(dataset.stages, pipeline=replace(dataset.pipeline, reader=reader), decode=decode)
    batches = iter(dataset)
    rows = next(batches).num_rows
    reader.gate.set()
    assert rows + sum(batch.num_rows for batch in batches) == total
    assert not reader.late


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("lanes", [None, Lanes(4, rows=1)])
def test_passes_that_are_given_up_leave_no_rows(tmp_path, monkeypatch, lanes):
    write_table(tmp_path, [[40] * 12])
    seen, block = [], ColumnShaper.block

    def watched(self, parts):
        made = block(self, parts)
        seen.append(weakref.ref(made.columns[0].values))
        return made

    monkeypatch.setattr(ColumnShaper, "block", watched)
    options = {"batch_size": 4, "num_workers": 0, "shuffle": True, "shuffle_rows": 60, "interleave": 2, "lanes": lanes}
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), **options)
    for epoch in range(10):
        loader.set_epoch(epoch)
        batches = iter(loader)
        next(batches)
        del batches
    wait_until(lambda: not any(thread.name.startswith("tdu-decode") for thread in threading.enumerate()))
    assert seen
    assert not any(rows() is not None for rows in seen)
