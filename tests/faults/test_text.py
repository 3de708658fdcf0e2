"""Text that is none: Parquet promises UTF-8, and nobody looks before a string is made of it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import CorruptFileError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of three rows; the second row of the second one is no UTF-8."""
    offsets = pa.py_buffer(b"".join(end.to_bytes(4, "little") for end in range(4)))
    for name, text in [("good", b"abc"), ("torn", b"a\xffb")]:
        column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(text)])
        pq.write_table(pa.table({"name": column, "x": [1, 2, 3]}), tmp_path / f"{name}.parquet")
    return tmp_path


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("output_format", ["torch", "numpy", "dict"])
def test_text_that_is_no_utf8_is_an_error_that_names_the_row_group(
    folder: Path, num_workers: int, output_format: str
) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), batch_size=3, num_workers=num_workers, output_format=output_format
    )
    with pytest.raises(CorruptFileError, match=r"torn\.parquet row group 0.* not UTF-8 .*0xff"):
        list(loader)


def test_arrow_gives_such_bytes_as_they_are(folder: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(str(folder), batch_size=3, num_workers=0, output_format="arrow")
    column = list(loader)[1].column("name")
    assert column.cast(pa.binary()).to_pylist() == [b"a", b"\xff", b"b"]
