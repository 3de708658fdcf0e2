"""Numbers of footers by pattern: those that pyarrow reads in them, or none."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import EFFORT
from tests.read.files import identity, make_spec, parquet_tasks, write_parquet
from tests.read.test_corpus import CORPUS
from tests.read.test_reader_properties import tables
from tests.read.test_together import ROWS, WRITER_OPTIONS, rows_together
from torch_dataloader_utils import scan_files
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._parquet import footer_pattern
from torch_dataloader_utils._parquet.compact_protocol import read_integer, read_integers, write_integer
from torch_dataloader_utils._parquet.footer_pattern import FooterKind, FooterNumbers, footer_kind
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.read import parquet_footer, parquet_together
from torch_dataloader_utils.read.column_chunks import ColumnChunks
from torch_dataloader_utils.read.reader import make_reader


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No footer has been seen, and the first one makes a pattern."""
    monkeypatch.setattr(footer_pattern, "_WORTH_IT", 1)
    footer_pattern._kinds._entries.clear()
    yield
    footer_pattern._kinds._entries.clear()


def footer_of(path: Path) -> bytes:
    content = path.read_bytes()
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


def kind_that_knows(*footers: bytes) -> FooterKind:
    """The kind of the footers, after each has come as often as it takes to match all of its row groups."""
    kind = footer_kind(footers[0])
    assert kind is not None
    for footer in footers:
        for _ in range(footer_pattern._MOST_PATTERNS + 1):
            kind.match(footer)
    return kind


def assert_says_what_pyarrow_reads(numbers: FooterNumbers, metadata: pq.FileMetaData) -> None:
    assert (numbers.rows, len(numbers.groups)) == (metadata.num_rows, metadata.num_row_groups)
    for ordinal, numbers_of_group in enumerate(numbers.groups):
        group = metadata.row_group(ordinal)
        assert (numbers_of_group.rows, numbers_of_group.num_bytes) == (group.num_rows, group.total_byte_size)
        assert len(numbers_of_group.types) == len(numbers_of_group.codecs) == metadata.num_columns
        for leaf in range(metadata.num_columns):
            chunk = group.column(leaf)
            assert numbers_of_group.chunk(leaf) == (
                chunk.num_values,
                chunk.total_uncompressed_size,
                chunk.total_compressed_size,
                chunk.data_page_offset,
                chunk.dictionary_page_offset or 0,
            )


@settings(max_examples=60 * EFFORT, deadline=None)
@given(
    files=st.lists(tables(), min_size=1, max_size=6),
    group_rows=st.integers(5, 30),
    options=WRITER_OPTIONS,
    seen=st.data(),
)
def test_numbers_are_those_that_pyarrow_reads(
    files: list[pa.Table], group_rows: int, options: dict[str, Any], seen: st.DataObject
) -> None:
    """Whichever of the files made the patterns; those that look otherwise are not matched."""
    footer_pattern._kinds._entries.clear()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.parquet" for i in range(len(files))]
        for path, table in zip(paths, files, strict=True):
            write_parquet(path, table, group_rows, **options)
        first = seen.draw(st.sampled_from(paths))
        kind = kind_that_knows(footer_of(first))
        for path in paths:
            numbers = kind.match(footer_of(path))
            assert numbers is not None or path != first or pq.read_metadata(path).num_row_groups > 4
            if numbers is not None:
                assert_says_what_pyarrow_reads(numbers, pq.read_metadata(path))


@pytest.mark.skipif(not CORPUS.exists(), reason=f"the corpus of foreign files is not at {CORPUS}")
def test_footers_of_many_writers() -> None:
    matched = 0
    for path in sorted(CORPUS.glob("*/*.parquet")):
        with suppress(pa.ArrowException, OSError):
            metadata = pq.read_metadata(path)
            numbers = kind_that_knows(footer_of(path)).match(footer_of(path))
            assert numbers is not None, path
            assert_says_what_pyarrow_reads(numbers, metadata)
            matched += 1
    assert matched > 60


def test_texts_in_statistics_are_as_long_as_they_are(tmp_path: Path) -> None:
    footers = []
    for i, length in enumerate([0, 3, 60, 127, 128, 129, 1000]):
        write_parquet(
            tmp_path / f"{i}.parquet", pa.table({"a": ["x" * length, "y" * length], "b": ["z"] * 2, "c": [i] * 2})
        )
        footers.append(footer_of(tmp_path / f"{i}.parquet"))
    kind = kind_that_knows(footers[1])
    for i, footer in enumerate(footers):
        numbers = kind.match(footer)
        assert numbers is not None, i
        assert_says_what_pyarrow_reads(numbers, pq.read_metadata(tmp_path / f"{i}.parquet"))


def test_a_pattern_is_made_once_it_is_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    write_parquet(tmp_path / "a.parquet", ROWS)
    footer = footer_of(tmp_path / "a.parquet")
    kind = footer_kind(footer)
    assert kind is not None
    assert [kind.match(footer) for _ in range(64)] == [None] * 64
    assert kind.match(footer) is not None


def test_so_many_patterns_and_kinds_are_kept(tmp_path: Path) -> None:
    """A column that is null throughout has no statistics of its values."""
    kind = None
    for i in range(8):
        table = pa.table({f"c{leaf}": pa.array([None if i >> leaf & 1 else 1], pa.int64()) for leaf in range(3)})
        write_parquet(tmp_path / f"{i}.parquet", table)
        kind = kind_that_knows(footer_of(tmp_path / f"{i}.parquet"))
    assert kind is not None
    known = [kind.match(footer_of(tmp_path / f"{i}.parquet")) is not None for i in range(8)]
    assert known == [True] * 4 + [False] * 4
    for i in range(40):
        write_parquet(tmp_path / "b.parquet", pa.table({f"d{i}": [1]}))
        assert footer_kind(footer_of(tmp_path / "b.parquet")) is not None
    assert len(footer_pattern._kinds.values()) == 16
    assert footer_kind(b"") is None


def assert_same(one: Inventory, other: Inventory) -> None:
    assert one.fingerprint() == other.fingerprint()
    assert one.schema == other.schema
    for field in fields(one.groups):
        assert np.array_equal(getattr(one.groups, field.name), getattr(other.groups, field.name)), field.name


@pytest.mark.parametrize("worth_it", [1, 3])
@pytest.mark.parametrize("columns", [None, ["x"], ["y"], ["y", "x"]])
def test_a_scan_says_the_same_by_pattern(
    tmp_path: Path, columns: list[str] | None, worth_it: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of several kinds of footers, one of which has no rows and one no row groups."""
    for i in range(12):
        table = ROWS if i % 3 else ROWS.set_column(1, "y", pa.nulls(40, pa.string()))
        write_parquet(tmp_path / f"{i:02}.parquet", table.slice(0, [40, 7, 0, 30][i % 4]), 10, compression="gzip")
    parsed = scan_files(tmp_path, columns=columns)
    monkeypatch.setattr(footer_pattern, "_WORTH_IT", 1 << 60)
    expected = scan_files(tmp_path, columns=columns)
    monkeypatch.setattr(footer_pattern, "_WORTH_IT", worth_it)
    footer_pattern._kinds._entries.clear()
    found = [scan_files(tmp_path, columns=columns) for _ in range(8)]
    assert kind_that_knows(footer_of(tmp_path / "01.parquet"))._patterns
    for inventory in (parsed, *found):
        assert_same(inventory, expected)


def test_a_scan_by_pattern_parses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        write_parquet(tmp_path / f"{i}.parquet", ROWS.slice(i))
    expected = scan_files(tmp_path)
    monkeypatch.delattr(pq, "ParquetReader")
    assert_same(scan_files(tmp_path), expected)


def test_footers_are_not_parsed_to_read_files_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [task for i in range(6) for task in write_parquet(tmp_path / f"{i}.parquet", ROWS.slice(i), 20)]
    reader = make_reader(make_spec(ROWS.schema))
    expected = [reader.read(task) for task in tasks]
    parquet_footer._footers._clear()
    monkeypatch.delattr(parquet_footer, "_parsed")
    if parquet_together.IS_SUPPORTED:
        assert rows_together(reader, tasks).equals(pa.concat_batches(expected))
    monkeypatch.undo()
    assert [reader.read(task) for task in tasks] == expected


def test_what_arrow_says_of_columns_comes_after_the_row_groups(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.parquet" for i in range(4)]
    for i, path in enumerate(paths):
        field = pa.field("x", pa.int64(), metadata={"unit": str(i)})
        write_parquet(path, pa.table([[1, 2]], schema=pa.schema([field])))
    for _ in range(3):
        assert [schema_read(path).field(0).metadata[b"unit"] for path in paths] == [b"0", b"1", b"2", b"3"]
        parquet_footer._footers._clear()


def schema_read(path: Path) -> pa.Schema:
    (task,) = parquet_tasks(path)
    return parquet_footer.parquet_schema(make_reader(make_spec(ROWS.schema))._source(task))


def test_an_encrypted_footer_is_refused_though_its_bytes_match(tmp_path: Path) -> None:
    tasks = [task for i in range(3) for task in write_parquet(tmp_path / f"{i}.parquet", ROWS)]
    reader = make_reader(make_spec(ROWS.schema))
    for task in tasks[:2]:
        reader.read(task)
    path = Path(tasks[2].path)
    path.write_bytes(path.read_bytes()[:-1] + b"E")
    task = replace(tasks[2], identity=identity(path))
    with pytest.raises(UnsupportedFeatureError, match=r"2\.parquet.*encrypted"):
        reader.read(task)
    if parquet_together.IS_SUPPORTED:
        with pytest.raises(UnsupportedFeatureError, match=r"2\.parquet.*encrypted"):
            reader.read_together([tasks[0], task])


def test_chunks_that_are_not_in_their_file_or_of_another_type(tmp_path: Path) -> None:
    tasks = [task for i in range(3) for task in write_parquet(tmp_path / f"{i}.parquet", ROWS)]
    reader = make_reader(make_spec(ROWS.schema))
    footers = [parquet_footer.parquet_footer(reader._source(task)) for task in tasks]
    groups = [footer.numbers(task) for footer, task in zip(footers, tasks, strict=True)]
    group = groups[2]
    assert group is not None
    chunks = ColumnChunks.of([group], [0, 1], [tasks[2].file_size])
    assert chunks is not None
    stop = int((chunks.numbers[0, 0] + chunks.numbers[0, 1]).max())
    assert ColumnChunks.of([group], [0, 1], [stop]) is not None
    assert ColumnChunks.of([group], [0, 1], [stop - 1]) is None
    assert ColumnChunks.of([group._replace(written=b"\1" + group.written[1:])], [0, 1], [stop]) is None
    if parquet_together.IS_SUPPORTED:
        sources = [reader._source(task) for task in tasks]
        assert parquet_together.JoinedRowGroups.of(sources, ROWS.schema) is not None
        footers[2]._numbers = [group._replace(types=(1, 6))]
        assert parquet_together.JoinedRowGroups.of(sources, ROWS.schema) is None


@settings(max_examples=400 * EFFORT, deadline=None)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 60))
def test_damaged_footers_match_with_their_numbers_or_not_at_all(place: int, byte: int, cut: int) -> None:
    """Never with others than pyarrow finds, where it finds any, and never with another error."""
    damaged = bytearray(FOOTER)
    damaged[place % len(damaged)] = byte
    del damaged[len(damaged) - cut :]
    kind = KINDS.setdefault("known", kind_that_knows(FOOTER))
    numbers = kind.match(bytes(damaged)) if damaged.startswith(kind.head) else None
    if numbers is None:
        return
    assert numbers.stop <= len(damaged)
    content = bytes(damaged) + len(damaged).to_bytes(4, "little") + b"PAR1"
    with suppress(pa.ArrowException, OSError, UnicodeError):
        assert_says_what_pyarrow_reads(numbers, pq.read_metadata(pa.BufferReader(content)))


def _one_footer() -> bytes:
    file = pa.BufferOutputStream()
    pq.write_table(ROWS, file, row_group_size=20)
    content = file.getvalue().to_pybytes()
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


FOOTER = _one_footer()
KINDS: dict[str, FooterKind] = {}


@given(numbers=st.lists(st.integers(0, (1 << 62) - 1), min_size=1))
def test_integers_are_read_as_they_were_written(numbers: list[int]) -> None:
    written = list(map(write_integer, numbers))
    assert list(map(read_integer, written)) == numbers
    assert read_integers(b"".join(written)).tolist() == numbers


@pytest.mark.parametrize(
    ("written", "number"), [(b"\1", -1), (b"\3", -2), (b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", -(1 << 62))]
)
def test_negative_integers(written: bytes, number: int) -> None:
    assert read_integer(written) == number
    assert read_integers(written).tolist() == [number]
