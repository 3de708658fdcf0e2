"""A file of which only some ranges were fetched reads like the whole one, or raises."""

import io
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._store import SparseFile
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.formats.task_source import _FetchingFile

DATA = bytes(range(100))


@settings(max_examples=effort(100), deadline=None)
@given(
    cuts=st.lists(st.integers(0, 100), max_size=5),
    moves=st.lists(st.tuples(st.integers(0, 110), st.integers(-1, 110)), max_size=8),
)
def test_reads_like_the_whole_file_when_all_of_it_was_fetched(cuts, moves):
    borders = sorted({0, 100, *cuts})
    spans = [(a, b - a) for a, b in pairwise(borders)]
    sparse = SparseFile(spans, [DATA[a : a + n] for a, n in spans], 100)
    whole = io.BytesIO(DATA)
    for place, length in moves:
        assert sparse.seek(place) == whole.seek(place)
        assert bytes(sparse.read(length)) == whole.read(length)
        assert sparse.tell() == whole.tell()


def test_overlapping_and_contained_ranges_are_fine():
    spans = [(0, 50), (10, 5), (40, 30)]
    sparse = SparseFile(spans, [DATA[a : a + n] for a, n in spans], 100)
    sparse.seek(12)
    assert bytes(sparse.read(58)) == DATA[12:70]


def test_a_byte_that_was_not_fetched_is_an_internal_error():
    sparse = SparseFile([(10, 5)], [DATA[10:15]], 100)
    sparse.seek(12)
    with pytest.raises(InternalError, match="bytes 15 to 18 of 100 were not fetched"):
        sparse.read(6)


spans = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda span: (span[0], min(span[1], 40 - span[0])))


@settings(max_examples=effort(200), deadline=None)
@given(fetched=st.lists(spans, max_size=5), wanted=st.tuples(st.integers(0, 45), st.integers(0, 45)))
def test_a_file_covers_what_it_can_read(fetched, wanted):
    start, length = wanted
    sparse = SparseFile(fetched, [DATA[a : a + n] for a, n in fetched], 40)
    held = {byte for a, n in fetched for byte in range(a, a + n)}
    assert sparse.covers(start, length) == held.issuperset(range(start, min(start + length, 40)))
    sparse.seek(start)
    if sparse.covers(start, length):
        assert bytes(sparse.read(length)) == DATA[start : min(start + length, 40)]
    else:
        with pytest.raises(InternalError):
            sparse.read(length)


def test_a_range_that_came_too_short_is_not_fetched_once_more():
    fetched = []
    file = _FetchingFile(SparseFile([(10, 5)], [DATA[10:13]], 100), fetched.append)
    file.seek(10)
    with pytest.raises(InternalError, match="bytes 13 to 15 of 100 were not fetched"):
        file.read(5)
    assert fetched == []


def test_what_was_not_fetched_comes_when_it_is_asked_for():
    file = _FetchingFile(SparseFile([(10, 5)], [DATA[10:15]], 100), lambda span: DATA[span[0] : sum(span)])
    file.seek(8)
    assert (bytes(file.read(4)), file.tell(), bytes(file.read(3))) == (DATA[8:12], 12, DATA[12:15])


def test_arrow_reads_a_row_group_from_its_column_chunks_alone():
    table = pa.table({"a": range(1000), "b": [str(i) for i in range(1000)], "c": [0.5] * 1000})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=300)
    data = sink.getvalue()
    metadata = pq.read_metadata(io.BytesIO(data))
    spans = []
    for leaf in (0, 2):
        chunk = metadata.row_group(1).column(leaf)
        spans.append((chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size))
    sparse = SparseFile(spans, [memoryview(data)[a : a + n] for a, n in spans], len(data))
    file = pq.ParquetFile(sparse, metadata=metadata, pre_buffer=False)
    assert file.read_row_group(1, columns=["a", "c"], use_threads=False) == table.slice(300, 300).select(["a", "c"])
