"""Blends of slices of blocks, against blends of batches: a transform that changes nothing makes sources give these."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import Lanes, StructuredDataset, blend, scan_files
from torch_dataloader_utils.blending import mixing
from torch_dataloader_utils.blending.block_slices import joint_shaper
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.shape.ragged import Ragged

ROWS = (47, 23, 12)


def table_of(first, num_rows):
    rows = range(first, first + num_rows)
    return pa.table(
        {
            "row": pa.array(rows),
            "half": pa.array([row / 2 for row in rows], pa.float32()),
            "a": pa.array([row % 5 for row in rows], pa.int16()),
            "b": pa.array([row % 7 for row in rows], pa.int16()),
            "gaps": pa.array([None if row % 3 == 0 else row for row in rows], pa.int32()),
            "words": [f"row {row}" * (row % 3) for row in rows],
            "items": pa.array([[row] * (row % 4) for row in rows], pa.list_(pa.int32())),
            "pair": pa.array([[row, -row] for row in rows], pa.list_(pa.int64(), 2)),
            "point": [{"x": row, "name": f"point {row}"} for row in rows],
            "texts": [[f"text {row}"] * (row % 3) for row in rows],
            "flag": [row % 2 == 0 for row in rows],
        }
    )


COLUMNS = ["row", "half", "a", "b", "words", "items", "pair", "point", "flag"]


@pytest.fixture(scope="module")
def inventories(tmp_path_factory):
    found = []
    for source, num_rows in enumerate(ROWS):
        folder = tmp_path_factory.mktemp("source")
        pq.write_table(table_of(1_000 * source, num_rows), folder / "0.parquet", row_group_size=9)
        found.append(scan_files(str(folder)))
    return found


def same(batch):
    return batch


def loaders_of(inventories, batch_sizes=(4, 4, 4), **options):
    return [
        StructuredDataset.create_dataloader("", inventory=inventory, batch_size=batch_size, num_workers=0, **options)[0]
        for inventory, batch_size in zip(inventories, batch_sizes, strict=False)
    ]


def seen(column):
    """A column as values that compare, with its type."""
    match column:
        case dict():
            return {name: seen(inside) for name, inside in column.items()}
        case torch.Tensor() | np.ndarray():
            return type(column), column.dtype, tuple(column.shape), str(column.tolist())
        case Ragged():
            return Ragged, seen(column.values), column.offsets.tolist()
        case list():
            return [seen(each) if isinstance(each, np.ndarray) else each for each in column]
    raise AssertionError(type(column))


STACKS = st.sampled_from([{}, {"stack": {"m": ["a", "b"]}}, {"nulls": {"gaps": "mask"}}, {"dtypes": {"a": "float32"}}])


@pytest.mark.slow
@given(data=st.data(), output_format=st.sampled_from(["torch", "numpy"]), more=STACKS)
@settings(max_examples=effort(30), deadline=None)
def test_slices_of_blocks_make_the_batches_that_joined_batches_make(inventories, data, output_format, more):
    columns = data.draw(st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
    columns += [name for name in ("a", "b", "gaps") if name not in columns]
    more = more if "gaps" in more.get("nulls", {}) else {**more, "nulls": {"gaps": ("fill", 7)}}
    order = st.sampled_from([{}, {"shuffle": True, "shuffle_rows": 20}, {"lanes": Lanes(2, rows=2)}])
    sources = data.draw(st.integers(1, 3))
    # Two lanes fit batches of one or two micro-batches.
    sizes = data.draw(st.tuples(*[st.sampled_from([2, 4])] * sources))
    options = {"columns": columns, "output_format": output_format, **more, **data.draw(order)}
    weights = data.draw(st.lists(st.integers(1, 9), min_size=sources, max_size=sources))
    blended = {
        "per": "sample",
        "batch_size": data.draw(st.integers(1, 20)),
        "stop": data.draw(st.sampled_from(["first_exhausted", "all_exhausted", 5])),
        "source_column": data.draw(st.sampled_from([None, "from"])),
    }
    fast = blend(loaders_of(inventories, sizes, **options), weights, **blended)
    slow = blend(loaders_of(inventories, sizes, transform=same, **options), weights, **blended)
    assert joint_shaper([source.loader for source in fast.sources]) is not None
    assert joint_shaper([source.loader for source in slow.sources]) is None
    expected, states = [], [slow.state_dict()]
    for batch in slow:
        expected.append(seen(batch))
        states.append(slow.state_dict())
    step = data.draw(st.integers(0, len(expected) - 1))
    assert [(seen(batch), fast.state_dict()) for batch in fast] == list(zip(expected, states[1:], strict=True))
    assert [each.rows for each in fast.metrics()] == [each.rows for each in slow.metrics()]
    fast.load_state_dict(states[step])
    assert [seen(batch) for batch in fast] == expected[step:]


@pytest.mark.parametrize("changed", [[0, 1], [1]])
def test_a_transform_that_changes_its_batch_in_place_changes_what_is_mixed(inventories, changed):
    def negate(batch):
        batch["row"] *= -1
        return batch

    loaders = [
        loaders_of(inventories[source : source + 1], columns=["row"], transform=negate if source in changed else None)[
            0
        ]
        for source in range(2)
    ]
    rows = {
        row for batch in blend(loaders, [1, 1], per="sample", stop="all_exhausted") for row in batch["row"].tolist()
    }
    for source in range(2):
        sign = -1 if source in changed else 1
        assert {sign * row for row in range(1_000 * source, 1_000 * source + ROWS[source])} <= rows


class Received:
    """A callback that keeps the batches of a source."""

    def __init__(self):
        self.batches = []

    def on_epoch_start(self, run):
        pass

    def on_batch(self, run, batch):
        self.batches.append(batch)

    def on_epoch_end(self, run, *, completed):
        pass


def test_callbacks_of_a_source_see_batches(inventories):
    callback = Received()
    loaders = loaders_of(inventories, columns=["row"], callbacks=[callback])
    assert joint_shaper(loaders) is None
    given_rows = sum(batch.num_rows for batch in blend(loaders, [1, 1, 1], per="sample", stop=3, batch_size=6))
    assert sum(batch["row"].shape[0] for batch in callback.batches) >= given_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([{"columns": ["row", "a"]}, {"columns": ["row", "b"]}], "different columns"),
        ([{"columns": ["row"]}, {"columns": ["row"], "dtypes": {"row": "float32"}}], "differ in column 'row'"),
        ([{"columns": ["row"]}, {"columns": ["row"], "output_format": "numpy"}], "different columns"),
    ],
)
def test_sources_that_differ_are_refused(inventories, options, message):
    loaders = [loaders_of([inventory], **each)[0] for inventory, each in zip(inventories, options, strict=False)]
    assert joint_shaper(loaders) is None
    with pytest.raises(ConfigError, match=message):
        list(blend(loaders, [1, 1], per="sample"))


def test_lists_of_python_objects_are_joined_as_lists(inventories):
    loaders = loaders_of(inventories[:2], columns=["row", "texts"])
    assert joint_shaper(loaders) is None
    for batch in blend(loaders, [1, 1], per="sample", batch_size=4):
        assert batch["texts"] == [[f"text {row}"] * (row % 3) for row in batch["row"].tolist()]


def test_no_batch_of_a_source_is_made(inventories, monkeypatch):
    joined = []
    whole = mixing.put_together
    monkeypatch.setattr(
        mixing, "put_together", lambda slices, shaper: joined.append(len(slices)) or whole(slices, shaper)
    )
    loader = blend(loaders_of(inventories[:2], columns=["row"]), [1, 1], per="sample", batch_size=2, stop=15)
    assert sum(batch.num_rows for batch in loader) == 30
    assert len(joined) == 4  # 1, 2, 4 and 8 steps
