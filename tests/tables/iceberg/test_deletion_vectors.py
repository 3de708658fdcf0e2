"""Deletion vectors: which rows they delete of which files, and damaged ones."""

import struct
import warnings
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from tests.effort import effort
from tests.tables.iceberg.reading import read_rows
from tests.tables.iceberg.tables import TableWriter, ids, numbered, vector_blob
from torch_dataloader_utils import scan_iceberg
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError
from torch_dataloader_utils.tables.deleted_rows import decode_framed, decode_vector


def read_ids(table: TableWriter, **options: object) -> list[int]:
    return sorted(row["id"] for row in read_rows(table.metadata, **options))


def test_several_vectors_in_one_file_each_for_its_own_data_file(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3)
    first, second = table.append(ids(0, 30), rows_per_group=8), table.append(ids(30, 60), rows_per_group=8)
    table.delete_vectors({first: [0, 7, 8, 29], second: [1]})
    gone = {0, 7, 8, 29, 31}
    assert read_ids(table, num_ranks=2) == [number for number in range(60) if number not in gone]
    assert scan_iceberg(table.metadata).num_rows == 55


def test_a_vector_replaces_position_deletes_and_older_vectors(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3)
    path = table.append(ids(0, 9))
    table.delete_positions([(path, 8)])
    table.delete_vectors({path: [1]})
    table.delete_vectors({path: [1, 2, 8]})
    assert read_ids(table) == [0, 3, 4, 5, 6, 7]


def test_a_vector_touches_no_file_that_is_newer_than_itself(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3)
    older, newer = table.append(ids(0, 4)), table.append(ids(4, 8))
    table.delete_vectors({older: [1], newer: [1]})
    (place,) = [number for number, entry in enumerate(table.live) if entry.path == newer]
    table.live[place] = replace(table.live[place], sequence_number=9)
    table.append(ids(8, 9))
    assert read_ids(table) == [0, 2, 3, 4, 5, 6, 7, 8]


def test_vectors_are_matched_by_the_manifest_not_by_the_paths_in_the_puffin_footer(tmp_path: Path) -> None:
    table = numbered(tmp_path / "moved", format_version=3, path_prefix="s3://old/place")
    path = table.append(ids(0, 5))
    table.delete_vectors({path: [0, 3]}, footer_paths={path: "s3://older/still.parquet"})
    assert read_ids(table, path_rewrites={"s3://old/place": str(table.root)}) == [1, 2, 4]


def test_polars_reads_the_same_rows(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars", reason="the oracle for deletion vectors is not installed")
    table = numbered(tmp_path, format_version=3)
    first, second = table.append(ids(0, 30), rows_per_group=8), table.append(ids(30, 60), rows_per_group=8)
    table.delete_vectors({first: [0, 7, 8, 29], second: [1, 2]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # polars would like another package to plan with
        oracle = polars.scan_iceberg(table.metadata).collect()["id"].to_list()
    assert read_ids(table) == sorted(oracle)


@given(
    rows=st.sets(st.integers(0, 200) | st.integers((1 << 32) - 3, (1 << 32) + 3) | st.integers(0, 1 << 40), max_size=40)
)
@settings(max_examples=effort(50))
def test_vectors_of_any_width_decode_to_their_positions(rows: set[int]) -> None:
    assert np.array_equal(decode_framed("v.puffin", vector_blob(sorted(rows))), sorted(rows))


@st.composite
def containers(draw: st.DrawFn) -> tuple[set[int], bool]:
    """The values of a container of a bitmap, below 2^16, and whether they are written as runs."""
    start, length = draw(st.integers(0, 60_000)), draw(st.sampled_from([1, 7, 4095, 4096, 4097, 5500]))
    values = set(range(start, start + length)) | draw(st.sets(st.integers(0, 65_535), max_size=9))
    return values, draw(st.booleans())


def serialised(parts: dict[int, tuple[set[int], bool]], *, with_runs: bool) -> bytes:
    """A 32-bit bitmap of these containers in the form that they say, whether another one were shorter or not.

    with_runs: the cookie of runs, which bitmaps without runs may have too.
    """
    bodies = []
    for values, is_run in parts.values():
        ordered = sorted(values)
        starts = [value for value in ordered if value - 1 not in values]
        ends = [value for value in ordered if value + 1 not in values]
        if with_runs and is_run:
            runs = [number for start, end in zip(starts, ends, strict=True) for number in (start, end - start)]
            bodies.append(struct.pack(f"<{1 + len(runs)}H", len(starts), *runs))
        elif len(ordered) > 4096:
            bodies.append(np.packbits(np.isin(np.arange(1 << 16), ordered), bitorder="little").tobytes())
        else:
            bodies.append(struct.pack(f"<{len(ordered)}H", *ordered))
    head = struct.pack("<II", 12346, len(parts))
    if with_runs:
        flags = np.packbits([is_run for _, is_run in parts.values()], bitorder="little").tobytes()
        head = struct.pack("<HH", 12347, len(parts) - 1) + flags
    head += b"".join(struct.pack("<HH", key, len(values) - 1) for key, (values, _) in parts.items())
    if not with_runs or len(parts) >= 4:
        first = len(head) + 4 * len(parts)
        head += b"".join(struct.pack("<I", first + sum(map(len, bodies[:number]))) for number in range(len(parts)))
    return head + b"".join(bodies)


@given(
    bitmaps=st.dictionaries(
        st.integers(0, 3),
        st.tuples(st.dictionaries(st.integers(0, 70), containers(), max_size=5), st.booleans()),
        max_size=2,
    )
)
@example(bitmaps={0: ({high: ({high, 9}, True) for high in range(4)}, True)})  # the fewest containers with offsets
@settings(max_examples=effort(20), deadline=None)
def test_every_serialisation_of_a_set_decodes_to_it(
    bitmaps: dict[int, tuple[dict[int, tuple[set[int], bool]], bool]],
) -> None:
    body, rows = struct.pack("<Q", len(bitmaps)), []
    for key, (found, with_runs) in sorted(bitmaps.items()):
        parts = dict(sorted(found.items()))
        # The cookie of runs cannot say that there is no container.
        body += struct.pack("<I", key) + serialised(parts, with_runs=with_runs and bool(parts))
        rows += [(key << 32) + (high << 16) + low for high, (values, _) in parts.items() for low in sorted(values)]
    assert np.array_equal(decode_vector("v", b"\xd1\xd3\x39\x64" + body), rows)


@given(
    rows=st.sets(st.integers(0, 1 << 20) | st.integers(0, 1 << 36), max_size=60),
    runs=st.lists(st.tuples(st.integers(0, 1 << 34), st.integers(0, 70_000)), max_size=3),
    is_optimised=st.booleans(),
)
@settings(max_examples=effort(50), deadline=None)
def test_what_pyroaring_writes_decodes_to_it(rows: set[int], runs: list[tuple[int, int]], is_optimised: bool) -> None:
    bitmap = BitMap64(rows)
    for start, length in runs:
        bitmap.add_range(start, start + length)
    if is_optimised:
        bitmap.run_optimize()
    found = decode_vector("v", b"\xd1\xd3\x39\x64" + bitmap.serialize())
    assert np.array_equal(found, np.array(bitmap, dtype=np.int64))


@pytest.mark.parametrize("offset", range(0, len(vector_blob([1, 5])), 3))
def test_a_flipped_bit_anywhere_is_noticed(offset: int) -> None:
    blob = bytearray(vector_blob([1, 5]))
    blob[offset] ^= 4
    with pytest.raises(CorruptFileError):
        decode_framed("v.puffin", bytes(blob))


@pytest.mark.parametrize(
    "body", [b"", struct.pack("<Q", 5), struct.pack("<QI", 1, 0) + b"\x01\x02", struct.pack("<Q", 0) + b"xx"]
)
def test_a_vector_with_a_right_checksum_and_wrong_contents_is_noticed(body: bytes) -> None:
    body = b"\xd1\xd3\x39\x64" + body
    blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    with pytest.raises(CorruptFileError):
        decode_framed("v.puffin", blob)


def test_two_vectors_for_one_file_and_places_outside_the_puffin_file_are_errors(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3)
    path = table.append(ids(0, 5))
    table.delete_vectors({path: [0]})
    vector = table.live[-1]
    table.live.append(vector)
    table.append(ids(5, 6))
    with pytest.raises(CorruptFileError, match="second deletion vector"):
        scan_iceberg(table.metadata)
    table.live = [each for each in table.live if each is not vector]
    outside = {**vector.arguments, "content_offset": 1 << 20}
    table.live.append(type(vector)(**{**vars(vector), "arguments": outside}))
    table.append(ids(6, 7))
    with pytest.raises(CorruptFileError, match="does not lie in a file"):
        scan_iceberg(table.metadata)


def test_a_bare_vector_needs_the_option(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3)
    path = table.append(ids(0, 5))
    puffin = Path(table.delete_vectors({path: [2]}))
    content = puffin.read_bytes()
    puffin.write_bytes(b"\0\0\0\0" + content[4:])
    with pytest.raises(UnsupportedFeatureError, match="allow_bare_vectors"):
        scan_iceberg(table.metadata)
    assert read_ids(table, allow_bare_vectors=True) == [0, 1, 3, 4]
