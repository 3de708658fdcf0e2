"""Arrow files as others write them: without the schema's length, in the first version of Feather, with run ends."""

import struct
from datetime import date
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from torch_dataloader_utils import RowDataset, StructuredDataset, scan_files
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError

NUM_ROWS = 40
TABLE = pa.table(
    {
        "row": range(NUM_ROWS),
        "text": [None if i % 5 == 0 else f"text {i % 7}" for i in range(NUM_ROWS)],
        "category": pa.array([["p", "q", None][i % 3] for i in range(NUM_ROWS)]).dictionary_encode(),
        "ids": [[i, i + 1] for i in range(NUM_ROWS)],
        "pair": [{"x": i, "y": str(i)} for i in range(NUM_ROWS)],
    }
)


def write(path: Path, table: pa.Table, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)


def without_schema_length(data: bytes) -> bytes:
    """The file as polars 2.1 writes it: its first message begins with the metadata; all else lies where it did."""
    continuation, length = struct.unpack_from("<Ii", data, 8)
    assert continuation == 0xFFFF_FFFF
    return data[:8] + data[16 : 16 + length] + bytes(8) + data[16 + length :]


def read(path: str | Path, **options: Any) -> list[dict[str, Any]]:
    settings = {"batch_size": 8, "num_workers": 0, "output_format": "dict", **options}
    loader, _ = StructuredDataset.create_dataloader(path, "arrow", **settings)
    rows = []
    for batch in loader:
        columns = batch.to_pydict() if isinstance(batch, pa.RecordBatch) else batch
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return sorted(rows, key=lambda row: row["row"])


def upload(data: bytes) -> str:
    fsspec.filesystem("memory").pipe("/test_arrow_files/a.arrow", data)
    return "memory://test_arrow_files/a.arrow"


OPTIONS: list[dict[str, Any]] = [
    {},
    {"columns": ["category", "row"]},
    {"shuffle_rows": 9},
    {"filters": pc.field("row") > 5},
    {"output_format": "arrow"},
]


def expected(table: pa.Table, options: dict[str, Any]) -> list[dict[str, Any]]:
    rows = table.filter(options["filters"]) if "filters" in options else table
    return rows.select(options.get("columns", rows.schema.names)).to_pylist()


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_schema_message_without_its_length_is_not_needed(
    tmp_path: Path, compression: str | None, options: dict[str, Any], is_remote: bool
) -> None:
    path = tmp_path / "a.arrow"
    write(path, TABLE, compression)
    path.write_bytes(without_schema_length(path.read_bytes()))
    source = upload(path.read_bytes()) if is_remote else path
    assert decode_schema(scan_files(source, "arrow").schema) == TABLE.schema
    assert read(source, **options) == expected(TABLE, options)


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("method", ["write_ipc", "sink_ipc"])
def test_files_of_polars_are_read(
    tmp_path: Path, method: str, compression: str, options: dict[str, Any], is_remote: bool
) -> None:
    polars = pytest.importorskip("polars", reason="the writer is not installed")
    frame = polars.DataFrame(
        {
            "row": range(NUM_ROWS),
            "text": TABLE["text"].to_pylist(),
            "category": polars.Series(TABLE["category"].to_pylist(), dtype=polars.Categorical),
            "enum": polars.Series([["a", "b"][i % 2] for i in range(NUM_ROWS)], dtype=polars.Enum(["a", "b"])),
            "ids": TABLE["ids"].to_pylist(),
            "pair": TABLE["pair"].to_pylist(),
            "day": [date(2024, 1, 1)] * NUM_ROWS,
        }
    )
    path = tmp_path / "a.arrow"
    getattr(frame.lazy() if method == "sink_ipc" else frame, method)(path, compression=compression)
    wanted = frame.filter(polars.col("row") > 5) if "filters" in options else frame
    source = upload(path.read_bytes()) if is_remote else path
    assert read(source, **options) == wanted.select(options.get("columns", frame.columns)).to_dicts()


def test_a_footer_that_claims_more_than_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, TABLE)
    data = path.read_bytes()
    path.write_bytes(data[:-10] + struct.pack("<i", len(data)) + data[-6:])
    with pytest.raises(CorruptFileError, match=f"the footer claims {len(data)} bytes of a file of {len(data)}"):
        scan_files(path, "arrow")


def test_the_first_version_of_feather_is_refused_with_what_to_write(tmp_path: Path) -> None:
    """Its magic bytes are enough: pyarrow will not write such files for ever."""
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(200) + b"FEA1")
    with pytest.raises(UnsupportedFeatureError, match=r"a\.feather is a Feather V1 file.*again as Feather V2"):
        scan_files(tmp_path / "a.feather", "arrow")


RUNS = pc.run_end_encode(pa.array([f"run {i // 6}" if i // 6 != 2 else None for i in range(NUM_ROWS)]))


@pytest.mark.parametrize("options", [{}, {"shuffle_rows": 5}, {"shuffle_rows": 30, "shuffle": True, "split_rows": 7}])
@pytest.mark.parametrize("output_format", ["arrow", "dict"])
def test_run_ends_are_delivered_and_shuffled_as_their_values(
    tmp_path: Path, output_format: str, options: dict[str, Any]
) -> None:
    table = pa.table({"row": range(NUM_ROWS), "runs": RUNS})
    write(tmp_path / "a.arrow", table)
    assert read(tmp_path, output_format=output_format, **options) == table.to_pylist()


def test_shuffled_run_ends_keep_their_type(tmp_path: Path) -> None:
    table = pa.table({"row": range(NUM_ROWS), "runs": RUNS})
    write(tmp_path / "a.arrow", table)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, "arrow", num_workers=0, output_format="arrow", shuffle_rows=5
    )
    assert {batch.schema.field("runs").type for batch in loader} == {RUNS.type}


@pytest.mark.parametrize("output_format", ["dict", "torch"])
def test_rows_of_run_ends_are_found_by_their_number(tmp_path: Path, output_format: str) -> None:
    table = pa.table({"row": range(NUM_ROWS), "runs": RUNS})
    write(tmp_path / "a.arrow", table)
    rows = RowDataset(tmp_path, "arrow", output_format=output_format)
    order = [30, 2, 14, 2]
    assert [row["runs"] for row in rows.__getitems__(order)] == [RUNS[place].as_py() for place in order]


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_shuffled_run_ends_inside_of_a_struct_are_refused_with_the_name_of_the_column(
    tmp_path: Path, output_format: str
) -> None:
    nested = pa.StructArray.from_arrays([RUNS], ["x"])
    table = pa.table({"row": range(NUM_ROWS), "nested": nested})
    write(tmp_path / "a.arrow", table)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, "arrow", num_workers=0, output_format=output_format, shuffle_rows=5
    )
    if output_format in ("torch", "numpy"):  # a field is a column of its own, whose runs are decoded
        found = {int(row): x for batch in loader for row, x in zip(batch["row"], batch["nested"]["x"], strict=True)}
        assert found == dict(enumerate(RUNS.to_pylist()))
        return
    with pytest.raises(UnsupportedFeatureError, match=r"column 'nested'.*another order"):
        list(loader)


@pytest.mark.slow
def test_thousands_of_columns_are_found_by_name(tmp_path: Path) -> None:
    # Each looked for in the list of all names, they took over a minute.
    table = pa.table({"row": range(10)} | {f"column {i}": pa.nulls(10, pa.int8()) for i in range(20_000)})
    write(tmp_path / "a.arrow", table)
    names = table.schema.names
    inventory = scan_files(tmp_path / "a.arrow", "arrow", columns=names)
    rows = read(tmp_path / "a.arrow", columns=names, inventory=inventory, output_format="arrow")
    assert [row["row"] for row in rows] == list(range(10))
