"""Slices of arrays joined by Arrow, against a loop over them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.samples import sample_batch
from torch_dataloader_utils.samples.sample_batch import join_slices

SOURCES = (40, 1, 7, 0)
slices = st.lists(
    st.sampled_from(range(len(SOURCES))).flatmap(
        lambda source: st.tuples(st.just(source), st.integers(0, SOURCES[source]), st.integers(0, SOURCES[source]))
    ),
    max_size=20,
)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize(("buffer_bytes", "merged_items"), [(16, 10), (1 << 30, 1 << 28)])
@given(slices=slices)
@settings(max_examples=effort(40), deadline=None)
def test_slices_of_any_source_order_and_size(dtype, buffer_bytes, merged_items, slices):
    sources = [(np.arange(size) + 50 * number).astype(dtype) for number, size in enumerate(SOURCES)]
    parts = [(source, min(a, b), abs(a - b)) for source, a, b in slices]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sample_batch, "_BUFFER_BYTES", buffer_bytes)
        patched.setattr(sample_batch, "_MERGED_ITEMS", merged_items)
        columns = np.array(parts, dtype=np.int64).reshape(-1, 3).T
        joined = join_slices(sources, *columns)
    expected = [value for source, start, count in parts for value in sources[source][start : start + count].tolist()]
    assert joined.dtype == dtype
    assert joined.tolist() == expected


def test_neighbours_become_one_slice():
    merged = sample_batch._merge_neighbours(np.array([0, 0, 1, 0]), np.array([4, 6, 8, 0]), np.array([2, 2, 1, 3]))
    assert [each.tolist() for each in merged] == [[0, 1, 0], [4, 8, 0], [4, 1, 3]]
