"""The .idx format byte for byte; anything cut, flipped or impossible is refused."""

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.megatron.corpora.corpora import EXAMPLE, write_corpus
from torch_dataloader_utils.errors import ConfigTypeError, CorruptFileError, SchemaError
from torch_dataloader_utils.megatron.corpora import IndexedDataset, select_dtype
from torch_dataloader_utils.megatron.corpora.index_format import DTYPES, HEADER_BYTES, decode_header, dtype_code


def test_example_is_written_byte_for_byte(example: str) -> None:
    index = Path(f"{example}.idx").read_bytes()
    assert len(index) == 94
    assert index[:34].hex() == "4d4d494449445800000100000000000000080300000000000000" + "0300000000000000"
    assert np.frombuffer(index, "<i4", 3, 34).tolist() == [3, 2, 4]
    assert np.frombuffer(index, "<i8", 3, 46).tolist() == [0, 6, 10]
    assert np.frombuffer(index, "<i8", 3, 70).tolist() == [0, 2, 3]
    assert Path(f"{example}.bin").read_bytes().hex() == "010002000300040005000900080007000600"


def test_codes_of_all_dtypes() -> None:
    names = {code: dtype.name for code, dtype in DTYPES.items()}
    assert names == {
        1: "uint8",
        2: "int8",
        3: "int16",
        4: "int32",
        5: "int64",
        6: "float64",
        7: "float32",
        8: "uint16",
    }
    assert all(dtype_code(dtype) == code for code, dtype in DTYPES.items())
    with pytest.raises(ConfigTypeError, match="uint64"):
        dtype_code(np.uint64)


@pytest.mark.parametrize(
    ("vocabulary_size", "name"),
    [(65_499, "uint16"), (65_500, "int32"), (65_536, "int32"), (2**31, "int32"), (2**31 + 1, "int64"), (None, "int32")],
)
def test_dtype_follows_vocabulary(vocabulary_size: int | None, name: str) -> None:
    assert select_dtype(vocabulary_size).name == name


@pytest.mark.parametrize("suffix", ["idx", "bin"])
@pytest.mark.parametrize("mmap", [True, False])
def test_truncation_at_every_byte_is_an_error(example: str, suffix: str, mmap: bool) -> None:
    path = Path(f"{example}.{suffix}")
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError):
            IndexedDataset(example, mmap=mmap)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CorruptFileError):
        IndexedDataset(example, mmap=mmap)


def test_truncation_of_modes_at_every_byte_is_an_error(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "modal", EXAMPLE, modes=[1, 0, 2])
    path = Path(f"{prefix}.idx")
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        # Cut exactly before the modes it is a whole file without modes, and no longer what was asked for.
        with pytest.raises((CorruptFileError, SchemaError)):
            IndexedDataset(prefix, multimodal=True)


@pytest.mark.slow
def test_every_flipped_bit_of_header_lengths_and_pointers_is_noticed(example: str) -> None:
    path = Path(f"{example}.idx")
    whole = path.read_bytes()
    for position, bit in itertools.product(range(70), range(8)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
        with pytest.raises(CorruptFileError):
            IndexedDataset(example)


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 10**12])
def test_impossible_counts_are_refused_before_anything_is_allocated(example: str, count: int) -> None:
    path = Path(f"{example}.idx")
    whole = bytearray(path.read_bytes())
    whole[18:26] = struct.pack("<Q", count)
    path.write_bytes(whole)
    with pytest.raises(CorruptFileError, match=str(count)):
        IndexedDataset(example)


def test_another_version_and_magic_are_refused(example: str) -> None:
    whole = Path(f"{example}.idx").read_bytes()
    with pytest.raises(CorruptFileError, match="version 2"):
        decode_header(whole[:9] + struct.pack("<Q", 2) + whole[17:], path="x.idx")
    with pytest.raises(CorruptFileError, match="not a token index"):
        decode_header(b"TNTIDX\0\0\0" + whole[9:], path="x.idx")


def _corrupt(path: Path, offset: int, dtype: str, values: list[int]) -> None:
    content = bytearray(path.read_bytes())
    raw = np.array(values, dtype=dtype).tobytes()
    content[offset : offset + len(raw)] = raw
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("offset", "dtype", "values", "message"),
    [
        (34, "<i4", [-3, 2, 4], "sequence 0 has the length -3"),
        (34, "<i4", [3, 3, 4], "sequence 2 should begin at byte 12"),
        (46, "<i8", [0, 6, 11], "sequence 2 should begin at byte 10, its pointer says 11"),
        (46, "<i8", [-2, 6, 10], "sequence 0 should begin"),
        (70, "<i8", [1, 2, 3], "from 1 to 3, not from 0 to 3"),
        (70, "<i8", [0, 2, 2], "from 0 to 2"),
        (70, "<i8", [0, 5, 3], "boundary 2 goes back"),
    ],
)
def test_wrong_arrays_are_named(example: str, offset: int, dtype: str, values: list[int], message: str) -> None:
    _corrupt(Path(f"{example}.idx"), offset, dtype, values)
    with pytest.raises(CorruptFileError, match=message):
        IndexedDataset(example)


def test_header_only_trust_still_checks_each_access(example: str) -> None:
    _corrupt(Path(f"{example}.idx"), 46, "<i8", [0, 6, 4_000])
    dataset = IndexedDataset(example, trust_index=True)
    assert dataset[0].tolist() == [1, 2, 3]
    with pytest.raises(CorruptFileError, match="4000"):
        dataset[2]


@settings(max_examples=effort(60), deadline=None)
@given(junk=st.binary(max_size=200))
def test_junk_is_never_an_index(junk: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_header(junk[:HEADER_BYTES], path="junk.idx")
