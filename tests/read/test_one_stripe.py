"""Stripes of ORC files read without the rest of the file: the rows and the errors that the file itself gives."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from tests.effort import EFFORT
from tests.read.files import make_spec, write_orc
from tests.read.test_reader_properties import COLUMNS, SCHEMA, tables
from torch_dataloader_utils._core.inventory import RowGroupTask
from torch_dataloader_utils._core.protobuf import as_message, fields, write_bytes, write_number
from torch_dataloader_utils._store import open_store
from torch_dataloader_utils.errors import DataError, FileChangedError
from torch_dataloader_utils.read import one_stripe
from torch_dataloader_utils.read import orc as read_orc
from torch_dataloader_utils.read.file_cache import FileCache
from torch_dataloader_utils.read.one_stripe import KnownTail
from torch_dataloader_utils.read.reader import Reader, make_reader
from torch_dataloader_utils.read.source import TaskSource

ROWS = pa.table({"x": np.arange(600.0), "y": pa.array([f"text {i % 9}" for i in range(600)])})
CODECS = ["uncompressed", "snappy", "zlib", "lz4", "zstd"]


@pytest.fixture
def every_stripe() -> Iterator[None]:
    """Stripes of small files are read alone too."""
    with always_alone():
        yield


def always_alone() -> Any:
    return patch.multiple(one_stripe, _LEAST_FOOTER_BYTES=1, _BYTES_FOR_A_FOOTER_BYTE=1 << 40)


def not_from_the_file() -> Any:
    return patch.object(read_orc, "_from_file", side_effect=AssertionError("the file's tail was parsed"))


def source_of(task: RowGroupTask) -> TaskSource:
    return TaskSource(task=task, store=open_store(task.path), page_checksums=True, max_row_group_bytes=1 << 31)


def known_tail(path: str | Path) -> KnownTail:
    file = orc.ORCFile(path)
    return KnownTail(file.schema, bytes(file.reader.serialized_file_tail()))


@settings(max_examples=60 * EFFORT, deadline=None)
@given(
    table=tables(),
    columns=COLUMNS,
    stripe_rows=st.integers(1, 15),
    codec=st.sampled_from(CODECS),
    order=st.randoms(use_true_random=False),
)
def test_the_rows_are_those_of_the_file(
    table: pa.Table, columns: list[str], stripe_rows: int, codec: str, order: Random
) -> None:
    with tempfile.TemporaryDirectory() as folder, always_alone():
        written = table.append_column("filler", pa.array(np.zeros(table.num_rows)))
        tasks = write_orc(Path(folder, "a.orc"), written, 1, batch_size=stripe_rows, compression=codec)
        assert len(tasks) == -(-table.num_rows // stripe_rows) or codec != "uncompressed"
        reader = make_reader(make_spec(SCHEMA, columns=tuple(columns)))
        shuffled = order.sample(tasks, len(tasks))
        first = {task.ordinal: reader.read(task) for task in shuffled}
        if len(tasks) > 1:
            with not_from_the_file():
                assert [reader.read(task) for task in shuffled] == list(first.values())
        for task in tasks:
            assert first[task.ordinal].num_rows == task.physical_rows
            if columns:
                wanted = table.slice(task.first_row, task.physical_rows).select(columns)
                assert first[task.ordinal].to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.usefixtures("every_stripe")
def test_every_codec_and_type(tmp_path: Path, codec: str) -> None:
    rows = 40_000
    random = np.random.default_rng(0)
    numbers = random.integers(-1 << 60, 1 << 60, rows)
    table = pa.table(
        {
            "long": numbers,
            "double": random.random(rows),
            "text": pa.array(numbers).cast(pa.string()),
            "binary": pa.array(numbers).cast(pa.string()).cast(pa.binary()),
            "bool": pa.array(numbers % 3 == 0, mask=numbers % 7 == 0),
            "decimal": pa.array(numbers).cast(pa.decimal128(30, 4)),
            "date": pa.array(np.arange(rows, dtype=np.int32)).cast(pa.date32()),
            "time": pa.array(numbers, pa.timestamp("ns")),
            "instant": pa.array(numbers, pa.timestamp("ns", "UTC")),
            "map": pa.array([[("key", i)] for i in range(rows)], pa.map_(pa.string(), pa.int64())),
        }
    ).replace_schema_metadata({"owner": "some one"})
    path = tmp_path / "a.orc"
    tasks = write_orc(path, table, 1, batch_size=10_000, compression=codec)
    assert len(tasks) > 1
    tail, file = known_tail(path), orc.ORCFile(path)
    for task in tasks:
        alone = orc.ORCFile(tail.stripe_alone(source_of(task)))
        assert (alone.nstripes, alone.nrows) == (1, task.physical_rows)
        assert alone.read_stripe(0).equals(file.read_stripe(task.ordinal), check_metadata=True)


@pytest.mark.parametrize("codec", ["uncompressed", "zlib"])
@pytest.mark.usefixtures("every_stripe")
def test_footers_of_many_blocks(tmp_path: Path, codec: str) -> None:
    random = np.random.default_rng(0)
    table = pa.table({f"{'a rather long name ' * 500}{i}": random.random(20_000) for i in range(25)})
    path = tmp_path / "a.orc"
    tasks = write_orc(path, table, 1, batch_size=10_000, compression=codec, compression_block_size=64 << 10)
    assert len(tasks) > 1
    alone = orc.ORCFile(known_tail(path).stripe_alone(source_of(tasks[1])))
    assert alone.file_footer_length > 3 * (64 << 10)
    assert alone.read_stripe(0).equals(orc.ORCFile(path).read_stripe(1), check_metadata=True)


def test_a_file_of_many_small_stripes_is_parsed_once(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(2_000.0)})
    tasks = write_orc(tmp_path / "a.orc", table, 1, batch_size=2, compression="uncompressed")
    assert len(tasks) == 1_000
    reader = make_reader(make_spec(table.schema))
    parts = [reader.read(tasks[0])]
    with not_from_the_file():
        parts += map(reader.read, tasks[1:])
    assert pa.Table.from_batches(parts).equals(table)


def test_many_threads_read_stripes_of_one_file_at_once(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(2_000.0)})
    tasks = write_orc(tmp_path / "a.orc", table, 1, batch_size=4, compression="uncompressed")
    reader = make_reader(make_spec(table.schema))
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(reader.read, tasks * 2))
    assert pa.Table.from_batches(parts).equals(pa.concat_tables([table, table]))


def test_few_or_large_stripes_are_read_from_their_file(tmp_path: Path) -> None:
    few = write_orc(tmp_path / "few.orc", ROWS, 1, batch_size=60, compression="uncompressed")
    assert known_tail(few[0].path).stripe_alone(source_of(few[1])) is None
    table = pa.table({f"c{i}": np.random.default_rng(i).random(250_000) for i in range(8)})
    large = write_orc(tmp_path / "large.orc", table, 1, batch_size=1_000, compression="uncompressed")
    with patch.object(one_stripe, "_LEAST_FOOTER_BYTES", 1):
        assert known_tail(few[0].path).stripe_alone(source_of(few[1])) is not None
        assert len(large) == 250
        assert large[1].byte_length > 8 * orc.ORCFile(large[0].path).file_footer_length
        assert known_tail(large[0].path).stripe_alone(source_of(large[1])) is None


@pytest.mark.usefixtures("every_stripe")
def test_what_is_not_known_is_left_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.orc"
    task, other, *_ = write_orc(path, ROWS, 1, batch_size=60, compression="uncompressed")
    file = orc.ORCFile(path)
    tail = dict(fields(bytes(file.reader.serialized_file_tail())))
    postscript, footer = bytes(as_message(tail[1])), bytes(as_message(tail[2]))

    def is_alone(postscript: bytes, footer: bytes, task: RowGroupTask = task) -> bool:
        encoded = write_bytes(1, postscript) + write_bytes(2, footer)
        return KnownTail(file.schema, encoded).stripe_alone(source_of(task)) is not None

    assert is_alone(postscript, footer)
    for what in (write_bytes(10, b"encrypted"), write_bytes(3, b"x" * 200), b"\x1a\x7f", b"\x1b", b"\x82"):
        assert not is_alone(postscript, footer + what)
    for what in (write_number(7, 3), write_number(2, 1) + write_number(3, 1 << 30), b"\x0d"):
        assert not is_alone(postscript + what, footer)
    encrypted = write_bytes(3, write_number(1, task.byte_offset) + write_number(4, task.byte_length) + b"\x30\x01")
    assert is_alone(postscript, encrypted.replace(b"\x30\x01", b"\x28\x01"))
    assert not is_alone(postscript, encrypted)
    assert not KnownTail(file.schema, b"").stripe_alone(source_of(task))
    for elsewhere in (
        replace(task, ordinal=99),
        replace(task, ordinal=1),
        replace(task, byte_offset=other.byte_offset),
        replace(task, byte_length=other.byte_length + 1),
        replace(task, file_size=task.byte_length),
    ):
        assert not is_alone(postscript, footer, elsewhere)


@pytest.mark.usefixtures("every_stripe")
def test_a_stripe_planned_elsewhere_has_its_rows_still(tmp_path: Path) -> None:
    tasks = write_orc(tmp_path / "a.orc", ROWS, 1, batch_size=60, compression="uncompressed")
    reader = make_reader(make_spec(ROWS.schema))
    for task in tasks:
        unplaced = replace(task, byte_offset=0, byte_length=0)
        assert reader.read(unplaced).to_pylist() == ROWS.slice(task.first_row, task.physical_rows).to_pylist()


@pytest.mark.usefixtures("every_stripe")
def test_a_file_that_is_replaced_while_its_tail_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a.orc"
    tasks = write_orc(path, ROWS, 1, batch_size=60, compression="uncompressed")
    reader = make_reader(make_spec(ROWS.schema))
    reader.read(tasks[0])
    with not_from_the_file():
        reader.read(tasks[1])
        write_orc(path, ROWS.slice(1), 1, batch_size=60, compression="uncompressed")
        with pytest.raises(FileChangedError, match=r"a\.orc is not the file that was planned"):
            reader.read(tasks[2])
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(FileChangedError, match=r"a\.orc is not the file that was planned"):
            reader.read(tasks[2])
        path.unlink()
        with pytest.raises(FileChangedError, match="is gone"):
            reader.read(tasks[3])


def outcome(reader: Reader, task: RowGroupTask) -> Any:
    try:
        return reader.read(task)
    except DataError as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("codec", ["uncompressed", "zlib"])
@pytest.mark.usefixtures("every_stripe")
def test_damaged_files_give_the_rows_or_errors_of_the_file(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "a.orc"
    random = np.random.default_rng(0)
    rows = 40_000 if codec == "zlib" else 120
    table = pa.table({"x": random.random(rows), "y": pa.array([f"{i % 9}" for i in range(rows)])})
    batch_rows = rows // 4
    tasks = write_orc(path, table, 1, batch_size=batch_rows, compression=codec)
    assert len(tasks) > 1
    whole = path.read_bytes()
    reader = make_reader(make_spec(table.schema))
    second = range(tasks[1].byte_offset, sum((tasks[1].byte_offset, tasks[1].byte_length)))
    places = [*random.choice(second, 60), *second[-60:], *range(len(whole) - 200, len(whole))]
    seen = set()
    for place in map(int, places):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        status = path.stat()
        task = replace(tasks[1], identity=f"{status.st_size}-{status.st_mtime_ns}")
        with patch.object(read_orc, "_tails", FileCache()):
            from_file = outcome(reader, task)
            assert outcome(reader, task) == from_file
        seen.add(from_file[0] if isinstance(from_file, tuple) else "rows")
    assert {"rows", "CorruptFileError"} <= seen


@given(
    numbers=st.lists(st.tuples(st.integers(1, 1 << 28), st.integers(0, (1 << 64) - 1))), value=st.binary(max_size=300)
)
def test_protobuf_fields_are_what_was_written(numbers: list[tuple[int, int]], value: bytes) -> None:
    written = b"".join(write_number(*each) for each in numbers) + b"\x11" + bytes(8) + b"\x15" + bytes(4)
    assert list(fields(written + write_bytes(7, value))) == [*numbers, (2, bytes(8)), (2, bytes(4)), (7, value)]
    assert [number for number, _ in fields(memoryview(written))] == [number for number, _ in numbers] + [2, 2]


@pytest.mark.parametrize("damaged", [b"\x08", b"\x0a\x02a", b"\x09" + bytes(7), b"\x0b", b"\xff" * 11])
def test_what_is_no_protobuf_is_told(damaged: bytes) -> None:
    with pytest.raises((IndexError, ValueError)):
        list(fields(damaged))
