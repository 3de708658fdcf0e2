"""Text that is none: Parquet promises UTF-8, and nobody looks before a string is made of it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Lanes, StructuredDataset
from torch_dataloader_utils.errors import CorruptFileError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of three rows; the second row of the second one is no UTF-8."""
    offsets = pa.py_buffer(b"".join(end.to_bytes(4, "little") for end in range(4)))
    for name, text in [("good", b"abc"), ("torn", b"a\xffb")]:
        column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(text)])
        pq.write_table(pa.table({"name": column, "x": [1, 2, 3]}), tmp_path / f"{name}.parquet")
    return tmp_path


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("output_format", ["torch", "numpy", "dict"])
def test_text_that_is_no_utf8_is_an_error_that_names_the_row_group(
    folder: Path, num_workers: int, output_format: str
) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), batch_size=3, num_workers=num_workers, output_format=output_format
    )
    with pytest.raises(CorruptFileError, match=r"torn\.parquet row group 0: column 'name' holds text .* not UTF-8"):
        list(loader)


def nested(bad: pa.Array) -> list[pa.Array]:
    """The text in other columns: lists, structs, maps, categories, long text."""
    ends = pa.array(range(len(bad) + 1), pa.int32())
    numbers = pa.array(range(len(bad)), pa.int32())
    return [
        pa.ListArray.from_arrays(ends, bad),
        pa.StructArray.from_arrays([bad], ["text"]),
        pa.MapArray.from_arrays(ends, numbers, bad),
        pa.DictionaryArray.from_arrays(numbers, bad),
        bad.cast(pa.large_string()),
    ]


@pytest.mark.parametrize("kind", range(5))
def test_text_inside_of_values_is_looked_at_too(tmp_path: Path, kind: int) -> None:
    ends = pa.py_buffer(b"".join(end.to_bytes(4, "little") for end in range(4)))
    column = nested(pa.Array.from_buffers(pa.string(), 3, [None, ends, pa.py_buffer(b"a\xffb")]))[kind]
    pq.write_table(pa.table({"name": column}), tmp_path / "torn.parquet")
    for output_format in ("torch", "numpy", "dict"):
        loader, _ = StructuredDataset.create_dataloader(str(tmp_path), num_workers=0, output_format=output_format)
        says = r"torn\.parquet row group 0: column 'name(\.text)?' holds text .* not UTF-8"
        with pytest.raises(CorruptFileError, match=says):
            list(loader)


def test_values_beside_text_may_be_what_they_like(tmp_path: Path) -> None:
    # More digits than the type says: nobody needs them to make a number of it.
    digits = pa.py_buffer((12345).to_bytes(16, "little") * 2)
    numbers = pa.Array.from_buffers(pa.decimal128(3, 1), 2, [None, digits])
    pq.write_table(
        pa.table({"both": pa.StructArray.from_arrays([pa.array(["x", "y"]), numbers], ["text", "number"])}),
        tmp_path / "a.parquet",
    )
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), num_workers=0)
    assert [text for batch in loader for text in batch["both"]["text"]] == ["x", "y"]


ORDERS = [
    {},
    {"shuffle": True, "shuffle_rows": 7},
    {"lanes": Lanes(2, rows=2)},
    {"shuffle": True, "lanes": 2, "shuffle_rows": 7},
]


@pytest.mark.processes
@pytest.mark.cases(3)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_row_group_is_named_whatever_the_order_of_rows(folder: Path, order: dict, num_workers: int) -> None:
    # Six good files, which are read before, after and beside the torn one.
    for number in range(5):
        (folder / f"{'a' if number % 2 else 'z'}{number}.parquet").write_bytes((folder / "good.parquet").read_bytes())
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), batch_size=4, num_workers=num_workers, output_format="dict", **order
    )
    with pytest.raises(CorruptFileError, match=r"torn\.parquet row group 0: column 'name'") as caught:
        list(loader)
    assert str(caught.value).count("row group") == 1


def test_arrow_gives_such_bytes_as_they_are(folder: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(str(folder), batch_size=3, num_workers=0, output_format="arrow")
    column = list(loader)[1].column("name")
    assert column.cast(pa.binary()).to_pylist() == [b"a", b"\xff", b"b"]
