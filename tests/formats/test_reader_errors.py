"""What is wrong with a file leaves as one of our errors, naming file and row group."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.faults.hostile_files import chunk, column, data_page, group, parquet, row_group, write_huge_footer
from tests.formats.encrypted import write_encrypted
from tests.formats.files import (
    deleting,
    make_spec,
    make_task,
    write_arrow,
    write_csv,
    write_json,
    write_orc,
    write_parquet,
    write_stream,
    write_stream_batches,
)
from torch_dataloader_utils import _engine
from torch_dataloader_utils._core.block import read_block
from torch_dataloader_utils._core.inventory import UNKNOWN, FileFormat
from torch_dataloader_utils._core.row_group_task import GroupRows, RowGroupTask
from torch_dataloader_utils._store import TAIL_BYTES, FileStat, LocalStore
from torch_dataloader_utils.errors import (
    ConfigError,
    CorruptFileError,
    DataError,
    FileChangedError,
    InternalError,
    LoaderError,
    NullValueError,
    RowCountError,
    SchemaError,
    StoreError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.formats.checks import check_all_decoded
from torch_dataloader_utils.shape.column_blocks import TensorOutput
from torch_dataloader_utils.shape.shapers import ColumnShaper
from torch_dataloader_utils.tables.reader import make_reader

MICROSECONDS = pa.timestamp("us")
TABLE = pa.table({"row": np.arange(100), "word": [f"w{i}" for i in range(100)]})
WRITERS: dict[str, Callable[[Path], list[RowGroupTask]]] = {
    "parquet": lambda path: write_parquet(path, TABLE, 40),
    "orc": lambda path: write_orc(path, TABLE),
    "arrow": lambda path: write_arrow(path, TABLE, 40),
    "stream": lambda path: write_stream(path, TABLE, 40),
    "csv": lambda path: write_csv(path, TABLE, 40),
    "json": lambda path: write_json(path, TABLE, 40),
}
READER = make_reader(make_spec(TABLE.schema))


@pytest.fixture(params=list(WRITERS))
def tasks(request: pytest.FixtureRequest, tmp_path: Path) -> list[RowGroupTask]:
    return WRITERS[request.param](tmp_path / f"a.{request.param}")


def test_a_wrong_count_names_seen_and_wanted_rows(tasks: list[RowGroupTask]) -> None:
    rows = tasks[0].physical_rows
    with pytest.raises(RowCountError, match=rf"row group 0 gave {rows} of {rows + 1} stored rows.*tdu verify"):
        READER.read(replace(tasks[0], physical_rows=rows + 1))
    with pytest.raises(RowCountError, match=rf"gave {rows} of {rows - 1} planned rows"):
        READER.read(replace(tasks[0], live_rows=rows - 1))


def test_more_rows_than_planned_are_an_error_though_only_the_planned_ones_are_asked_for(
    tasks: list[RowGroupTask],
) -> None:
    rows = tasks[0].physical_rows
    task = replace(tasks[0], physical_rows=rows - 1, live_rows=rows - 1)
    for needed in (GroupRows(0, 1), GroupRows(1, 2), GroupRows(0, rows - 1)):
        with pytest.raises(RowCountError, match=rf"gave {rows} of {rows - 1} stored rows"):
            READER.read(task, needed)


def test_unknown_counts_are_not_checked(tasks: list[RowGroupTask]) -> None:
    task = replace(tasks[0], physical_rows=UNKNOWN, live_rows=UNKNOWN)
    assert READER.read(task).num_rows == tasks[0].physical_rows


def test_a_replaced_file_is_changed_even_if_it_does_not_decode(tasks: list[RowGroupTask]) -> None:
    path = Path(tasks[0].path)
    for content in (path.read_bytes() + b" ", b"not a data file", b""):
        path.write_bytes(content)
        with pytest.raises(FileChangedError, match=r"not the file that was planned"):
            READER.read(tasks[0])


def test_a_touched_file_is_changed_though_its_footer_is_known(tasks: list[RowGroupTask]) -> None:
    READER.read(tasks[0])
    os.utime(tasks[0].path, ns=(1, 1))
    with pytest.raises(FileChangedError, match="plan the data set again"):
        READER.read(tasks[0])


def test_a_replaced_file_is_changed_before_anything_is_said_of_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    last = write_arrow(path, TABLE, 40)[-1]
    write_arrow(path, TABLE.slice(0, 40), 40)
    with pytest.raises(FileChangedError, match="not the file that was planned"):
        READER.read(last)


@dataclass(frozen=True, kw_only=True)
class RewrittenStore(LocalStore):
    """Local files, one of which is written to after it is looked up, or just before it is opened."""

    contents: list[bytes]
    is_looked_up: bool

    def stat(self, path: str) -> FileStat:
        seen = LocalStore().stat(path)
        self._write(path)
        return seen

    def local_path(self, path: str) -> str:
        if not self.is_looked_up:
            self._write(path)
        return LocalStore.local_path(self, path)

    def _write(self, path: str) -> None:
        while self.contents:
            with Path(path).open("r+b") as file:
                file.write(self.contents.pop())


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("how", ["other rows", "damage", "another length"])
def test_a_large_file_that_is_written_to_while_it_is_read_is_changed(
    tmp_path: Path, how: str, is_compiled: bool
) -> None:
    table = pa.table({"row": np.arange(20_000)})
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    (other,) = write_parquet(tmp_path / "other.parquet", pa.table({"row": np.arange(20_000) + 1}), **options)
    (task,) = write_parquet(tmp_path / "a.parquet", table, **options)
    assert task.file_size == other.file_size > TAIL_BYTES
    content = {"other rows": Path(other.path).read_bytes(), "damage": bytes(5_000)}.get(how, bytes(task.file_size + 1))
    reader = make_reader(make_spec(table.schema, is_compiled=is_compiled))
    reader.read(task)  # the footer is known, so that nothing else looks the file up
    # pyarrow's road looks the file up before and after it reads; the decoder's looks at the open file.
    is_looked_up = not (is_compiled and _engine.IS_BUILT)
    reader._stores[""] = RewrittenStore(contents=[content], is_looked_up=is_looked_up)
    with pytest.raises(FileChangedError, match="plan the data set again"):
        reader.read(task)


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize("format_name", ["parquet", "orc"])
def test_values_that_do_not_fit_are_those_of_the_planned_file(
    tmp_path: Path, format_name: str, is_replaced: bool
) -> None:
    """A shaper that refuses values when they come; the file was replaced meanwhile, or was not."""
    path = tmp_path / f"a.{format_name}"
    task = WRITERS[format_name](path)[0]

    class Refusing(ColumnShaper):
        def block(self, parts: Any) -> Any:
            next(iter(parts))
            if is_replaced:
                path.write_bytes(b"another file")
            raise NullValueError("column 'word' has 5 nulls")

    shaper = Refusing(columns=(), stacks=(), names=(), output=TensorOutput())
    wanted = FileChangedError if is_replaced and format_name == "parquet" else NullValueError
    with pytest.raises(wanted):
        read_block(READER, shaper, task)


def test_nothing_is_said_of_the_content_of_a_large_file_that_was_replaced(tmp_path: Path) -> None:
    path, table = tmp_path / "a.arrow", pa.table({"row": np.arange(100_000)})
    last = write_arrow(path, table, 20_000)[-1]
    write_arrow(path, table.slice(0, 40_000), 20_000)
    assert path.stat().st_size > TAIL_BYTES
    with pytest.raises(FileChangedError, match="not the file that was planned"):
        make_reader(make_spec(table.schema)).read(last)


def test_a_file_that_is_gone_has_changed(tasks: list[RowGroupTask]) -> None:
    Path(tasks[0].path).unlink()
    with pytest.raises(FileChangedError, match=r"is gone.*Plan the data set again"):
        READER.read(tasks[0])


@contextmanager
def a_pipe_at(path: Path) -> Iterator[None]:
    """A FIFO in place of the file. Whoever waits for it to be written to is freed in the end, to fail."""
    path.unlink()
    os.mkfifo(path)
    opened: list[int] = []
    freeing = Timer(20, lambda: opened.append(os.open(path, os.O_RDWR)))
    freeing.start()
    yield
    freeing.cancel()
    freeing.join()
    assert not opened


def test_a_pipe_in_place_of_a_file_is_a_change_and_nobody_waits_for_it(tasks: list[RowGroupTask]) -> None:
    with a_pipe_at(Path(tasks[0].path)):
        for task in tasks:
            with pytest.raises(FileChangedError, match="is a pipe"):
                make_reader(make_spec(TABLE.schema)).read(task)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("write", [write_parquet, write_orc, write_arrow, write_stream, write_csv])
def test_a_pipe_in_place_of_a_large_file_is_a_change_too(
    tmp_path: Path, write: Callable[[Path, pa.Table, int], list[RowGroupTask]], is_known: bool
) -> None:
    table = pa.table({"row": np.random.default_rng(0).integers(0, 1 << 60, 40_000)})
    (task, *_) = write(tmp_path / "a", table, 1 << 20)
    assert task.file_size > TAIL_BYTES
    reader = make_reader(make_spec(table.schema))
    if is_known:
        reader.read(task)
    with a_pipe_at(tmp_path / "a"), pytest.raises(FileChangedError, match="is a pipe"):
        reader.read(task)


@pytest.mark.slow
@pytest.mark.parametrize("flipped_bits", [0x01, 0xFF])
def test_damage_anywhere_in_a_stream_with_dictionaries_is_told_or_harmless(tmp_path: Path, flipped_bits: int) -> None:
    words = [pa.array([f"{i}", f"{i}b"]).dictionary_encode() for i in range(3)]
    batches = [pa.record_batch({"x": [1, 2], "word": column}) for column in words]
    (*_, last) = write_stream_batches(tmp_path / "good", batches, batches[0].schema)
    good = (tmp_path / "good").read_bytes()
    reader = make_reader(make_spec(batches[0].schema))
    for place in range(len(good)):
        path = tmp_path / f"{place}"
        path.write_bytes(good[:place] + bytes([good[place] ^ flipped_bits]) + good[place + 1 :])
        facts = {"byte_offset": last.byte_offset, "byte_length": last.byte_length}
        try:
            assert reader.read(make_task(path, FileFormat.ARROW, 2, 2, **facts)).num_rows == 2
        except DataError as error:
            assert str(path) in str(error)  # noqa: PT017 - reading rightly is an answer too


def test_truncated_and_flipped_files_never_raise_foreign_errors(tasks: list[RowGroupTask]) -> None:
    path = Path(tasks[0].path)
    good = path.read_bytes()
    random = np.random.default_rng(0)
    damaged = [good[:length] for length in (0, 1, 3, 7, 12, len(good) // 2, len(good) - 1)]
    for _ in range(60):
        flipped = bytearray(good)
        flipped[random.integers(len(good))] ^= 1 << random.integers(8)
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        task = make_task(
            path,
            tasks[0].file_format,
            0,
            tasks[0].physical_rows,
            byte_length=min(tasks[0].byte_length, len(content)),
        )
        try:
            assert READER.read(task).num_rows == task.physical_rows
        except DataError as error:
            assert str(path) in str(error)  # noqa: PT017 - reading rightly is an answer too


def test_text_that_does_not_parse_as_the_schemas_type_is_a_schema_error(tmp_path: Path) -> None:
    schema = pa.schema([("row", pa.int64()), ("word", pa.int64())])
    for tasks in (write_csv(tmp_path / "a.csv", TABLE, 40), write_json(tmp_path / "a.jsonl", TABLE, 40)):
        with pytest.raises(SchemaError, match="row group 1"):
            make_reader(make_spec(schema)).read(tasks[1])


@pytest.mark.parametrize("value", ["1.255", "123456.2", "abc", "9" * 50])
@pytest.mark.parametrize(("ending", "line"), [("csv", "x\n{}\n"), ("jsonl", '{{"x": "{}"}}\n')])
def test_values_that_a_decimal_does_not_hold_are_a_schema_error(
    tmp_path: Path, ending: str, line: str, value: str
) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_text(line.format(value))
    file_format = FileFormat.CSV if ending == "csv" else FileFormat.JSON
    reader = make_reader(make_spec(pa.schema([("x", pa.decimal128(5, 2))])))
    with pytest.raises(SchemaError, match=r"row group 0 does not fit .* or name types that hold its values"):
        reader.read(make_task(path, file_format, 0, 1, byte_length=path.stat().st_size))


def test_more_than_the_memory_budget_is_refused_with_the_number(tmp_path: Path) -> None:
    (task,) = write_parquet(tmp_path / "a.parquet", pa.table({"x": np.zeros(100_000), "y": np.zeros(100_000)}))
    spec = make_spec(pa.schema([("x", pa.float64()), ("y", pa.float64())]), max_row_group_bytes=1_000_000)
    with pytest.raises(UnsupportedFeatureError, match=r"at least 1600000 bytes.*limit is 1000000"):
        make_reader(spec).read(task)
    assert make_reader(replace(spec, columns=("y",))).read(task).num_rows == 100_000
    assert make_reader(spec).read(task, GroupRows(0, 10)).num_rows == 10


def test_page_checksums_are_checked_unless_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.arange(1000)})
    write_parquet(path, table, write_page_checksum=True, use_dictionary=False, compression="none")
    content = path.read_bytes()
    at = content.index(np.arange(500, 510).tobytes())
    path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    task = make_task(path, FileFormat.PARQUET, 0, 1000)
    with pytest.raises(CorruptFileError, match="CRC checksum verification failed"):
        make_reader(make_spec(table.schema)).read(task)
    wrong = make_reader(make_spec(table.schema, page_checksums=False)).read(task)
    assert wrong.column("x")[500].as_py() == 500 | 0xFF


def test_a_directory_or_an_unreadable_path_is_the_worlds_fault(tmp_path: Path) -> None:
    folder = tmp_path / "a.parquet"
    folder.mkdir()
    with pytest.raises(LoaderError, match=r"a\.parquet"):
        READER.read(make_task(folder, FileFormat.PARQUET, 0, 1))


def test_an_encrypted_file_is_unsupported(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PARE" + bytes(100) + (50).to_bytes(4, "little") + b"PARE")
    with pytest.raises(UnsupportedFeatureError, match="encrypted"):
        READER.read(make_task(path, FileFormat.PARQUET, 0, 1))


def test_encrypted_columns_under_a_plain_footer_are_unsupported(tmp_path: Path) -> None:
    # As a table's data file is read, whose manifest says so much that its footer was not looked at.
    path = tmp_path / "a.parquet"
    write_encrypted(path, TABLE, TABLE.column_names[:1])
    with pytest.raises(UnsupportedFeatureError, match=r"a\.parquet.*columns are encrypted"):
        READER.read(make_task(path, FileFormat.PARQUET, 0, TABLE.num_rows))


def test_a_file_that_was_cut_is_corrupt_however_much_footer_its_last_bytes_claim(tmp_path: Path) -> None:
    # As a table's data file is read, whose manifest says so much that its footer was not looked at.
    path = tmp_path / "a.parquet"
    write_parquet(path, TABLE, 40)
    content = path.read_bytes()
    for size in range(1, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(CorruptFileError, match=r"not a Parquet file|too few for a Parquet file"):
            READER.read(make_task(path, FileFormat.PARQUET, 0, 1))
    path.write_bytes(content[:-8] + (70 << 20).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(CorruptFileError, match=rf"claims 73,400,328 bytes of a file of {len(content):,}"):
        READER.read(make_task(path, FileFormat.PARQUET, 0, 1))


@pytest.mark.parametrize("data_type", [MICROSECONDS, pa.list_(MICROSECONDS), pa.struct([("x", MICROSECONDS)])])
@pytest.mark.parametrize("year", [1, 9999])
def test_times_that_nanoseconds_do_not_hold_are_no_other_times(
    tmp_path: Path, data_type: pa.DataType, year: int
) -> None:
    values = pa.array([datetime(year, 12, 31)], MICROSECONDS)
    if pa.types.is_list(data_type):
        values = pa.ListArray.from_arrays([0, 1], values)
    elif pa.types.is_struct(data_type):
        values = pa.StructArray.from_arrays([values], ["x"])
    table = pa.table({"t": values, "row": [1]})
    tasks = [
        task
        for name in ("a", "b")
        for task in write_parquet(tmp_path / f"{name}.parquet", table, use_deprecated_int96_timestamps=True)
    ]
    schema = pq.read_schema(tasks[0].path)
    reader = make_reader(make_spec(schema))
    with pytest.raises(SchemaError, match="outside of 1677"):
        reader.read_together(tasks)
    with pytest.raises(SchemaError, match=r"a\.parquet row group 0: column t has timestamps \(INT96\) outside of 1677"):
        reader.read(tasks[0])
    assert make_reader(make_spec(schema, columns=("row",))).read(tasks[0]).to_pydict() == {"row": [1]}


@pytest.mark.parametrize("year", [1, 9999])
def test_times_in_orc_that_nanoseconds_do_not_hold_are_no_damage(tmp_path: Path, year: int) -> None:
    table = pa.table({"t": pa.array([datetime(year, 12, 31)], MICROSECONDS), "row": [1]})
    (task,) = write_orc(tmp_path / "a.orc", table)
    with pytest.raises(
        SchemaError, match=r"a\.orc row group 0 has timestamps outside of 1677 to 2262.*Leave the column"
    ):
        make_reader(make_spec(table.schema)).read(task)
    assert make_reader(make_spec(table.schema, columns=("row",))).read(task).to_pydict() == {"row": [1]}


def test_int96_keeps_its_nanoseconds(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([1_577_840_523_000_456_789, None], pa.timestamp("ns"))})
    (task,) = write_parquet(tmp_path / "a.parquet", table, use_deprecated_int96_timestamps=True)
    assert make_reader(make_spec(table.schema)).read(task).column("t").equals(table["t"].chunk(0))


def test_a_row_group_past_the_footer_is_corrupt(tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        if name in ("parquet", "orc", "arrow"):
            (first, *_) = write(tmp_path / f"a.{name}")
            with pytest.raises(CorruptFileError, match="row group 99"):
                READER.read(replace(first, ordinal=99))


def test_two_columns_of_one_name_are_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "row"])
    (parquet,) = write_parquet(tmp_path / "a.parquet", table)
    (arrow,) = write_arrow(tmp_path / "a.arrow", table, 10)
    path = tmp_path / "a.csv"
    path.write_text("a,a,row\n1,2,3\n")
    text = make_task(path, FileFormat.CSV, 0, 1, byte_length=14)
    schema = pa.schema([("a", pa.int64()), ("row", pa.int64())])
    for task in (parquet, arrow, text):
        with pytest.raises(SchemaError, match="more than one column named a"):
            make_reader(make_spec(schema)).read(task)
        assert make_reader(make_spec(schema, columns=("row",))).read(task).to_pydict() == {"row": [3]}


def test_names_that_are_not_there_are_refused_when_the_reader_is_made() -> None:
    with pytest.raises(ConfigError, match="no column is named wrod; did you mean 'word'"):
        make_reader(make_spec(TABLE.schema, columns=("wrod",)))
    with pytest.raises(ConfigError, match="row more than once"):
        make_reader(make_spec(TABLE.schema, columns=("row", "row")))
    with pytest.raises(ConfigError, match="no column is named day"):
        make_reader(make_spec(TABLE.schema, partition_columns=("day",)))


def test_a_filter_that_fails_on_the_values_says_where(tmp_path: Path) -> None:
    (task, *_) = write_parquet(tmp_path / "a.parquet", TABLE)
    reader = make_reader(make_spec(TABLE.schema, row_filter=pc.scalar(1) / pc.field("row") > 0))
    with pytest.raises(ConfigError, match=r"row group 0: the row filter .*divide by zero"):
        reader.read(task)


def test_extras_that_no_reader_knows_are_our_fault(tmp_path: Path) -> None:
    (task, *_) = write_parquet(tmp_path / "a.parquet", TABLE)
    with pytest.raises(InternalError, match="carries str"):
        READER.read(replace(task, extra="deletes"))
    with pytest.raises(InternalError, match="no known first row"):
        READER.read(replace(task, first_row=UNKNOWN, extra=deleting(TABLE.schema, [1])))


def test_credentials_in_a_url_stay_out_of_messages() -> None:
    task = replace(
        make_task(Path(__file__), FileFormat.PARQUET, 0, 1), path="memory://user:canary@bucket/nothing.parquet"
    )
    with pytest.raises((StoreError, DataError, ConfigError)) as caught:
        READER.read(task)
    assert "canary" not in str(caught.value)


def test_a_name_that_is_no_text_is_a_corrupt_file(tmp_path: Path) -> None:
    name, page = b"\xff\xfe", data_page(bytes(8), 1)
    chunks = [chunk([name], uncompressed=len(page), compressed=len(page))]
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet([group("root", 1), column(name)], [row_group(chunks, 1)], 1, page))
    with pytest.raises(CorruptFileError, match=r"a\.parquet row group 0 does not decode \(UnicodeDecodeError"):
        READER.read(make_task(path, FileFormat.PARQUET, 0, 1))


def test_a_json_array_is_told_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"row": 1}, {"row": 2}]')
    with pytest.raises(
        UnsupportedFeatureError, match=r"a\.json row group 0 begins with a JSON array .* JSON lines are"
    ):
        READER.read(make_task(path, FileFormat.JSON, 0, 1, byte_length=path.stat().st_size))


def test_a_footer_of_more_bytes_than_any_table_needs_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_huge_footer(path)
    with pytest.raises(UnsupportedFeatureError, match=r"a\.parquet row group 0: the file has 73,400,328 bytes"):
        READER.read(make_task(path, FileFormat.PARQUET, 0, 1))


def test_a_column_that_a_decoder_drops_without_a_word_is_told(tmp_path: Path) -> None:
    (task, *_) = write_parquet(tmp_path / "a.parquet", TABLE)
    with pytest.raises(UnsupportedFeatureError, match="does not decode column word, which the file has"):
        check_all_decoded(task, ["row", "word"], TABLE.select(["row"]).to_batches()[0])
