"""Cases of Parquet: encodings, pages, codecs, types, layouts."""

import datetime
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import fastparquet
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from scripts.conformance.matrix import CORPORA, Case, Format, Written, arrow_rows, loader_rows
from tests.formats.encrypted import write_encrypted

from torch_dataloader_utils import StructuredDataset

# Unpacks to 2 GiB; has dates that Python does not have.
UNSAFE = {"large_string_map.brotli.parquet", "nested_structs.rust.parquet"}
ROWS = 250
GROUP_ROWS = 60


def _numbers() -> pa.Table:
    """Return numbers and text, with nulls and repetitions."""
    draw = np.random.default_rng(0)
    number = draw.integers(-(1 << 40), 1 << 40, ROWS)
    return pa.table(
        {
            "number": pa.array(number, mask=draw.random(ROWS) < 0.1),
            "small": pa.array(draw.integers(0, 5, ROWS).astype(np.int32)),
            "real": pa.array(draw.normal(size=ROWS)),
            "single": pa.array(draw.normal(size=ROWS).astype(np.float32), mask=draw.random(ROWS) < 0.1),
            "flag": pa.array(draw.random(ROWS) < 0.5),
            "text": pa.array([None if each % 11 == 0 else f"text {each % 7}" for each in range(ROWS)]),
        }
    )


def _of(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"row": range(ROWS), "value": pa.array([values[each % len(values)] for each in range(ROWS)], kind)})


UTC = datetime.UTC
DAYS = [datetime.datetime(1969, 12, 31, 23, 59, 59, 1), None, datetime.datetime(2024, 2, 29, 12, 0, 0, 999_000)]
SECONDS = [None if day is None else day.replace(microsecond=day.microsecond // 1000 * 1000) for day in DAYS]
TYPES: dict[str, pa.Table] = {
    "8 and 16 bits": _of(pa.int8(), [-128, None, 127]).append_column(
        "more", _of(pa.uint16(), [0, 65535, None])["value"]
    ),
    "unsigned 32 and 64 bits": _of(pa.uint32(), [0, None, 2**32 - 1]).append_column(
        "more", _of(pa.uint64(), [2**64 - 1, None, 0])["value"]
    ),
    "half floats": _of(pa.float16(), [np.float16(0.5), None, np.float16(-2)]),
    "NaN, infinity, negative zero": _of(pa.float64(), [float("nan"), float("inf"), -0.0, None]),
    "decimals of 9, 18 and 38 digits": _of(pa.decimal128(9, 2), [Decimal("1.25"), None, Decimal("-7.50")])
    .append_column("eighteen", _of(pa.decimal128(18, 4), [Decimal("99999999999999.9999"), None])["value"])
    .append_column("most", _of(pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0000000001")])["value"]),
    "dates": _of(pa.date32(), [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    "times of day": _of(pa.time64("us"), [datetime.time(23, 59, 59, 999_999), None, datetime.time(0)]),
    "timestamps in milliseconds": _of(pa.timestamp("ms"), SECONDS),
    "timestamps in microseconds, with zone": _of(
        pa.timestamp("us", "UTC"), [day and day.replace(tzinfo=UTC) for day in DAYS]
    ),
    "binary": _of(pa.binary(), [b"\0\xff", None, b""]),
    "binary of fixed length": _of(pa.binary(3), [b"abc", None, b"\0\0\0"]),
    "UUIDs": _of(pa.uuid(), [uuid.UUID(int=5).bytes, None]),
    "dictionaries": _of(pa.string(), ["a", None, "b"]).set_column(
        1, "value", _of(pa.string(), ["a", None, "b"])["value"].dictionary_encode()
    ),
    "lists": _of(pa.list_(pa.int32()), [[1, None, 3], None, []]),
    "lists of lists": _of(pa.list_(pa.list_(pa.string())), [[["a"], None, []], None, []]),
    "structs": _of(
        pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": None}, None, {"a": None, "b": "x"}]
    ),
    "lists of structs": _of(pa.list_(pa.struct([("a", pa.int32())])), [[{"a": 1}, None], None, [{"a": None}]]),
    "maps": _of(pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], None, []]),
    "columns of nulls": _of(pa.int64(), [None]),
    "text of 100,000 bytes": _of(pa.string(), ["x" * 100_000, "", None]),
}


def _one_file(table: pa.Table, write: Callable[[pa.Table, Path], object], folder: Path) -> Written:
    path = folder / "data.parquet"
    write(table, path)
    return Written(str(path), table.to_pylist())


def _pyarrow(table: pa.Table, path: Path, **options: Any) -> None:
    pq.write_table(table, path, row_group_size=GROUP_ROWS, **options)


def _polars(table: pa.Table, path: Path, **options: Any) -> None:
    pl.from_arrow(table).write_parquet(path, row_group_size=GROUP_ROWS, **options)


def _duckdb(table: pa.Table, path: Path, **options: Any) -> None:
    more = "".join(f", {name} {value}" for name, value in options.items())
    duckdb.from_arrow(table).query("rows", f"COPY rows TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048{more})")


def _fastparquet(table: pa.Table, path: Path, **options: Any) -> None:
    frame = table.to_pandas(integer_object_nulls=False, types_mapper=None)
    fastparquet.write(str(path), frame, row_group_offsets=GROUP_ROWS, write_index=False, **options)


# What a writer does not write.
UNWRITTEN = {("half floats", "DuckDB")}
WRITERS = {"pyarrow": _pyarrow, "polars": _polars, "DuckDB": _duckdb}

ENCODINGS = {
    "plain": {"use_dictionary": False},
    "dictionary": {"use_dictionary": True},
    "dictionary that falls back to plain": {"use_dictionary": True, "dictionary_pagesize_limit": 64},
    "delta binary packed": {"column_encoding": {"number": "DELTA_BINARY_PACKED", "small": "DELTA_BINARY_PACKED"}},
    "delta length byte array": {"column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}},
    "delta byte array": {"column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    "byte stream split": {"column_encoding": dict.fromkeys(["number", "small", "real", "single"], "BYTE_STREAM_SPLIT")},
    "run lengths for booleans": {"column_encoding": {"flag": "RLE"}, "data_page_version": "2.0"},
}
PAGES = {
    "data pages of version 2": {"data_page_version": "2.0"},
    "pages of 10 rows": {"max_rows_per_page": 10},
    "page index": {"write_page_index": True},
    "page checksums": {"write_page_checksum": True},
    "no statistics": {"write_statistics": False},
    "format version 1.0": {"version": "1.0"},
}
CODECS = {
    "pyarrow": (partial(_pyarrow), "compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]),
    "polars": (partial(_polars), "compression", ["uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"]),
    "DuckDB": (partial(_duckdb), "COMPRESSION", ["uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4_raw"]),
}


def _cases() -> Iterator[Case]:
    numbers = _numbers()
    for name, options in ENCODINGS.items():
        given = {"use_dictionary": False, **options}
        yield Case(f"encoding: {name}", "pyarrow", partial(_one_file, numbers, partial(_pyarrow, **given)))
    yield Case(
        "encoding: delta, by version 2", "DuckDB", partial(_one_file, numbers, partial(_duckdb, PARQUET_VERSION="v2"))
    )
    for name, options in PAGES.items():
        yield Case(name, "pyarrow", partial(_one_file, numbers, partial(_pyarrow, **options)))
    for writer, (write, option, codecs) in CODECS.items():
        for codec in codecs:
            yield Case(
                f"codec: {codec.replace('none', 'uncompressed').removesuffix('_raw')}",
                writer,
                partial(_one_file, numbers, partial(write, **{option: codec})),
            )
    yield Case("numbers and text", "fastparquet", partial(_one_file, _numbers().drop_columns(["number"]), _fastparquet))
    for name, table in TYPES.items():
        for writer, write in WRITERS.items():
            if (name, writer) not in UNWRITTEN:
                yield Case(f"type: {name}", writer, partial(_one_file, table, write))
    yield Case(
        "timestamps in 96 bits",
        "pyarrow",
        partial(
            _one_file, TYPES["timestamps in milliseconds"], partial(_pyarrow, use_deprecated_int96_timestamps=True)
        ),
    )
    yield Case("required columns", "pyarrow", _required)
    yield Case("no rows", "pyarrow", _empty)
    yield Case("encrypted columns", "pyarrow", _encrypted)
    yield Case("Hive partitions", "pyarrow", _hive)
    yield Case("a column that older files lack", "pyarrow", _added_column)
    for path in sorted((CORPORA / "parquet-testing" / "data").glob("*.parquet")):
        if path.name not in UNSAFE:
            yield Case(f"apache/parquet-testing: {path.name}", "various", partial(_foreign, path))
    yield Case(
        "bloom filters",
        "pyarrow",
        partial(_one_file, numbers, partial(_pyarrow, bloom_filter_options={"number": True})),
    )


def _foreign(path: Path, folder: Path) -> Written:  # noqa: ARG001
    return Written(str(path), None)


def _required(folder: Path) -> Written:
    table = _numbers().select(["small", "real"])
    return _one_file(table.cast(pa.schema([each.with_nullable(False) for each in table.schema])), _pyarrow, folder)


def _empty(folder: Path) -> Written:
    return _one_file(_numbers().slice(0, 0), _pyarrow, folder)


def _encrypted(folder: Path) -> Written:
    table = _numbers()
    write_encrypted(folder / "data.parquet", table, ["number"])
    return Written(str(folder / "data.parquet"), table.to_pylist())


def _hive(folder: Path) -> Written:
    table = _numbers().drop_columns(["text"])
    pq.write_to_dataset(table, folder, partition_cols=["small"])
    return Written(str(folder), table.to_pylist(), {"partitioning": "hive"})


def _added_column(folder: Path) -> Written:
    rows = _numbers()
    old, new = rows.slice(0, 100).drop_columns(["real"]), rows.slice(100)
    pq.write_table(new, folder / "0.parquet")
    pq.write_table(old, folder / "1.parquet")
    return Written(str(folder), [*new.to_pylist(), *({**row, "real": None} for row in old.to_pylist())])


def _files(place: str) -> str:
    return f"{place}/**/*.parquet" if Path(place).is_dir() else place


FORMAT = Format(
    name="Parquet",
    cases=tuple(_cases()),
    read=partial(loader_rows, StructuredDataset),
    readers={
        "pyarrow": lambda place: ds.dataset(place, format="parquet", partitioning="hive").to_table().to_pylist(),
        "DuckDB": lambda place: arrow_rows(
            duckdb.sql(f"FROM read_parquet('{_files(place)}', union_by_name=true)").arrow()
        ),
        "Polars": lambda place: arrow_rows(pl.scan_parquet(place, missing_columns="insert").collect().to_arrow()),
    },
)
