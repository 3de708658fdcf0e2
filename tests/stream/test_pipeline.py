"""The whole pipeline on real files, in one process: every row once, equal steps, whatever the table and topology."""

import gc
import json
import operator
import threading

import numpy as np
import psutil
import pyarrow.compute as pc
import pytest
import torch
from torch.utils.data import default_collate

from tests.stream.tables import TABLE, check_batch, write_table
from torch_dataloader_utils import StructuredDataset, scan_files
from torch_dataloader_utils.errors import CheckpointMismatchError, NoDataError, TransformError
from torch_dataloader_utils.stream.decode import DecodeOptions, DecodeScheduler
from torch_dataloader_utils.stream.worker import WorkerStream


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    return folder, write_table(folder, TABLE)


def load(folder, **options):
    return StructuredDataset.create_dataloader(str(folder), **{"batch_size": 8, "num_workers": 0, **options})


def test_nothing_of_a_finished_pass_waits_for_the_garbage_collector(table):
    """What decodes refers to the plan of a worker: of a million row groups, hundreds of megabytes."""
    loader, _ = load(table[0])
    gc.collect()
    gc.disable()
    try:
        assert list(loader)
        for thread in threading.enumerate():
            if thread.name.startswith("tdu-decode"):
                thread.join()  # it may not have let go of its last job yet
        assert [each for each in gc.get_objects() if type(each) is DecodeScheduler] == []
    finally:
        gc.enable()


def test_a_pass_after_break_begins_the_epoch_again(table):
    loader, _ = load(table[0])
    first = [check_batch(batch) for batch in loader]
    for batch in loader:
        assert check_batch(batch) == first[0]
        break
    assert [check_batch(batch) for batch in loader] == first


@pytest.mark.parametrize("batches_of", [iter, lambda stream: stream.batch_groups(2)])
@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_a_pass_that_ends_early_leaves_no_thread_and_no_open_file(table, batches_of, small_bytes):
    _, dataset = load(table[0])
    (work,) = dataset.plan.worker_inputs(0)
    options = DecodeOptions(threads=3, budget_bytes=1 << 20, small_bytes=small_bytes)
    before = set(threading.enumerate())
    stream = WorkerStream(work, dataset.pipeline, options)
    batches = batches_of(stream)
    next(batches)
    threads = set(threading.enumerate()) - before
    assert threads
    batches.close()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert not [file for file in psutil.Process().open_files() if file.path.startswith(str(table[0]))]


def test_the_state_counts_received_batches_and_names_the_next_epoch_at_the_end(table):
    loader, dataset = load(table[0])
    assert loader.state_dict()["log"]["steps"] == []
    for step, _ in enumerate(loader, start=1):
        assert loader.state_dict()["log"]["steps"] == ([step] if step < len(loader) else [])
    assert loader.state_dict()["epoch"] == 1
    assert dataset.state_dict() == loader.state_dict()


def test_setting_the_loaded_epoch_keeps_the_position_and_another_one_does_not(table):
    loader, _ = load(table[0], shuffle=True)
    loader.set_epoch(2)
    rest = [check_batch(batch) for batch in loader]
    loader.set_epoch(2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    loader, _ = load(table[0], shuffle=True)
    loader.load_state_dict(state)
    loader.set_epoch(2)
    assert [check_batch(batch) for batch in loader] == rest[1:]
    loader.load_state_dict(state)
    loader.set_epoch(3)
    assert len(list(loader)) == len(rest)


def test_a_state_of_other_data_or_options_is_refused_with_both_sides(table, tmp_path):
    state = load(table[0])[0].state_dict()
    write_table(tmp_path, [[5]])
    with pytest.raises(CheckpointMismatchError, match=r"data fingerprint.*copied or touched"):
        load(tmp_path)[0].load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="with shuffle=False, here True; seed=42, here 7"):
        load(table[0], shuffle=True, shuffle_seed=7)[0].load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="checksum"):
        load(table[0])[0].load_state_dict({**state, "epoch": 7})
    for epoch in (np.int64(0), torch.tensor(0)):
        with pytest.raises(
            CheckpointMismatchError, match=r"has values that no state contains .* not JSON serializable"
        ):
            load(table[0])[0].load_state_dict({**state, "epoch": epoch})


def test_a_state_of_a_later_version_is_told_as_one_whatever_it_has(table):
    loader = load(table[0])[0]
    state = {**loader.state_dict(), "version": 4}
    for later in (state, {**state, "order": []}, {key: state[key] for key in state if key != "log"}):
        with pytest.raises(CheckpointMismatchError, match=r"has version 4, this library reads versions 2 and 3\. Load"):
            loader.load_state_dict(later)
    for other in ({"version": 4, "model": {}}, {"model": {}}, None):
        with pytest.raises(CheckpointMismatchError, match=r"Not a loader state: (a|an|keys|None) "):
            loader.load_state_dict(other)
    with pytest.raises(CheckpointMismatchError, match=r"Not a loader state, but text\. .*json\.loads"):
        loader.load_state_dict(json.dumps(state))


def test_a_second_shuffled_pass_without_set_epoch_warns(table):
    loader, dataset = load(table[0], shuffle=True)
    first = [check_batch(batch) for batch in loader]
    with pytest.warns(UserWarning, match="without set_epoch") as warned:
        assert [check_batch(batch) for batch in loader] == first
    assert [warning.filename for warning in warned] == [__file__]
    dataset.set_epoch(1)
    assert [check_batch(batch) for batch in loader] != first


def test_an_inventory_saves_the_scan(table):
    inventory = scan_files(str(table[0]))
    loader, _ = StructuredDataset.create_dataloader("", inventory=inventory, num_workers=0)
    assert sum(batch.num_rows for batch in loader) == table[1]


@pytest.mark.parametrize("path", ["{table}/elsewhere", ["{table}/part-00.parquet"], "memory://table"])
def test_an_inventory_of_other_files_than_the_path_warns(table, path):
    path = path.format(table=table[0]) if isinstance(path, str) else [each.format(table=table[0]) for each in path]
    inventory = scan_files(str(table[0]))
    with pytest.warns(UserWarning, match="is not what is read: inventory= is, and has files elsewhere") as warned:
        loader, _ = StructuredDataset.create_dataloader(path, inventory=inventory, num_workers=0)
    assert [warning.filename for warning in warned] == [__file__]
    assert sum(batch.num_rows for batch in loader) == table[1]


def test_an_inventory_may_be_of_a_part_of_what_is_named(table):
    inventory = scan_files(f"{table[0]}/part-00.parquet")
    for path in (table[0], [f"{table[0]}/*"], [], None):
        assert len(StructuredDataset(path, inventory=inventory)) > 0


def test_unknown_counts_deliver_every_row_and_have_no_length(table):
    expression = pc.field("row") > 100
    loader, _ = load(table[0], filters=expression, count_rows=False)
    with pytest.raises(TypeError, match="not known"):
        len(loader)
    assert sorted(row for batch in loader for row in check_batch(batch)) == list(range(101, table[1]))


@pytest.mark.slow
@pytest.mark.parametrize("shuffle_rows", [None, 25])
def test_unknown_counts_resume_by_cursor(table, shuffle_rows):
    options = {"filters": pc.field("row") > 30, "count_rows": False, "shuffle_rows": shuffle_rows, "split_rows": 20}
    whole = [check_batch(batch) for batch in load(table[0], **options)[0]]
    for step in range(len(whole)):
        loader, _ = load(table[0], **options)
        batches = iter(loader)
        assert [check_batch(next(batches)) for _ in range(step)] == whole[:step]
        resumed, _ = load(table[0], **options)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert [check_batch(batch) for batch in resumed] == whole[step:]


def test_a_transform_that_raises_says_on_which_rows(table):
    def broken(batch):
        raise KeyError("label")

    loader, _ = load(table[0], transform=broken)
    with pytest.raises(TransformError, match=r"broken raised KeyError: 'label'\. The.*part-00.parquet row group 0"):
        next(iter(loader))


def test_a_transform_that_names_no_column_is_quoted_without_doubled_marks(table):
    for name, ends in (("nothing", r"the columns are .*'\."), ("pay_load", r"did you mean 'payload'\?")):
        loader, _ = load(table[0], transform=operator.itemgetter(name))
        with pytest.raises(
            TransformError, match=rf"KeyError: a batch has no column '{name}'; {ends} The batch ends in"
        ):
            next(iter(loader))


@pytest.mark.parametrize("collate", [default_collate, lambda samples: [sample["id"] for sample in samples]])
def test_a_collate_function_of_torchs_kind_is_told_what_it_is_given(table, collate):
    loader, _ = load(table[0], collate_fn=collate)
    with pytest.raises(
        TransformError, match="The function gets one batch, a TensorBatch of columns, not a list of samples"
    ):
        next(iter(loader))


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(NoDataError):
        load(tmp_path)
