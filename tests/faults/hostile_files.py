"""Parquet files that no writer makes: footers by hand, with counts, places and depths of one's choice.

Source: parquet.thrift (FileMetaData, PageHeader) and the Thrift compact protocol.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
INT64_TYPE, BYTE_ARRAY_TYPE = 2, 6
PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
UNCOMPRESSED, ZSTD = 0, 6


def varint(number: int) -> bytes:
    """Unsigned, seven bits a byte."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    return varint(((number << 1) ^ (number >> 63)) & (1 << 64) - 1)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(len(data)) + data


def list_of(kind: int, items: Sequence[bytes]) -> bytes:
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + varint(len(items))
    return head + b"".join(items)


def struct_of(*fields: tuple[int, int, bytes]) -> bytes:
    """Fields (id, type, encoded value), ids ascending."""
    out, last = b"", 0
    for number, kind, value in fields:
        out += bytes([(number - last) << 4 | kind]) + value
        last = number
    return out + b"\0"


def column(name: str, kind: int = INT64_TYPE) -> bytes:
    """A required leaf of the schema."""
    return struct_of((1, I32, zigzag(kind)), (3, I32, zigzag(0)), (4, BINARY, text(name)))


def group(name: str, children: int) -> bytes:
    """An inner node of the schema."""
    return struct_of((3, I32, zigzag(0)), (4, BINARY, text(name)), (5, I32, zigzag(children)))


def chunk(path: Sequence[str], statistics: bytes = b"", **facts: int) -> bytes:
    """A column chunk; see the defaults for what may be said of it."""
    known = {"kind": INT64_TYPE, "codec": UNCOMPRESSED, "values": 1, "uncompressed": 8, "compressed": 8, "offset": 4}
    known |= facts
    fields: list[tuple[int, int, bytes]] = [
        (1, I32, zigzag(known["kind"])),
        (2, LIST, list_of(I32, [zigzag(PLAIN)])),
        (3, LIST, list_of(BINARY, [text(part) for part in path])),
        (4, I32, zigzag(known["codec"])),
        (5, I64, zigzag(known["values"])),
        (6, I64, zigzag(known["uncompressed"])),
        (7, I64, zigzag(known["compressed"])),
        (9, I64, zigzag(known["offset"])),
    ]
    if "dictionary" in known:
        fields.append((11, I64, zigzag(known["dictionary"])))
    if statistics:
        fields.append((12, STRUCT, statistics))
    return struct_of((2, I64, zigzag(known["offset"])), (3, STRUCT, struct_of(*fields)))


def row_group(chunks: Sequence[bytes], rows: int, size: int = 8) -> bytes:
    return struct_of((1, LIST, list_of(STRUCT, chunks)), (2, I64, zigzag(size)), (3, I64, zigzag(rows)))


def parquet(schema: Sequence[bytes], groups: Sequence[bytes], rows: int, body: bytes = b"") -> bytes:
    """The file."""
    footer = struct_of(
        (1, I32, zigzag(1)),
        (2, LIST, list_of(STRUCT, schema)),
        (3, I64, zigzag(rows)),
        (4, LIST, list_of(STRUCT, groups)),
    )
    return b"PAR1" + body + footer + struct.pack("<I", len(footer)) + b"PAR1"


def data_page(content: bytes, values: int, *, size: int | None = None, encoding: int = PLAIN) -> bytes:
    """A data page v1; size: of the content uncompressed."""
    counts = struct_of(
        (1, I32, zigzag(values)), (2, I32, zigzag(encoding)), (3, I32, zigzag(RLE)), (4, I32, zigzag(RLE))
    )
    return _page(0, content, size, (5, STRUCT, counts))


def dictionary_page(content: bytes, values: int) -> bytes:
    """A page of plain values."""
    return _page(2, content, None, (7, STRUCT, struct_of((1, I32, zigzag(values)), (2, I32, zigzag(PLAIN)))))


def _page(kind: int, content: bytes, size: int | None, header: tuple[int, int, bytes]) -> bytes:
    lengths = [(2, I32, zigzag(len(content) if size is None else size)), (3, I32, zigzag(len(content)))]
    return struct_of((1, I32, zigzag(kind)), *lengths, header) + content


def good(rows: int = 3, **lies: Any) -> bytes:
    """A file of one column and row group that reads well, but for what is changed: of the chunk (see `chunk`),
    group_rows, file_rows or page_values."""
    group_rows, file_rows = lies.pop("group_rows", rows), lies.pop("file_rows", rows)
    page = data_page(struct.pack(f"<{rows}q", *range(rows)), lies.pop("page_values", rows))
    facts = {"values": rows, "uncompressed": len(page), "compressed": len(page)} | lies
    groups = [row_group([chunk(["a"], **facts)], group_rows, len(page))]
    return parquet([group("root", 1), column("a")], groups, file_rows, page)


def many_columns(count: int) -> bytes:
    """One row group of so many columns, all of one name and at one place."""
    page = data_page(struct.pack("<q", 7), 1)
    chunks = [chunk(["a"], uncompressed=len(page), compressed=len(page))] * count
    return parquet([group("root", count), *[column("a")] * count], [row_group(chunks, 1)], 1, page)


def many_groups(count: int) -> bytes:
    """One column in so many row groups of a row each, all at the same place."""
    page = data_page(struct.pack("<q", 7), 1)
    one = row_group([chunk(["a"], uncompressed=len(page), compressed=len(page))], 1)
    return parquet([group("root", 1), column("a")], [one] * count, count, page)


def deep(depth: int) -> bytes:
    """One column below so many structs."""
    page = data_page(struct.pack("<q", 7), 1)
    path = [f"g{level}" for level in range(depth)]
    schema = [group("root", 1), *(group(name, 1) for name in path), column("a")]
    chunks = [chunk([*path, "a"], uncompressed=len(page), compressed=len(page))]
    return parquet(schema, [row_group(chunks, 1)], 1, page)


def page_bomb(size: int, *, declared: int) -> bytes:
    """A few kilobytes of zstd that are `size` bytes of values; the footer says `declared`."""
    content = pa.compress(bytes(size), "zstd", asbytes=True)
    rows = size // 8
    page = data_page(content, rows, size=size)
    facts = {"codec": ZSTD, "values": rows, "compressed": len(page), "uncompressed": declared}
    groups = [row_group([chunk(["a"], **facts)], rows, facts["uncompressed"])]
    return parquet([group("root", 1), column("a")], groups, rows, page)


def dictionary_bomb(value_bytes: int, rows: int) -> bytes:
    """One long string in a dictionary, and so many rows of it in a few bytes; both footer and pages are honest."""
    dictionary = dictionary_page(struct.pack("<I", value_bytes) + bytes([97]) * value_bytes, 1)
    page = data_page(b"\x01" + varint(rows << 1) + b"\0", rows, encoding=RLE_DICTIONARY)
    size = len(dictionary) + len(page)
    facts = {"kind": BYTE_ARRAY_TYPE, "values": rows, "uncompressed": size, "compressed": size}
    chunks = [chunk(["a"], **facts, offset=4 + len(dictionary), dictionary=4)]
    return parquet(
        [group("root", 1), column("a", BYTE_ARRAY_TYPE)], [row_group(chunks, rows, size)], rows, dictionary + page
    )


def write_huge_footer(path: Path) -> None:
    """A file of 80 MB, a hole that takes no room on the disk, whose last bytes say that 70 MiB of it are footer."""
    with path.open("wb") as file:
        file.truncate(80 << 20)
        file.seek(0, os.SEEK_END)
        file.write((70 << 20).to_bytes(4, "little") + b"PAR1")
