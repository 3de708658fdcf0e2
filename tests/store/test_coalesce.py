"""Byte ranges merged into fewer reads: which gaps are read through, and which bytes each range gets."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._store import CoalesceLimits
from torch_dataloader_utils._store.coalesce import coalesce

DATA = bytes(range(256))
SPANS = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 60)).map(lambda s: (s[0], min(s[1], 256 - s[0]))), max_size=12
)


@settings(max_examples=effort(100), deadline=None)
@given(spans=SPANS, hole=st.integers(0, 40), most=st.integers(1, 300))
def test_every_span_is_served_and_no_byte_is_read_twice(spans, hole, most):
    plan = coalesce(spans, CoalesceLimits(hole_bytes=hole, most_bytes=most))
    reads = [DATA[start : start + length] for start, length in plan.reads]
    assert [bytes(view) for view in plan.slices(reads)] == [DATA[a : a + n] for a, n in spans]
    for (start, length), (following, _) in pairwise(plan.reads):
        assert start + length <= following


def test_a_gap_up_to_the_hole_is_read_through_and_a_larger_one_is_not():
    limits = CoalesceLimits(hole_bytes=6, most_bytes=100)
    assert coalesce([(0, 4), (10, 4), (21, 4)], limits).reads == ((0, 14), (21, 4))


def test_gaps_are_read_through_the_smallest_first_while_they_are_a_small_part_of_what_is_wanted():
    kib = 1 << 10
    spans = [(0, 400 * kib), (415 * kib, 400 * kib), (845 * kib, 400 * kib), (1400 * kib, 400 * kib)]
    assert coalesce(spans, CoalesceLimits(most_waste=0.05)).reads == (
        (0, 1245 * kib),
        (1400 * kib, 400 * kib),
    )
    assert len(coalesce(spans, CoalesceLimits(most_waste=1.0)).reads) == 1
    assert len(coalesce(spans, CoalesceLimits(most_waste=0.0)).reads) == 3


def test_merging_stops_at_the_largest_read_but_a_large_span_stays_whole():
    limits = CoalesceLimits(hole_bytes=100, most_bytes=10)
    assert coalesce([(0, 6), (6, 6), (12, 50)], limits).reads == ((0, 6), (6, 6), (12, 50))


def test_slices_are_views_of_the_reads():
    read = bytearray(b"abcdef")
    (view,) = coalesce([(2, 2)], CoalesceLimits()).slices([read[2:4]])
    assert isinstance(view, memoryview)
