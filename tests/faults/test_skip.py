"""on_error="skip": bad row groups are named and left out before the plan, and every rank takes the same steps."""

import gzip
import io
import logging
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from tests.faults import hostile_files
from tests.faults.hostile_files import (
    BINARY,
    I32,
    chunk,
    column,
    data_page,
    deep,
    parquet,
    row_group,
    struct_of,
    text,
    zigzag,
)
from tests.faults.s3_server import Rule, S3Server, error
from tests.faults.tables import parquet_bytes, table, upload
from tests.tables.delta.reading import read_rows as read_delta
from tests.tables.delta.tables import HandTable, add
from tests.tables.delta.tables import column as delta_column
from torch_dataloader_utils import Decoding, StructuredDataset, pack_tokens, scan_files
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import (
    ConfigError,
    CorruptFileError,
    NoDataError,
    StoreError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.formats.errors import error_unless_damage


def write(folder: Path, damaged: dict[int, list[int]]) -> None:
    """Four files of three row groups of 50 rows; the row groups in `damaged` have a byte flipped in a page."""
    for file in range(4):
        data = bytearray(parquet_bytes(table(file * 150, 150), 50, compression="none", use_dictionary=False))
        for group in damaged.get(file, []):
            row = np.int64(file * 150 + group * 50 + 20).tobytes() + np.int64(file * 150 + group * 50 + 21).tobytes()
            data[data.index(row)] ^= 1
        (folder / f"{file}.parquet").write_bytes(data)


def ranks(folder: Path, num_ranks: int, **options: Any) -> list[Any]:
    return [
        StructuredDataset.create_dataloader(
            str(folder), batch_size=16, num_workers=0, num_ranks=num_ranks, rank=rank, shuffle=True, **options
        )[0]
        for rank in range(num_ranks)
    ]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_bad_row_groups_are_left_out_with_equal_steps(
    tmp_path: Path, num_ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {1: [0, 2], 3: [1]})
    with pytest.raises(CorruptFileError, match="row group"):
        [list(loader) for loader in ranks(tmp_path, num_ranks)]
    with pytest.warns(
        UserWarning, match=r"left out 3 of 12 row groups with 150 rows; .*1\.parquet row group 0: Corrupt"
    ):
        loaders = ranks(tmp_path, num_ranks, on_error="skip")
    left_out = {row for start in (150, 250, 500) for row in range(start, start + 50)}
    batches = [list(loader) for loader in loaders]
    assert len({len(each) for each in batches}) == 1
    rows = [row for each in batches for batch in each for row in batch["row"].tolist()]
    assert sorted(rows) == sorted(set(range(600)) - left_out)
    assert "left out 3 of 12" in loaders[0].plan.explain()
    named = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("1.parquet row group 0" in message for message in named) == num_ranks


def test_a_state_is_bound_to_what_was_left_out(tmp_path: Path) -> None:
    write(tmp_path, {1: [0]})
    with pytest.warns(UserWarning, match="left out 1"):
        (loader,) = ranks(tmp_path, 1, on_error="skip")
    batches = iter(loader)
    seen = [row for _ in range(5) for row in next(batches)["row"].tolist()]
    with pytest.warns(UserWarning, match="left out 1"):
        (again,) = ranks(tmp_path, 1, on_error="skip")
    again.load_state_dict(loader.state_dict())
    seen += [row for batch in again for row in batch["row"].tolist()]
    assert sorted(seen) == [*range(150), *range(200, 600)]


def test_good_data_is_not_touched(tmp_path: Path) -> None:
    write(tmp_path, {})
    (skipping,) = ranks(tmp_path, 1, on_error="skip")
    (raising,) = ranks(tmp_path, 1)
    assert skipping.state_dict() == raising.state_dict()


def test_nothing_left_is_an_error_and_so_is_another_word(tmp_path: Path) -> None:
    write(tmp_path, {file: [0, 1, 2] for file in range(4)})
    with pytest.raises(NoDataError, match="not one of 12 row groups"):
        ranks(tmp_path, 1, on_error="skip")
    with pytest.raises(ConfigError, match="on_error='ignore'"):
        ranks(tmp_path, 1, on_error="ignore")


def test_storage_that_fails_is_not_bad_data(server: S3Server, access: StoreAccess) -> None:
    upload(server)
    server.rules.append(Rule(error(403, "AccessDenied"), key="data/1", first=1, count=None))
    with pytest.raises(StoreError, match="AccessDenied"):
        StructuredDataset.create_dataloader("s3://bucket/data", storage_options=access, on_error="skip")


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("damage", ["cut", "footer", "empty-head", "lying-counts"])
def test_files_whose_footer_does_not_decode_are_left_out_with_equal_steps(
    tmp_path: Path, num_ranks: int, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {3: [1]})
    for name in ("0.parquet", "2.parquet"):  # the first one would have given the schema
        path = tmp_path / name
        path.write_bytes(damaged(path.read_bytes(), damage))
    with pytest.raises(CorruptFileError, match=r"0\.parquet"):
        ranks(tmp_path, 1)
    with pytest.warns(UserWarning, match="left out") as warned:
        loaders = ranks(tmp_path, num_ranks, on_error="skip")
    assert {each.filename for each in warned} == {__file__}
    texts = [str(each.message) for each in warned]
    assert any(
        "left out 2 of 4 files with uncounted rows" in text and "0.parquet: CorruptFileError" in text for text in texts
    )
    assert any("left out 1 of 6 row groups with 50 rows" in text for text in texts)
    batches = [list(loader) for loader in loaders]
    assert len({len(each) for each in batches}) == 1
    rows = [row for each in batches for batch in each for row in batch["row"].tolist()]
    assert sorted(rows) == [*range(150, 300), *range(450, 500), *range(550, 600)]
    assert "left out 2 of 4 files" in loaders[0].plan.explain()
    assert any("2.parquet" in record.message for record in caplog.records if record.levelno == logging.WARNING)


def damaged(data: bytes, how: str) -> bytes:
    """A Parquet file whose metadata cannot be used."""
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    match how:
        case "cut":
            return data[: len(data) // 2]
        case "footer":
            return data[: -footer_bytes - 8] + bytes(255 - byte for byte in data[-footer_bytes - 8 : -8]) + data[-8:]
        case "empty-head":
            return b"not parquet at all"
        case _:
            return data[:-8] + (len(data) * 2).to_bytes(4, "little") + data[-4:]


def test_a_directory_of_damaged_files_alone_is_no_data(tmp_path: Path) -> None:
    for file in range(3):
        (tmp_path / f"{file}.parquet").write_bytes(b"no parquet")
    with pytest.raises(NoDataError, match=r"not one of 3 files can be read.*0\.parquet"):
        ranks(tmp_path, 1, on_error="skip")


@pytest.mark.processes
def test_a_pool_of_processes_leaves_out_the_same_files(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "2.parquet").write_bytes(b"no parquet here")
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.warns(UserWarning, match="left out 1 of 4 files"),
    ):
        inventory = scan_files(tmp_path, executor=pool, on_error="skip")
    assert inventory.num_rows == 450
    with pytest.raises(ConfigError, match="on_error='ignore'"):
        scan_files(tmp_path, on_error="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_packs_leave_out_bad_row_groups_and_files_with_equal_steps(tmp_path: Path, num_ranks: int) -> None:
    for file in range(3):
        tokens = [[file * 1000 + row] * 4 for row in range(60)]
        sink = io.BytesIO()
        pq.write_table(
            pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32()))}),
            sink,
            row_group_size=20,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )
        data = bytearray(sink.getvalue())
        if file == 1:
            data[data.index(np.int32([1025] * 4).tobytes())] ^= 1  # row group 1
        (tmp_path / f"{file}.parquet").write_bytes(data if file != 2 else data[:-20])
    packing = pack_tokens("tokens", 7)
    with pytest.warns(UserWarning, match="left out 1 of") as warned:
        loaders = ranks(tmp_path, num_ranks, on_error="skip", pack=packing)
    assert any("left out 1 of 6 row groups with 20 rows" in str(each.message) for each in warned)
    batches = [list(loader) for loader in loaders]
    assert len({len(each) for each in batches}) == 1
    seen = {int(token) for each in batches for batch in each for token in np.unique(batch["tokens"])}
    assert seen - {0} == {*range(1, 60), *range(1000, 1020), *range(1040, 1060)}


def of_numbers(encoding: int = 0, codec: int = 0) -> bytes:
    """A whole file of x = 1, 2, 3, whose page says that it has this encoding or codec."""
    page = data_page(struct.pack("<3q", 1, 2, 3), 3, encoding=encoding)
    chunks = [chunk(["x"], values=3, uncompressed=len(page), compressed=len(page), codec=codec)]
    return parquet([hostile_files.group("root", 1), column("x")], [row_group(chunks, 3)], 3, page)


def node(name: str, repetition: int, *facts: tuple[int, int]) -> bytes:
    """A node of a schema; facts: numbers of parquet.thrift's SchemaElement, such as (1, type), (6, annotation)."""
    known = [(number, I32, zigzag(value)) for number, value in facts]
    return struct_of(*sorted([*known, (3, I32, zigzag(repetition)), (4, BINARY, text(name))]))


MAP_OF_NULLABLE_KEYS = [
    node("m", 0, (5, 1), (6, 1)),
    node("key_value", 2, (5, 2)),
    node("key", 1, (1, 2)),
    node("value", 1, (1, 2)),
]
WHOLE = {
    "a new encoding": of_numbers(encoding=10),
    "an encoding of other types": of_numbers(encoding=6),
    "LZO": of_numbers(codec=3),
    "a new codec": of_numbers(codec=9),
    "decimals of 77 digits": parquet(
        [hostile_files.group("root", 1), node("d", 0, (1, 7), (2, 33), (6, 5), (7, 0), (8, 77))], [], 0
    ),
    "nullable map keys": parquet([hostile_files.group("root", 1), *MAP_OF_NULLABLE_KEYS], [], 0),
    "a deep schema": deep(200),
    "an encrypted footer": b"PAR1" + bytes(99) + (50).to_bytes(4, "little") + b"PARE",
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_what_is_not_supported_is_not_left_out(tmp_path: Path, name: str, is_compiled: bool) -> None:
    pq.write_table(pa.table({"x": [4]}), tmp_path / "0.parquet")
    (tmp_path / "1.parquet").write_bytes(WHOLE[name])
    for on_error in ("raise", "skip"):
        with pytest.raises(UnsupportedFeatureError, match=r"1\.parquet"):
            list(ranks(tmp_path, 1, on_error=on_error, decoding=Decoding(compiled=is_compiled))[0])


def test_the_column_that_is_not_supported_is_named_with_the_way_round(tmp_path: Path) -> None:
    page = data_page(struct.pack("<3q", 1, 2, 3), 3, encoding=10)
    plain = data_page(struct.pack("<3q", 1, 2, 3), 3)
    chunks = [
        chunk(["x"], values=3, uncompressed=len(page), compressed=len(page)),
        chunk(["y"], values=3, uncompressed=len(plain), compressed=len(plain), offset=4 + len(page)),
    ]
    schema = [hostile_files.group("root", 2), column("x"), column("y")]
    (tmp_path / "0.parquet").write_bytes(parquet(schema, [row_group(chunks, 3)], 3, page + plain))
    with pytest.raises(UnsupportedFeatureError, match=r"The column is x: read others with columns="):
        ranks(tmp_path, 1, on_error="skip")
    (loader,) = ranks(tmp_path, 1, on_error="skip", columns=["y"])
    assert sorted(row for batch in loader for row in batch["y"].tolist()) == [1, 2, 3]


def test_packs_and_tables_do_not_leave_out_what_is_not_supported(tmp_path: Path) -> None:
    tokens = pa.table({"tokens": pa.array([[1, 2]], pa.list_(pa.int32()))})
    (tmp_path / "packs").mkdir()
    pq.write_table(tokens, tmp_path / "packs" / "0.parquet")
    (tmp_path / "packs" / "1.parquet").write_bytes(WHOLE["nullable map keys"])
    with pytest.raises(UnsupportedFeatureError, match="Map keys"):
        ranks(tmp_path / "packs", 1, on_error="skip", pack=pack_tokens("tokens", 4))
    delta = HandTable(tmp_path / "delta")
    files = [delta.file(pa.table({"x": [1]})), delta.file(pa.table({"x": [2]}))]
    (delta.root / files[1]).write_bytes(WHOLE["a new encoding"])
    delta.create([delta_column("x")], *map(add, files))
    with pytest.raises(UnsupportedFeatureError, match=r"Unknown encoding.*The column is x"):
        read_delta(delta.root, on_error="skip")


def write_compressed_csv(rows: pa.Table, path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        pa_csv.write_csv(rows, file)


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda rows, path: pq.write_table(rows, path, use_dictionary=False, compression="zstd"),
    "orc": lambda rows, path: pa_orc.write_table(rows, path, compression="zstd"),
    "arrow": lambda rows, path: feather.write_feather(rows, path, "lz4"),
    "csv": write_compressed_csv,
}


# Prints for each format what a process with little room says: an error, or the number of rows.
IN_LITTLE_MEMORY = """
import os, resource, sys
import pyarrow as pa
from torch_dataloader_utils import Decoding, StructuredDataset

pa.set_memory_pool(pa.system_memory_pool())  # others keep memory that they had
for name in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (30 << 20), resource.RLIM_INFINITY))
        try:
            options = {"num_workers": 0, "output_format": "arrow", "decoding": Decoding(threads=1)}
            place = f"{sys.argv[1]}/{name}"
            loader, _ = StructuredDataset.create_dataloader(place, format=name, on_error="skip", **options)
            said = sum(batch.num_rows for batch in loader)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        print(name, said, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.processes
def test_a_host_that_lacks_memory_leaves_nothing_out(tmp_path: Path) -> None:
    rows = pa.table({"row": np.arange(40_000), "text": pa.array(["x" * 1000] * 40_000)})
    for name, write in WRITERS.items():
        (tmp_path / name).mkdir()
        ending = "csv.gz" if name == "csv" else name
        write(rows.slice(0, 100), tmp_path / name / f"0.{ending}")
        write(rows, tmp_path / name / f"1.{ending}")
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_LITTLE_MEMORY, str(tmp_path), *WRITERS],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    answers = child.stdout.splitlines()
    assert len(answers) == len(WRITERS), child.stderr
    # What Python raises for a thread that cannot be started is a RuntimeError.
    memory = r"\w+ (UnsupportedFeatureError: .* needs more memory than there is|\w*MemoryError|RuntimeError)"
    assert all(re.match(memory, answer) for answer in answers), answers


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), UnsupportedFeatureError),
        (pa.ArrowMemoryError("malloc of size 8 failed"), UnsupportedFeatureError),
        (OSError("std::bad_alloc"), UnsupportedFeatureError),
        (OSError("ZSTD decompression failed: Allocation error : not enough memory"), UnsupportedFeatureError),
        (
            pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
            UnsupportedFeatureError,
        ),
        (OSError("ZSTD decompress failed: Frame requires too much memory for decoding"), UnsupportedFeatureError),
        (pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes"), UnsupportedFeatureError),
        (pa.ArrowNotImplementedError("Unknown compression codec 6"), UnsupportedFeatureError),
        (pa.ArrowInvalid("Unrecognized type: 27"), UnsupportedFeatureError),
        (PermissionError(13, "Permission denied"), StoreError),
        (OSError(5, "Input/output error", "/data/out of memory"), StoreError),
        (OSError(12, "Cannot allocate memory"), UnsupportedFeatureError),
        (pa.ArrowInvalid("In CSV column #0: CSV conversion error to int64: invalid value 'not supported'"), None),
        (OSError(5, "Input/output error"), StoreError),
        (OSError("Unexpected end of stream"), None),
        (OSError("Allocation size too large (corrupt file?)"), None),
        (OSError("ZSTD decompression failed: Unsupported frame parameter"), None),
        (OSError("GZipCodec failed: unknown compression method"), None),
        (OSError("zlib inflate failed: unknown compression method"), None),
        (pa.ArrowInvalid("CSV parse error: Expected 1 columns, got 2: out of memory,not supported"), None),
        (pa.ArrowInvalid("Column 0 named unsupported expected length 3 but got length 2"), None),
        (pa.ArrowInvalid("Decimal precision out of range [1, 76]: -3"), None),
        (ValueError("'out of memory' is not a number"), None),
    ],
    ids=str,
)
def test_errors_are_told_from_damage_by_what_they_say(error: Exception, kind: type[Exception] | None) -> None:
    found = error_unless_damage(error, "a.parquet", "its text", str)
    assert found is None if kind is None else isinstance(found, kind)
