"""Arrow streams that were cut, that end oddly, or whose numbers are big-endian: exactly their rows, or an error."""

import itertools
import struct
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import StructuredDataset, scan_files
from torch_dataloader_utils._store import FileEntry, LocalStore
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.formats.arrow.format import ARROW
from torch_dataloader_utils.formats.arrow.messages import FlatTable, Message, metadata_length, stream_messages
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.registry import scan_file

END = b"\xff\xff\xff\xff\0\0\0\0"


def stream(batches: list[pa.RecordBatch], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def messages(data: bytes) -> list[Message]:
    return list(stream_messages(lambda at, length: data[at : at + length], 0, len(data)))


def read(path: str | Path) -> list[dict[str, Any]]:
    loader, _ = StructuredDataset.create_dataloader(path, "arrow", num_workers=0, output_format="arrow")
    return [row for batch in loader for row in batch.to_pylist()]


def make_batches(group_rows: list[int], *, categories: bool) -> list[pa.RecordBatch]:
    starts = itertools.accumulate(group_rows, initial=0)
    batches = []
    for start, rows in zip(starts, group_rows, strict=False):
        numbers = pa.array(range(start, start + rows), pa.int64())
        words = pa.array([f"word {n % 3}" for n in range(start, start + rows)], pa.string())
        batches.append(pa.record_batch({"row": numbers, "word": words.dictionary_encode() if categories else words}))
    return batches


def scanned_rows(path: Path) -> list[int]:
    store = LocalStore()
    item = ScanItem(entry=FileEntry(path=str(path), stat=store.stat(str(path))))
    scan = scan_file(store, ScanRequest(format=ARROW), item)
    assert isinstance(scan, FileScan)
    return scan.groups[:, 0].tolist()


@pytest.mark.slow
@settings(max_examples=effort(2), deadline=None)
@given(
    group_rows=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    categories=st.booleans(),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    deltas=st.booleans(),
    is_legacy=st.booleans(),
)
@example(group_rows=[2, 3], categories=True, compression=None, deltas=False, is_legacy=False)
def test_a_stream_cut_at_any_byte_has_the_rows_of_whole_batches_or_is_an_error(
    group_rows: list[int], categories: bool, compression: str | None, deltas: bool, is_legacy: bool
) -> None:
    batches = make_batches(group_rows, categories=categories)
    options = {"compression": compression, "emit_dictionary_deltas": deltas, "use_legacy_format": is_legacy}
    data = stream(batches, **options)
    first, *_, last = messages(data)
    # A stream may end before any message, without its end mark; but a dictionary belongs to a batch.
    legal = {0: first.stop} | {n + 1: each.stop for n, each in enumerate(m for m in messages(data) if m.num_rows)}
    assert legal[len(group_rows)] == last.stop
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.arrow"
        path.write_bytes(data)
        assert scanned_rows(path) == group_rows
        for stop in range(1, len(data)):
            path.write_bytes(data[:stop])
            whole = [number for number, end in legal.items() if end == stop]
            if whole:
                assert scanned_rows(path) == group_rows[: whole[0]]
            else:
                with pytest.raises(CorruptFileError, match=r"a\.arrow"):
                    print(stop, scanned_rows(path))


@pytest.mark.parametrize(
    "end", [*(bytes(n) for n in (1, 2, 3, 5, 7)), b"\xff\xff\xff\xff", END + b"\0", END + END, bytes(12)]
)
def test_bytes_that_are_neither_a_message_nor_the_end_mark_are_an_error(tmp_path: Path, end: bytes) -> None:
    data = stream(make_batches([2, 3], categories=False))
    (tmp_path / "a.arrow").write_bytes(data.removesuffix(END) + end)
    with pytest.raises(CorruptFileError, match=r"a\.arrow"):
        scan_files(tmp_path, "arrow")


def test_what_follows_an_end_mark_before_the_first_batch_is_not_left_out(tmp_path: Path) -> None:
    data = stream(make_batches([2, 3], categories=False))
    start = messages(data)[1].start
    for damaged in (data[:start] + END + data[start:], data[:start] + bytes(8) + data[start + 8 :], data + data):
        (tmp_path / "a.arrow").write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=r"the stream ends at byte \d+, and \d+ bytes follow"):
            scan_files(tmp_path, "arrow")


def test_a_second_schema_is_no_batch_without_rows(tmp_path: Path) -> None:
    data = stream(make_batches([2, 3], categories=False))
    schema = data[: messages(data)[0].stop]
    (tmp_path / "a.arrow").write_bytes(schema + data)
    with pytest.raises(CorruptFileError, match="of kind 1, which has no place there"):
        scan_files(tmp_path, "arrow")


def test_a_batch_that_says_it_is_empty_is_believed_only_if_its_columns_are(tmp_path: Path) -> None:
    data = bytearray(stream(make_batches([77, 77], categories=False)))
    place = data.index(struct.pack("<q", 77))
    data[place : place + 8] = bytes(8)
    (tmp_path / "a.arrow").write_bytes(data)
    with pytest.raises(CorruptFileError, match="0 rows, and 77 in the first column"):
        scan_files(tmp_path, "arrow")


def test_a_stream_without_an_end_mark_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = stream(make_batches([2], categories=False))
    (tmp_path / "a.arrow").write_bytes(data)
    scan_files(tmp_path, "arrow")
    assert not caplog.records
    (tmp_path / "a.arrow").write_bytes(data.removesuffix(END))
    assert scan_files(tmp_path, "arrow").num_rows == 2
    assert "a.arrow has no end mark" in caplog.text


NUMBERS = range(40)
BIG_ENDIAN_COLUMNS = {
    "row": pa.array(NUMBERS, pa.int64()),
    "end": pa.array([2147483647 - n for n in NUMBERS], pa.int32()),
    "half": pa.array([n / 2 if n % 3 else None for n in NUMBERS], pa.float32()),
    "text": pa.array([f"text {n}" if n % 4 else None for n in NUMBERS], pa.string()),
    "lists": pa.array([list(range(n % 5)) for n in NUMBERS], pa.list_(pa.int16())),
    "pair": pa.array(
        [{"x": n, "y": str(n)} for n in NUMBERS], pa.struct([("x", pa.int64()), ("y", pa.large_string())])
    ),
    "map": pa.array([{str(n): n} for n in NUMBERS], pa.map_(pa.string(), pa.int32())),
    "price": pa.array([Decimal(n) for n in NUMBERS], pa.decimal128(20, 2)),
    "time": pa.array(NUMBERS, pa.timestamp("us")),
    "flag": pa.array([n % 2 == 0 for n in NUMBERS]),
    "nothing": pa.nulls(len(NUMBERS)),
}


def widths(data_type: pa.DataType) -> list[int]:
    """Bytes of a number in each buffer of a column, in the order of a record batch."""
    if pa.types.is_null(data_type):
        return []
    if pa.types.is_struct(data_type):
        return [1, *itertools.chain.from_iterable(widths(field.type) for field in data_type)]
    if pa.types.is_list(data_type) or pa.types.is_map(data_type):
        return [1, 4, *widths(data_type.field(0).type)]
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return [1, 8 if pa.types.is_large_string(data_type) else 4, 1]
    if pa.types.is_dictionary(data_type):
        return widths(data_type.index_type)
    return [1, max(1, data_type.bit_width // 8)]


def big_endian(data: bytes, schema: pa.Schema) -> bytes:
    """The stream as a big-endian machine would have written it; no compression."""
    parts = [big_endian_schema(data)]
    for message in messages(data)[1:]:
        part = bytearray(data[message.start : message.stop])
        length, prefix = metadata_length(part)
        header = FlatTable.root(memoryview(part)[prefix : prefix + length]).table(2)
        types = schema.types
        if message.dictionary is not None:
            header, types = (
                header.table(1),
                [field.type.value_type for field in schema if pa.types.is_dictionary(field.type)],
            )
        columns = itertools.chain.from_iterable(map(widths, types))
        for width, (offset, size) in zip(columns, list(header.structs(2, "<qq")), strict=True):
            start = prefix + length + offset
            body = part[start : start + size - size % width]
            for place in range(0, len(body), width):
                part[start + place : start + place + width] = body[place : place + width][::-1]
        parts.append(bytes(part))
    return b"".join(parts) + END


def big_endian_schema(data: bytes) -> bytes:
    """The schema's message with another Message and Schema table, which says that it is big-endian, before the old."""
    length, prefix = metadata_length(data)
    old = data[prefix : prefix + length]
    fields = FlatTable.root(memoryview(old)).table(2)
    place = (
        fields.position
        + struct.unpack_from("<H", old, fields.position - struct.unpack_from("<i", old, fields.position)[0] + 6)[0]
    )
    place += struct.unpack_from("<I", old, place)[0]
    # Root; Message: its vtable at 4, table at 20; Schema: its vtable at 40, table at 48; the old metadata from 64 on.
    message = struct.pack("<HHHHHH", 12, 16, 4, 6, 8, 0) + bytes(4) + struct.pack("<iHBxII", 16, 4, 1, 48 - 28, 0)
    schema = bytes(4) + struct.pack("<HHHH", 8, 12, 4, 8) + struct.pack("<iHxxI", 8, 1, 64 + place - 56) + bytes(4)
    new = struct.pack("<I", 20) + message + schema + old
    return struct.pack("<Ii", 0xFFFF_FFFF, len(new)) + new


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("names", [[name] for name in BIG_ENDIAN_COLUMNS] + [list(BIG_ENDIAN_COLUMNS), ["row", "word"]])
def test_numbers_of_a_big_endian_stream_are_swapped(tmp_path: Path, names: list[str], is_remote: bool) -> None:
    words = pa.array([f"word {n % 3}" for n in NUMBERS]).dictionary_encode()
    table = pa.table({**BIG_ENDIAN_COLUMNS, "word": words}).select(names)
    data = big_endian(stream(table.to_batches(max_chunksize=16)), table.schema)
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    # The oracle has nothing of ours.
    assert pa.ipc.open_stream(data).read_all().to_pylist() == table.to_pylist()
    if is_remote:
        fsspec.filesystem("memory").pipe("/test_arrow_streams/a.arrow", data)
    assert read("memory://test_arrow_streams/a.arrow" if is_remote else path) == table.to_pylist()
