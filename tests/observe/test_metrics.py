"""Metrics of real loaders: what was delivered is what was counted, for every engine."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.engine import needs_engine
from tests.interleaved import between_calls_in
from tests.stream.tables import files, write_table
from torch_dataloader_utils import Decoding, Lanes, StructuredDataset, _engine
from torch_dataloader_utils._observe import meter
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.errors import CorruptFileError


class Recorder(LoaderCallback):
    """Keeps the calls that it gets."""

    def __init__(self):
        self.events = []

    def on_epoch_start(self, run):
        self.events.append(("start", run.epoch, run.num_batches, run.num_rows))

    def on_batch(self, run, batch):
        self.events.append(("batch", batch.num_rows, run.metrics().batches))

    def on_epoch_end(self, run, *, completed):
        self.events.append(("end", completed, run.metrics()))


def make(folder, **options):
    return StructuredDataset.create_dataloader(str(folder), **{"batch_size": 16, **options})[0]


@pytest.fixture
def table(tmp_path):
    """165 rows in six row groups."""
    write_table(tmp_path, [[40, 30], [35], [20, 20, 20]])
    return tmp_path


@pytest.mark.slow
@settings(max_examples=effort(60))
@given(
    files=files.filter(lambda found: sum(map(sum, found))),
    ranks=st.integers(1, 4),
    batch_size=st.integers(1, 9),
    options=st.sampled_from(
        [{}, {"shuffle": True}, {"shuffle_rows": 7}, {"drop_last": True}, {"lanes": Lanes(12, rows=1)}]
    ),
)
@pytest.mark.filterwarnings("ignore:.*rows? will come a second time", "ignore:The epoch has no steps")
def test_rows_batches_and_padding_are_those_that_came(tmp_path_factory, files, ranks, batch_size, options):
    folder = tmp_path_factory.mktemp("table")
    total = write_table(folder, files)
    if "lanes" in options:
        options = {"lanes": Lanes(ranks * batch_size, rows=1)}
    padding = dropped = rows = 0
    for rank in range(ranks):
        loader = make(folder, num_ranks=ranks, rank=rank, num_workers=0, batch_size=batch_size, **options)
        dropped = loader.plan.dropped_rows
        came = [batch.num_rows for batch in loader]
        metrics = loader.metrics()
        assert (metrics.rows, metrics.batches, metrics.passes) == (sum(came), len(came), 1)
        assert metrics.padding_rows == loader.plan.padding_rows(rank)
        assert metrics.queue_depth == 0
        padding += metrics.padding_rows
        rows += metrics.rows
    assert rows == total - dropped + padding


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_engine_counts_the_same(table, num_workers):
    recorder = Recorder()
    loader = make(table, num_workers=num_workers, callbacks=[recorder])
    for epoch in range(2):
        loader.set_epoch(epoch)
        rows = [batch.num_rows for batch in loader]
        assert sum(rows) == 165
    metrics = loader.metrics()
    assert (metrics.passes, metrics.batches, metrics.rows) == (2, 22, 330)
    # A row group that two workers share is decoded by both.
    assert metrics.row_groups == 12 + 2 * (num_workers == 2)
    assert metrics.decoded_bytes > 0
    assert metrics.decode_seconds > 0
    # Where decoding keeps ahead there is no stall, so neither part alone has a lower bound.
    assert min(metrics.stall_seconds, metrics.handover_seconds) >= 0
    assert metrics.stall_seconds + metrics.handover_seconds > 0
    assert 0 < metrics.wait_seconds <= metrics.seconds
    assert metrics.transform_seconds == 0
    assert metrics.requests == metrics.retries == metrics.fetched_bytes == 0
    starts = [event for event in recorder.events if event[0] == "start"]
    assert starts == [("start", 0, 11, 165), ("start", 1, 11, 165)]
    assert [event[2] for event in recorder.events if event[0] == "batch"] == [*range(1, 12), *range(1, 12)]
    assert [event[1] for event in recorder.events if event[0] == "end"] == [True, True]


@pytest.mark.processes
def test_persistent_workers_count_on(table):
    loader = make(table, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert sum(batch.num_rows for batch in loader) == 165
    assert loader.metrics().rows == 3 * 165
    assert loader.metrics().row_groups == 3 * 6


def test_without_row_counts_rows_are_counted_as_they_come(table):
    import pyarrow.compute as pc

    recorder = Recorder()
    loader = make(table, num_workers=0, filters=pc.field("row") < 83, count_rows=False, callbacks=[recorder])
    rows = sum(batch.num_rows for batch in loader)
    assert rows == 83
    assert loader.metrics().rows == 83
    assert recorder.events[0] == ("start", 0, None, None)


def test_a_broken_pass_ends_once_and_is_not_completed(table):
    recorder = Recorder()
    loader = make(table, num_workers=0, callbacks=[recorder])
    for number, _ in enumerate(loader):
        if number == 2:
            break
    ends = [event for event in recorder.events if event[0] == "end"]
    assert [(completed, metrics.batches) for _, completed, metrics in ends] == [(False, 3)]
    assert loader.metrics().passes == 0


def test_a_pass_is_complete_with_its_last_batch_even_if_nobody_asks_for_one_more(table):
    recorder = Recorder()
    loader = make(table, num_workers=0, callbacks=[recorder])
    taken = itertools.islice(loader, len(loader))
    assert sum(batch.num_rows for batch in taken) == 165
    del taken
    assert loader.metrics().passes == 1
    assert recorder.events[-1][:2] == ("end", True)


def test_a_resumed_pass_says_what_is_left(table):
    loader = make(table, num_workers=0)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    batches.close()
    recorder = Recorder()
    resumed = make(table, num_workers=0, callbacks=[recorder])
    resumed.load_state_dict(state)
    assert sum(batch.num_rows for batch in resumed) == 165 - 64
    assert recorder.events[0] == ("start", 0, 7, 165 - 64)


def test_what_a_callback_raises_reaches_the_trainer_and_ends_the_pass(table):
    class Refuses(LoaderCallback):
        def on_batch(self, run, batch):
            raise RuntimeError("enough")

    recorder = Recorder()
    loader = make(table, num_workers=0, callbacks=[Refuses(), recorder])
    with pytest.raises(RuntimeError, match="enough"):
        list(loader)
    assert recorder.events[-1][:2] == ("end", False)


def test_a_callback_that_raises_at_the_start_ends_the_pass(table):
    class Refuses(LoaderCallback):
        def on_epoch_start(self, run):
            raise RuntimeError("not today")

    recorder = Recorder()
    loader = make(table, num_workers=0, callbacks=[recorder, Refuses()])
    with pytest.raises(RuntimeError, match="not today"):
        list(loader)
    assert recorder.events[-1][:2] == ("end", False)
    assert loader.metrics() == loader.metrics()  # its clock stands still


def test_time_of_the_trainer_is_not_waiting(table, monkeypatch):
    loader = make(table, num_workers=0)
    clock = itertools.count(step=1_000_000_000)
    monkeypatch.setattr("torch_dataloader_utils._observe.meter.perf_counter_ns", lambda: next(clock))
    list(loader)
    metrics = loader.metrics()
    # Every look at the clock is a second: two for each of 12 calls of next(), and one before and after the pass.
    assert metrics.wait_seconds == 12
    assert metrics.seconds == 25
    assert metrics.wait_fraction == 12 / 25
    assert metrics.rows_per_second == 165 / 25


def test_metrics_subtract():
    none = Metrics().cache_events
    earlier = Metrics(rows=10, seconds=1.0, queue_depth=3, cache_events={**none, "hits": 1})
    later = Metrics(rows=25, seconds=1.5, queue_depth=1, cache_events={**none, "hits": 5})
    expected = Metrics(rows=15, seconds=0.5, queue_depth=1, cache_events={**none, "hits": 4})
    assert later - earlier == expected == Metrics.from_dict(expected.to_dict())
    assert (later - earlier).to_dict()["cache_events.hits"] == 4
    assert Metrics().rows_per_second == Metrics().wait_fraction == Metrics().decoded_bytes_per_second == 0.0


def test_requests_to_remote_storage_are_counted(table):
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in sorted(table.glob("*.parquet")):
        memory.pipe(f"/metrics/{path.name}", path.read_bytes())
    try:
        loader = StructuredDataset.create_dataloader("memory://metrics", batch_size=16, num_workers=0)[0]
        assert sum(batch.num_rows for batch in loader) == 165
        metrics = loader.metrics()
        assert metrics.requests >= metrics.row_groups
        assert metrics.fetched_bytes > 0
    finally:
        memory.rm("/metrics", recursive=True)


def test_metrics_can_be_read_from_another_thread_while_a_pass_runs(table):
    from concurrent.futures import ThreadPoolExecutor

    loader = make(table, num_workers=0, batch_size=1)
    with ThreadPoolExecutor(1) as pool:
        seen = []
        for number, _ in enumerate(loader, start=1):
            metrics = pool.submit(loader.metrics).result()
            assert metrics.batches == metrics.rows == number
            seen.append(metrics.seconds)
        assert seen == sorted(seen)


def test_what_another_thread_reads_never_goes_down_as_a_pass_begins(table):
    loader = make(table, num_workers=0)
    list(loader)
    once, seen = loader.metrics(), []
    with between_calls_in(meter, lambda: seen.append(loader.metrics())):
        next(iter(loader))
    assert (seen[0].batches, seen[-1].batches) == (once.batches, once.batches + 1)
    for earlier, later in itertools.pairwise([once, *seen]):
        change = (later - earlier).to_dict()
        assert min(change.values()) >= 0


GROUP_ROWS = 5_000  # large enough not to be joined with others


def write_kinds(path, groups, kinds="ngtl"):
    """Row groups with a column of each kind: numbers, numbers that only pyarrow decompresses, text, two in a struct."""
    rows = np.arange(groups * GROUP_ROWS)
    text = pa.array([f"{row:0100}" for row in rows])
    columns = {
        "n": rows,
        "g": rows * 7,
        "t": text,
        "l": pa.StructArray.from_arrays([pa.array(rows), pa.array(rows)], ["x", "y"]),
    }
    table = pa.table({name: columns[name] for name in kinds})
    options = {"compression": {"g": "brotli"}, "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=GROUP_ROWS, **options)


def chunks_of(metrics):
    return {kind: number for kind, number in metrics.column_chunks.items() if number}


@pytest.mark.processes
@needs_engine
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_engine_says_which_decoder_read_how_many_chunks_and_why(tmp_path, num_workers):
    write_kinds(tmp_path / "a.parquet", groups=4)
    loader = make(tmp_path, num_workers=num_workers, batch_size=GROUP_ROWS)
    assert loader.metrics().describe_chunks() == ""
    assert sum(batch.num_rows for batch in loader) == 4 * GROUP_ROWS
    metrics = loader.metrics()
    assert metrics.row_groups == 4
    assert chunks_of(metrics) == {"compiled": 12, "codec": 4, "type": 4}
    text = "column chunks: 12 by the compiled decoder, 8 by pyarrow (type 4, codec 4)"
    assert repr(loader).endswith(f"; {text}>")


@pytest.mark.parametrize(
    ("is_built", "kind"),
    [pytest.param(True, "turned_off", marks=needs_engine), (False, "not_built")],
)
def test_chunks_say_that_there_is_no_compiled_decoder_or_that_it_is_turned_off(tmp_path, monkeypatch, is_built, kind):
    monkeypatch.setattr(_engine, "IS_BUILT", is_built)
    # Columns in an order of their own: what is known of files with the same columns is kept.
    write_kinds(tmp_path / "a.parquet", groups=2, kinds="tlng" if is_built else "gtln")
    loader = make(tmp_path, num_workers=0, batch_size=GROUP_ROWS, decoding=Decoding(compiled=not is_built))
    assert sum(batch.num_rows for batch in loader) == 2 * GROUP_ROWS
    assert chunks_of(loader.metrics()) == {kind: 10}


def test_chunks_of_small_row_groups_are_counted_whoever_decodes_them(table):
    loader = make(table, num_workers=0)
    assert sum(batch.num_rows for batch in loader) == 165
    assert sum(chunks_of(loader.metrics()).values()) == 4 * 6


@pytest.mark.slow
@settings(max_examples=effort(20))
@given(
    kinds=st.sets(st.sampled_from("ngtl"), min_size=1).map(sorted).map("".join),
    groups=st.integers(1, 3),
    ranks=st.integers(1, 3),
)
def test_over_all_ranks_each_chunk_is_counted_once_a_row_group(tmp_path_factory, kinds, groups, ranks):
    folder = tmp_path_factory.mktemp("table")
    write_kinds(folder / "a.parquet", groups, kinds)
    for rank in range(ranks):
        loader = make(folder, num_ranks=ranks, rank=rank, num_workers=0, batch_size=1_000)
        list(loader)
        metrics = loader.metrics()
        leaves = len(kinds) + ("l" in kinds)
        assert sum(chunks_of(metrics).values()) == leaves * metrics.row_groups


@needs_engine
def test_a_damaged_chunk_is_counted_as_it_was_given_to_pyarrow(tmp_path):
    path = tmp_path / "a.parquet"
    write_kinds(path, groups=1, kinds="n")
    content = bytearray(path.read_bytes())
    content[5_000] ^= 1  # of a value, in the only page
    path.write_bytes(content)
    loader = make(tmp_path, num_workers=0)
    with pytest.raises(CorruptFileError):
        list(loader)
    assert chunks_of(loader.metrics()) == {"damaged": 1}
