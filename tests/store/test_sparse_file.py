import io
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import EFFORT
from torch_dataloader_utils._store import SparseFile
from torch_dataloader_utils.errors import InternalError

DATA = bytes(range(100))


@settings(max_examples=100 * EFFORT, deadline=None)
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
