"""Mutated column chunks under AddressSanitizer and UndefinedBehaviorSanitizer, for a minute."""

import io
import itertools
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.formats.decoder.test_decoder import numbers

ROOT = Path(__file__).parents[3]
ENGINE = ROOT / "src" / "torch_dataloader_utils" / "_engine"
SECONDS = 60
FOOTER, LINES = 100, 101  # see fuzz.c
JSON = b"""{"a": 1, "b": {"c": [1.5e-3, null, true, "2024-01-01T12:30:00+01:00"]}, "a key of many bytes": "te\\"xt\\\\"}
{"a":9223372036854775808,"z":"2024-02-29 00:00:00Z", "":[[],{}]}

{"a": -0, "text": "one that is longer than sixteen bytes \\" \\u00e9"}"""
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "ZSTD": 6, "LZ4": 7}
STORED = {"BOOLEAN": 0, "INT32": 4, "FLOAT": 4}
ITEMS = "l.list.element"
DECIMALS = {"q": 11 | 11 << 8 | 3 << 16, "r": 12 | 11 << 8 | 3 << 16}  # see CONVERSION in module.c
ENCODINGS = {
    "dictionary": {"use_dictionary": True},
    "plain": {"use_dictionary": False},
    "split": {
        "use_dictionary": False,
        "column_encoding": dict.fromkeys(["f", "d", "q", "r", ITEMS], "BYTE_STREAM_SPLIT"),
    },
    "delta": {"use_dictionary": False, "column_encoding": dict.fromkeys(["i", "b", ITEMS], "DELTA_BINARY_PACKED")},
}


def table(nulls: bool, rng: np.random.Generator) -> pa.Table:
    mask = rng.random(300) < 0.3 if nulls else None
    columns = {
        "f": rng.standard_normal(300).astype(np.float32),
        "d": rng.integers(0, 5, 300).astype(np.float64),
        "i": rng.integers(0, 1000, 300),
        "j": np.cumsum(rng.integers(0, 9, 300)).astype(np.int32),
        "b": rng.integers(0, 5, 300).astype(np.int8),
        "h": rng.integers(0, 500, 300).astype(np.uint16),
        "o": rng.random(300) < 0.5,
    }
    arrays = {name: pa.array(values, mask=mask) for name, values in columns.items()}
    for name, digits in (("q", 12), ("r", 30)):
        arrays[name] = numbers(pa.decimal128(digits, 3), 300, 64, 0.3 if nulls else 0, rng)
    lengths = rng.choice([0, 1, 2, 70], 300) if nulls else rng.integers(1, 9, 300)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    items = numbers(pa.int32(), int(offsets[-1]), 9, 0.2 if nulls else 0, rng)
    bits = numbers(pa.bool_(), int(offsets[-1]), 1, 0.2 if nulls else 0, rng)
    empty = pa.array((lengths == 0) & (rng.random(300) < 0.5))
    for name, each in (("l", items), ("m", bits)):
        arrays[name] = pa.ListArray.from_arrays(offsets, each, mask=empty if nulls else None)
    return pa.table(arrays)


def seeds() -> bytes:
    """Column chunks as fuzz.c reads them."""
    found, rng = [], np.random.default_rng(1)
    choices = (
        [False, True],
        ["none", "snappy", "gzip", "zstd", "lz4"],
        ["1.0", "2.0"],
        [200, 100_000],
        [False, True],
        ENCODINGS,
    )
    for nulls, codec, version, page, checksums, encoding in itertools.product(*choices):
        content, file = table(nulls, rng), io.BytesIO()
        options = {"compression": codec, "data_page_version": version, "data_page_size": page, "write_batch_size": 50}
        pq.write_table(content, file, write_page_checksum=checksums, **options, **ENCODINGS[encoding])
        footer_bytes = int.from_bytes(file.getvalue()[-8:-4], "little")
        footer = file.getvalue()[-8 - footer_bytes : -8]
        found.append(struct.pack("<13q", FOOTER, *[0] * 11, len(footer)) + footer)
        for index, field in enumerate(content.schema):
            chunk = pq.read_metadata(file).row_group(0).column(index)
            start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
            pages = file.getvalue()[start : start + chunk.total_compressed_size]
            stored = STORED.get(chunk.physical_type, 8)
            if pa.types.is_decimal(field.type):
                stored = pq.read_metadata(file).schema.column(index).length
            is_list = pa.types.is_list(field.type)
            width = max(1, (field.type.value_type if is_list else field.type).bit_width // 8)
            layout = (stored, width, chunk.physical_type in ("INT32", "INT64"), 1)
            conversion = DECIMALS.get(field.name, 0)
            rest = (chunk.num_values, 0, 300, 1 << 20, checksums, 2 * is_list, conversion, len(pages))
            found.append(struct.pack("<13q", *map(int, (CODECS[chunk.compression], *layout, *rest))) + pages)
    found += [struct.pack("<13q", LINES, *[0] * 11, len(JSON)) + JSON] * (len(found) // 10)
    return b"".join(found)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_no_mutated_chunk_reads_or_writes_outside_of_its_buffers(tmp_path: Path) -> None:
    (tmp_path / "seeds").write_bytes(seeds())
    sources = [Path(__file__).with_name("fuzz.c"), *(p for p in sorted(ENGINE.glob("*.c")) if p.name != "module.c")]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    checks += ["-DLEAST_STREAMED_BYTES=1"]  # chunks of this size would not be written past the caches
    build = ["cc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *checks, f"-I{ENGINE}", *map(str, sources), "-ldl"]
    subprocess.run([*build, "-o", str(tmp_path / "fuzz")], check=True, timeout=300)
    command = [str(tmp_path / "fuzz"), str(tmp_path / "seeds"), str(SECONDS), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 10_000
