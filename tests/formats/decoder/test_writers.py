"""Files of other writers than pyarrow: the compiled decoder gives what pyarrow gives, and decodes nearly all itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import needs_engine
from tests.formats.decoder.test_decoder import INTEGERS, ROW_RANGES, bits_of, lists, numbers, read
from tests.formats.files import parquet_tasks
from torch_dataloader_utils._core.row_group_task import GroupRows
from torch_dataloader_utils._observe.counters import KINDS, Counts, count_thread_in
from torch_dataloader_utils.errors import UnsupportedFeatureError

# A package is tested without them too.
datafusion, duckdb, fastparquet = map(pytest.importorskip, ("datafusion", "duckdb", "fastparquet"))
pl, pandas_types = map(pytest.importorskip, ("polars", "pandas.api.types"))

pytestmark = needs_engine

# What all of these writers have.
TYPES = (*INTEGERS, pa.float32(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.date32())
# What fastparquet writes with and without nulls.
NULLABLE = {
    each: pandas_types.pandas_dtype(str(each).replace("uint", "UInt").replace("int", "Int")) for each in INTEGERS
}
NULLABLE[pa.bool_()] = pandas_types.pandas_dtype("boolean")
CODECS = ("uncompressed", "snappy", "zstd")


def by_polars(table: pa.Table, path: Path, codec: str, group_rows: int) -> None:
    """Writes the table with polars, whose pages are small here."""
    pl.from_arrow(table).write_parquet(path, compression=codec, row_group_size=group_rows, data_page_size=2000)


def by_duckdb(table: pa.Table, path: Path, codec: str, group_rows: int) -> None:
    """Writes the table with DuckDB: row groups of 2,048 rows at least, deltas and byte streams among the encodings."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("content", table)
        options = f"FORMAT parquet, COMPRESSION {codec}, PARQUET_VERSION v2, ROW_GROUP_SIZE {group_rows}"
        connection.execute(f"COPY content TO '{path}' ({options})")


def by_arrow_rs(table: pa.Table, path: Path, codec: str, group_rows: int) -> None:
    """Writes the table with arrow-rs, which DataFusion has."""
    options = datafusion.ParquetWriterOptions(
        compression="zstd(3)" if codec == "zstd" else codec,
        max_row_group_size=group_rows,
        data_page_row_count_limit=300,
        writer_version="2.0",
    )
    frame = datafusion.SessionContext().from_arrow(table)
    frame.write_parquet_with_options(path, options)


def by_fastparquet(table: pa.Table, path: Path, codec: str, group_rows: int) -> None:
    """Writes the columns that fastparquet knows with it; a float is never null there, but NaN."""
    known = [field.name for field in table.schema if field.type in NULLABLE or pa.types.is_floating(field.type)]
    frame = (
        table.append_column("row", pa.array(range(len(table))))
        .select([*known, "row"])
        .to_pandas(types_mapper=NULLABLE.get)
    )
    fastparquet.write(str(path), frame, row_group_offsets=group_rows, compression=codec.upper(), write_index=False)


WRITERS = (by_polars, by_duckdb, by_arrow_rs, by_fastparquet)


@st.composite
def contents(draw: st.DrawFn) -> pa.Table:
    """Numbers and lists of them, with and without nulls."""
    rows = draw(st.sampled_from([1, 7, 100, 1000, 5000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns = {}
    for index, data_type in enumerate(draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=5))):
        nulls, spread = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])), draw(st.sampled_from([1, 4, 9, 20]))
        columns[f"c{index}"] = numbers(data_type, rows, spread, nulls, rng)
        some = lists(numbers(data_type, 7 * rows, spread, nulls, rng), 0.5, True, rng)
        if len(some) and draw(st.booleans()):
            columns[f"l{index}"] = some.take(pa.array(rng.integers(0, len(some), rows)))
    return pa.table(columns)


@pytest.mark.slow
@given(
    table=contents(),
    write=st.sampled_from(WRITERS),
    codec=st.sampled_from(CODECS),
    group_rows=st.sampled_from([500, 2048, 1 << 20]),
    rows=ROW_RANGES,
)
def test_rows_of_other_writers_are_those_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, write: Any, codec: str, group_rows: int, rows: GroupRows
) -> None:
    path = tmp_path_factory.mktemp("t") / "a.parquet"
    write(table, path, codec, group_rows)
    tasks, schema = parquet_tasks(path), pq.read_schema(path)
    ours, others = (read(tasks, schema, rows, is_compiled=each) for each in (True, False))
    for mine, other in zip(ours, others, strict=True):
        mine.validate(full=True)
        assert mine.schema.equals(other.schema, check_metadata=True)
        assert bits_of(mine) == bits_of(other)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("codec", CODECS)
def test_numbers_of_other_writers_are_decoded_here(tmp_path: Path, write: Any, codec: str) -> None:
    rng = np.random.default_rng(0)
    columns = {str(each): numbers(each, 3000, 20, 0.1, rng) for each in TYPES}
    some = lists(numbers(pa.int32(), 9000, 20, 0.0, rng), 0.5, False, rng)
    columns["list"] = some.take(pa.array(rng.integers(0, len(some), 3000)))
    write(pa.table(columns), tmp_path / "a.parquet", codec, 2048)
    counts = Counts()
    before = count_thread_in(counts)
    try:
        read(parquet_tasks(tmp_path / "a.parquet"), pq.read_schema(tmp_path / "a.parquet"))
    finally:
        count_thread_in(before)
    chunks = {kind: getattr(counts, f"column_chunks.{kind}") for kind in KINDS["column_chunks"]}
    assert chunks.pop("compiled") >= 24
    assert not any(chunks.values()), chunks


@pytest.mark.parametrize("data_type", [pa.int32(), pa.uint32()])
def test_deltas_of_duckdb_that_are_wider_than_their_numbers(tmp_path: Path, data_type: pa.DataType) -> None:
    path, bounds = tmp_path / "a.parquet", np.iinfo(data_type.to_pandas_dtype())
    found = np.random.default_rng(0).integers(bounds.min, bounds.max, 3000, data_type.to_pandas_dtype(), endpoint=True)
    content = pa.table({"c": found, "l": pa.ListArray.from_arrays(np.arange(3001, dtype=np.int32), pa.array(found))})
    by_duckdb(content, path, "snappy", 2048)
    assert "DELTA_BINARY_PACKED" in pq.read_metadata(path).row_group(0).column(0).encodings
    with pytest.raises(OSError, match=r"Init(Block|Header) EOF"):
        pq.read_table(path)
    ours = pa.Table.from_batches(read(parquet_tasks(path), pq.read_schema(path)))
    assert ours.to_pydict() == content.to_pydict()
    with pytest.raises(UnsupportedFeatureError, match=r"column.*in DuckDB PARQUET_VERSION v1"):
        read(parquet_tasks(path), pq.read_schema(path), is_compiled=False)
