"""Batches that are put together many at once, against the same rows one by one."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stream.tables import check_batch, wait_until, write_table
from torch_dataloader_utils import Lanes, StructuredDataset
from torch_dataloader_utils._core.block import cut_spans
from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils.errors import TransformError
from torch_dataloader_utils.shape.shapers import ColumnShaper
from torch_dataloader_utils.stream import mixed_lanes
from torch_dataloader_utils.stream.batch_groups import BlockSlice, put_together
from torch_dataloader_utils.stream.decode import DecodeScheduler


class Listed:
    """A block of Python objects."""

    def __init__(self, rows):
        self.rows = rows

    @property
    def num_rows(self):
        return len(self.rows)

    def slice(self, start, stop):
        return Listed(self.rows[start:stop])


class ListShaper:
    """Joins them; says in `joined` how many."""

    def __init__(self):
        self.joined = []

    def concat(self, blocks, spans=None):
        blocks = cut_spans(blocks, spans)
        self.joined.append(len(blocks))
        return Listed([row for block in blocks for row in block.rows])


@given(st.data())
def test_rows_put_together_are_those_of_the_slices_in_their_order(data):
    """Lanes of one block after the other, taken from in any order."""
    lanes = [
        [Listed([(lane, block, row) for row in range(size)]) for block, size in enumerate(sizes)]
        for lane, sizes in enumerate(
            data.draw(st.lists(st.lists(st.integers(1, 9), min_size=1), min_size=1, max_size=4))
        )
    ]
    slices, expected, left = [], [], [list(enumerate(lane)) for lane in lanes]
    taken = [0] * len(lanes)
    for lane in data.draw(st.lists(st.integers(0, len(lanes) - 1), min_size=1, max_size=20)):
        if not left[lane]:
            continue
        block = left[lane][0][1]
        stop = data.draw(st.integers(taken[lane] + 1, block.num_rows))
        slices.append(BlockSlice(block, taken[lane], stop))
        expected += block.rows[taken[lane] : stop]
        taken[lane] = stop
        if stop == block.num_rows:
            left[lane].pop(0)
            taken[lane] = 0
    if expected:
        assert put_together(slices, ListShaper()).rows == expected


def test_slices_that_follow_each_other_in_a_block_are_one():
    first, second, shaper = Listed([*range(6)]), Listed([*range(6, 9)]), ListShaper()
    slices = [BlockSlice(first, 1, 3), BlockSlice(first, 3, 6)]
    assert put_together(slices, shaper).rows == [1, 2, 3, 4, 5]
    assert put_together([*slices, BlockSlice(second, 0, 2)], shaper).rows == [1, 2, 3, 4, 5, 6, 7]
    assert shaper.joined == [1, 2]


LANES = {"shuffle": True, "split_rows": 30, "lanes": Lanes(12, rows=2), "batch_size": 12}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[200, 90], [110, 137]])
    return folder


@pytest.mark.processes
@pytest.mark.cases(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"shuffle_rows": 20}, {"output_format": "numpy"}, {"drop_last": True}])
def test_batches_of_mixed_lanes_are_the_same_many_at_once_and_one_by_one(table, monkeypatch, num_workers, options):
    def rows():
        loader, _ = StructuredDataset.create_dataloader(str(table), num_workers=num_workers, **LANES, **options)
        if options.get("output_format") == "numpy":
            return [batch["row"].tolist() for batch in loader]
        return [check_batch(batch) for batch in loader]

    together = rows()
    monkeypatch.setattr(mixed_lanes, "_MOST_BATCHES", 1)
    assert together == rows()
    assert len(np.unique([row for batch in together for row in batch])) >= (537 if "drop_last" not in options else 528)


@given(st.data())
def test_rows_are_cut_where_a_part_ends_or_a_piece_ends(data):
    parts, pieces = (
        np.diff(sorted({0, 40, *data.draw(st.sets(st.integers(1, 39), max_size=8))})).astype(np.int64) for _ in "ab"
    )
    found = [
        (part, piece, row)
        for part, piece, first, rows in zip(*mixed_lanes._spans_of(parts, pieces), strict=True)
        for row in range(first, first + rows)
    ]
    of_parts = np.repeat(np.arange(len(parts)), parts).tolist()
    of_pieces = [(piece, row) for piece, rows in enumerate(pieces.tolist()) for row in range(rows)]
    assert found == [(part, *place) for part, place in zip(of_parts, of_pieces, strict=True)]


def test_the_next_batches_are_put_together_before_the_trainer_asks_for_them(table, monkeypatch):
    made, concat = [], ColumnShaper.concat

    def watched(self, blocks, spans=None):
        made.append(threading.current_thread().name)
        return concat(self, blocks, spans)

    monkeypatch.setattr(ColumnShaper, "concat", watched)
    batches = iter(StructuredDataset.create_dataloader(str(table), num_workers=0, **LANES)[0])
    next(batches)
    wait_until(lambda: len(made) == 2)
    assert made[1].startswith("tdu-decode")
    batches.close()


class Lane:
    """Row groups with so many rows each, and room for `room` of them."""

    def __init__(self, name, groups, begun, room):
        self.name, self.groups, self.begun, self.room = name, groups, begun, room

    def rows_left(self):
        return sum(self.groups)

    def begin_next(self):
        if len(self.begun) == self.room:
            return False
        self.groups.pop(0)
        self.begun.append(self.name)
        return True


@pytest.mark.parametrize("room", [3, 9])
def test_lanes_take_turns_to_decode_ahead(table, room):
    """The lane that is behind begins next; the rows of lane c come in the last step."""
    dataset = StructuredDataset(str(table), batch_size=4)
    pipeline, stages = dataset.pipeline, dataset.stages
    work = dataset.plan.worker_inputs(0)[0]
    scheduler = DecodeScheduler(work, pipeline.reader, pipeline.shaper, stages.decode, WorkerCounters())
    begun = []
    for name, groups in [("a", [4, 4, 4]), ("b", [2, 6, 3]), ("c", [3])]:
        scheduler.add_lane(Lane(name, groups, begun, room))
    scheduler.prefetch()
    assert begun == [*"abbaabc"][:room]
    scheduler.close()


@pytest.mark.slow
def test_a_transform_that_fails_on_one_of_several_batches_names_its_own_row_group(table, monkeypatch):
    def message(wanted):
        seen = []

        def fails_later(batch):
            seen.append(batch)
            if len(seen) > wanted:
                raise ValueError("not this one")
            return batch

        loader, _ = StructuredDataset.create_dataloader(str(table), num_workers=0, transform=fails_later, **LANES)
        with pytest.raises(TransformError) as error:
            list(loader)
        return str(error.value)

    together = [message(wanted) for wanted in range(0, 40, 3)]
    monkeypatch.setattr(mixed_lanes, "_MOST_BATCHES", 1)
    assert together == [message(wanted) for wanted in range(0, 40, 3)]
    assert len(set(together)) > 1
