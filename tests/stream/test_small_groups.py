"""Many small row groups: decoded several by one job, joined there, and still each row in its place."""

import os
import threading

import pytest

from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.stream.worker import WorkerStream

FILES = [[5, 3], [4], [7, 1, 2]] * 20


def load(folder, **options):
    loader, _ = StructuredDataset.create_dataloader(str(folder), **{"num_workers": 0, "batch_size": 16, **options})
    return loader


@pytest.mark.parametrize("decode_threads", [1, 3])
@pytest.mark.parametrize("budget", ["64MiB", 400])
def test_rows_come_in_order_whatever_is_decoded_together(tmp_path, decode_threads, budget):
    total = write_table(tmp_path, FILES)
    loader = load(tmp_path, decode_threads=decode_threads, decode_ahead_bytes=budget)
    assert [row for batch in loader for row in check_batch(batch)] == list(range(total))


@pytest.mark.parametrize("bad", [0, 1, 29])
def test_rows_before_a_bad_file_are_delivered_and_the_error_names_it(tmp_path, bad):
    write_table(tmp_path, FILES)
    inventory = load(tmp_path).plan.inventory
    path = tmp_path / f"part-{bad:02}.parquet"
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    before = sum(map(sum, FILES[:bad]))
    rows = []
    with pytest.raises(DataError, match=path.name):  # noqa: PT012 - what came before it counts
        for batch in load(tmp_path, inventory=inventory):
            rows += check_batch(batch)
    assert rows == list(range(before // 16 * 16))


def test_a_pass_that_is_given_up_leaves_no_thread(tmp_path):
    write_table(tmp_path, FILES)
    before = set(threading.enumerate())
    batches = iter(load(tmp_path))
    next(batches)
    batches.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("shuffle_rows", [None, 11])
def test_a_state_in_the_middle_of_what_was_decoded_together(tmp_path, shuffle_rows):
    write_table(tmp_path, FILES)
    options = {"shuffle": True, "shuffle_rows": shuffle_rows, "shuffle_seed": 3}
    whole = [check_batch(batch) for batch in load(tmp_path, **options)]
    loader = load(tmp_path, **options)
    batches = iter(loader)
    first = [check_batch(next(batches)) for _ in range(7)]
    state = loader.state_dict()
    batches.close()
    other = load(tmp_path, **options)
    other.load_state_dict(state)
    assert first + [check_batch(batch) for batch in other] == whole


def test_windows_hold_no_second_copy_of_small_row_groups(tmp_path):
    write_table(tmp_path, FILES)
    dataset = load(tmp_path, shuffle=True, shuffle_rows=11).dataset
    (work,) = dataset.plan().worker_inputs(rank=0)
    stream = WorkerStream(work, dataset.pipeline, dataset.decode)
    for _ in stream:
        assert not stream._lanes[0]._blocks._ahead._joined


def test_a_join_that_fails_leaves_the_row_groups_alone(tmp_path, monkeypatch):
    total = write_table(tmp_path, FILES)

    def fail(blocks):
        raise MemoryError

    loader = load(tmp_path)
    shaper = type(loader.dataset.pipeline.shaper)
    concat = shaper.concat
    monkeypatch.setattr(
        shaper, "concat", lambda self, blocks: concat(self, blocks) if len(blocks) < 3 else fail(blocks)
    )
    monkeypatch.setattr("torch_dataloader_utils.stream.lane._JOINED_BATCHES", 0)
    loader = load(tmp_path, batch_size=1)
    assert [row for batch in loader for row in check_batch(batch)] == list(range(total))
