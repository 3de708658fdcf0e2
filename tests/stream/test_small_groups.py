"""Many small row groups: decoded several by one job, joined there, and still each row in its place."""

import os
import threading
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import Decoding, StructuredDataset
from torch_dataloader_utils._arrow.batches import one_after_other
from torch_dataloader_utils._core.row_group_task import ALL_ROWS
from torch_dataloader_utils.errors import DataError, FileChangedError, LoaderError, NullValueError, SchemaError
from torch_dataloader_utils.stream.batch_groups import BlockSlice, in_few_blocks
from torch_dataloader_utils.stream.decode import DecodeScheduler
from torch_dataloader_utils.stream.decode_jobs import DecodeJob
from torch_dataloader_utils.tables.reader import Reader

FILES = [[5, 3], [4], [7, 1, 2]] * 20


def load(folder, **options):
    loader, _ = StructuredDataset.create_dataloader(str(folder), **{"num_workers": 0, "batch_size": 16, **options})
    return loader


@pytest.mark.slow
@pytest.mark.parametrize("decode_threads", [1, 3])
@pytest.mark.parametrize("budget", ["64MiB", 400])
def test_rows_come_in_order_whatever_is_decoded_together(tmp_path, decode_threads, budget):
    total = write_table(tmp_path, FILES)
    loader = load(tmp_path, decoding=Decoding(threads=decode_threads, ahead_bytes=budget))
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
        thread.join(60)
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


def test_row_groups_that_do_not_join_are_taken_alone(tmp_path, monkeypatch):
    """And no further ones are read in vain."""
    total = write_table(tmp_path, FILES)
    loader, reads, joins = load(tmp_path), [], []
    read = Reader.read_columns

    def counted(self, task, rows=ALL_ROWS):
        reads.append(task.where)
        return read(self, task, rows)

    def fail(self, tasks):
        joins.append(len(tasks))
        raise MemoryError

    monkeypatch.setattr(Reader, "read_together", fail)
    monkeypatch.setattr(Reader, "read_columns", counted)
    assert [row for batch in loader for row in check_batch(batch)] == list(range(total))
    assert loader.metrics().row_groups == sum(map(len, FILES))
    assert len(joins) == 1
    assert len(reads) == sum(map(len, FILES))


@pytest.mark.parametrize("shuffle_rows", [None, 11])
@pytest.mark.parametrize("num_lanes", [None, 4])
def test_jobs_that_are_needed_now_take_no_more_than_the_budget_has(tmp_path, monkeypatch, shuffle_rows, num_lanes):
    """A row group for itself, whatever is held; others with it only as far as there is room."""
    write_table(tmp_path, FILES)
    held = []
    submit = DecodeScheduler.submit

    def seen(self, groups):
        job = submit(self, groups)
        held.append((self._held_bytes - self._projected_bytes(job.groups[:1]), self._budget_bytes, len(groups)))
        return job

    monkeypatch.setattr(DecodeScheduler, "submit", seen)
    options = {"shuffle": True, "shuffle_rows": shuffle_rows, "lanes": num_lanes}
    assert sum(batch.num_rows for batch in load(tmp_path, decoding=Decoding(ahead_bytes=3000), **options)) == 440
    assert all(beside <= budget for beside, budget, together in held if together > 1)
    assert any(together > 1 for *_, together in held)


def one_by_one(loader):
    """The same loader, with every row group a job of its own."""
    stages = loader.dataset.stages
    loader.dataset.stages = replace(stages, decode=replace(stages.decode, small_bytes=0))
    return loader


def as_lists(loader):
    """All batches as Python's own values, and the error at the end if there is one."""
    batches = []
    try:
        for batch in loader:
            columns = batch if isinstance(batch, dict) else batch.to_pydict() if hasattr(batch, "to_pydict") else None
            columns = {name: batch[name] for name in batch} if columns is None else columns
            batches.append({name: [np.asarray(value).tolist() for value in values] for name, values in columns.items()})
    except LoaderError as error:
        return batches, f"{type(error).__name__}: {error}"
    return batches, None


COLUMNS = {
    "number": lambda rows: pa.array(rows, pa.int64()),
    "narrow": lambda rows: pa.array(rows, pa.int16()),
    "text": lambda rows: pa.array([f"row {row}" for row in rows], pa.string()),
    "lists": lambda rows: pa.array([list(range(row % 4)) for row in rows], pa.list_(pa.int32())),
    "category": lambda rows: pa.array([f"kind {row % 3}" for row in rows], pa.string()).dictionary_encode(),
    "holes": lambda rows: pa.array([None if row % 5 == 0 else row / 2 for row in rows], pa.float64()),
}


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["numpy", "arrow", "dict"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_whose_columns_differ_come_as_they_come_one_by_one(tmp_path_factory, output_format, data):
    """In their order and in their categories, under hive partitions, and with nulls that are masked."""
    folder, row = tmp_path_factory.mktemp("files"), 0
    # Without categories, and in one order, they are read by one call.
    columns = [name for name in COLUMNS if name != "category" or data.draw(st.booleans())]
    names, differ = columns, data.draw(st.booleans())
    for file in range(data.draw(st.integers(2, 9))):
        names = data.draw(st.permutations(columns)) if differ else names
        rows = range(row, row := row + data.draw(st.integers(0 if file else 1, 7)))
        table = pa.table({name: COLUMNS[name](rows) for name in names})
        place = folder / f"part={data.draw(st.sampled_from(['a', 'b']))}"
        place.mkdir(exist_ok=True)
        pq.write_table(table, place / f"{file}.parquet")
    nulls = {"nulls": {"holes": "mask"}} if output_format == "numpy" else {}
    options = {
        "output_format": output_format,
        "shuffle": data.draw(st.booleans()),
        "shuffle_rows": data.draw(st.sampled_from([None, 4])),
        "batch_size": data.draw(st.integers(1, 9)),
        **nulls,
    }
    assert as_lists(load(folder, **options)) == as_lists(one_by_one(load(folder, **options)))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_error_of_values_that_do_not_fit_names_their_row_group(tmp_path, is_replaced):
    for file in range(20):
        second = None if file == 13 and not is_replaced else 1
        table = pa.table({"row": pa.array([file, second])})
        pq.write_table(table, tmp_path / f"{file:02}.parquet", write_statistics=False)  # else it is known at build
    loader = load(tmp_path, batch_size=2)
    if is_replaced:
        pq.write_table(pa.table({"row": pa.array([13, None])}), tmp_path / "13.parquet")
    rows = []
    with pytest.raises(FileChangedError if is_replaced else NullValueError, match=r"13\.parquet") as caught:
        rows.extend(int(batch["row"][0]) for batch in loader)
    assert rows == list(range(13))
    assert is_replaced or "row group 0: column 'row' (int64) has 1 null in 2 values" in str(caught.value)
    assert is_replaced or caught.value.__context__ is None


def write_categories(folder, num_files):
    """Each file has 100 of its own, in int8."""
    for file in range(num_files):
        names = pa.array([f"{file}-{row}" for row in range(100)])
        column = names.dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
        pq.write_table(pa.table({"row": range(100), "name": column}), folder / f"{file:02}.parquet")


@pytest.mark.parametrize("output_format", ["torch", "dict"])
def test_more_categories_than_an_index_type_allows_are_joined_by_their_values(tmp_path, output_format):
    write_categories(tmp_path, 20)
    loader = load(tmp_path, batch_size=150, output_format=output_format)
    assert [name for batch in loader for name in batch["name"]] == [
        f"{file}-{row}" for file in range(20) for row in range(100)
    ]


def test_more_categories_than_an_index_type_allows_are_an_error_that_says_so(tmp_path):
    write_categories(tmp_path, 2)
    with pytest.raises(SchemaError, match=r"rows of several row groups do not join .*'name'.*wider index"):
        list(load(tmp_path, batch_size=150, output_format="arrow"))


def test_a_file_with_more_rows_than_its_footer_says_gives_those_that_it_says(tmp_path):
    """And shifts no others, which are decoded by one call with it."""
    paths = []
    for file in range(20):
        paths.append(tmp_path / f"{file:02}.parquet")
        pq.write_table(pa.table({"row": range(10 * file, 10 * file + 10)}), paths[-1], write_statistics=False)
    content = paths[13].read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:-8]
    assert footer.count(b"\x16\x14") >= 3  # field of a 64-bit number: 10, in zigzag
    paths[13].write_bytes(content[:start] + footer.replace(b"\x16\x14", b"\x16\x0c") + content[-8:])
    assert pq.read_metadata(paths[13]).num_rows == 6
    rows = [row for batch in load(tmp_path, batch_size=8) for row in batch["row"].tolist()]
    assert rows == [row for row in range(200) if not 136 <= row < 140]


@pytest.mark.parametrize("is_small", [True, False])
def test_row_groups_of_few_bytes_and_many_rows_are_not_small(tmp_path, monkeypatch, is_small):
    rows = 1_000 if is_small else 100_000
    for file in range(8):
        pq.write_table(pa.table({"row": np.zeros(rows, np.int64)}), tmp_path / f"{file}.parquet")
    together = []
    read = Reader.read_together
    monkeypatch.setattr(Reader, "read_together", lambda self, tasks: together.append(len(tasks)) or read(self, tasks))
    assert sum(batch.num_rows for batch in load(tmp_path, batch_size=1_000)) == 8 * rows
    assert bool(together) == is_small


class Numbers(list):
    """A block of them."""

    def slice(self, start, stop):
        return self[start:stop]


def test_the_rows_of_one_row_group_of_a_job_behave_like_a_future():
    """As the one that it would have, decoded by a job of its own."""
    error, called = ValueError("bad"), []
    rows = BlockSlice("block", 0, 3)
    result = Future()
    job = DecodeJob([7, 9], result)
    good, bad = job.rows(7), job.rows(9)
    good.add_done_callback(called.append)
    assert (good.done(), good.cancelled(), called) == (False, False, [])
    result.set_result([rows, error])
    assert (good.done(), good.result(), good.exception(), called) == (True, rows, None, [result])
    assert bad.exception() is error
    with pytest.raises(ValueError, match="bad"):
        bad.result()


def test_a_job_that_fails_or_is_cancelled_does_so_for_each_of_its_row_groups():
    failed, cancelled = Future(), Future()
    failed.set_exception(MemoryError("none left"))
    cancelled.cancel()
    job = DecodeJob([7, 9], failed)
    assert isinstance(job.rows(9).exception(), MemoryError)
    with pytest.raises(MemoryError, match="none left"):
        job.rows(7).result()
    assert DecodeJob([7], cancelled).rows(7).cancelled()
    with pytest.raises(CancelledError):
        DecodeJob([7], cancelled).rows(7).result()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_row_groups_of_one_block_are_its_rows_one_after_the_other(rows):
    block = Numbers(range(sum(rows)))
    slices = BlockSlice.one_after_other(block, rows)
    assert [each.num_rows for each in slices] == rows
    assert [row for each in slices for row in each.rows()] == block


def test_rows_of_a_block_that_others_share_end_with_their_row_group():
    rows = BlockSlice(Numbers(range(10)), 3, 7)
    assert rows.rows() == [3, 4, 5, 6]
    assert rows.cut(1, 3).rows() == [4, 5]
    assert rows.cut(2, 9).rows() == [5, 6]
    assert rows.cut(5, 9).rows() == []


@given(st.data())
def test_rows_that_follow_each_other_in_a_block_are_one_block(data):
    blocks = [Numbers(range(100 * number, 100 * number + 10)) for number in range(3)]
    ends = st.integers(0, 10)
    parts = [
        BlockSlice(data.draw(st.sampled_from(blocks)), *sorted(data.draw(st.tuples(ends, ends))))
        for _ in range(data.draw(st.integers(0, 8)))
    ]
    few = in_few_blocks(parts)
    assert [row for block in few for row in block] == [row for part in parts for row in part.rows()]
    joints = sum(part.block is after.block and part.stop == after.start for part, after in pairwise(parts))
    assert len(few) == len(parts) - joints


def test_rows_after_rows_in_the_columns_of_the_first():
    first, second = pa.record_batch({"a": [1], "b": ["x"]}), pa.record_batch({"b": ["y"], "a": [2]})
    joined = one_after_other([[first], [second.select(["b"]), second.select(["a"])]])
    assert joined.to_pydict() == {"a": [1, 2], "b": ["x", "y"]}
    assert one_after_other([[first]]).equals(first)
    with pytest.raises(KeyError):
        one_after_other([[first], [second.select(["a"])]])
    with pytest.raises(pa.ArrowInvalid):
        one_after_other([[second.select(["a"])], [first]])
    assert one_after_other([[first.select([])], [second.select([])]]).num_rows == 2
