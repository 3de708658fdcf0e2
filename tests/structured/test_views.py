"""Arrow files with views of text and bytes, as polars writes them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from torch_dataloader_utils import StructuredDataset

VIEW = pa.string_view()
COLUMNS = {
    "text": pa.array(["a" * 20, "b", None, "d"], VIEW),
    "bytes": pa.array([b"a", b"b" * 30, None, b"d"], pa.binary_view()),
    "list": pa.array([["a", None], [], None, ["d"]], pa.large_list(VIEW)),
    "pair": pa.array([["a", "b"], None, ["e", "f"], ["g", None]], pa.list_(VIEW, 2)),
    "struct": pa.array(
        [{"x": "a", "y": ["b"]}, None, {"x": None}, {}], pa.struct([("x", VIEW), ("y", pa.list_(VIEW))])
    ),
    "map": pa.array([[("k", "v")], None, [], [("k", None)]], pa.map_(pa.string(), VIEW)),
    "category": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.uint32()), pa.array(["p", "q"], VIEW)),
}


@pytest.mark.parametrize("options", [{}, {"filters": pc.field("row") != 1}, {"shuffle_rows": 3}, {"batch_size": 3}])
@pytest.mark.parametrize("output_format", ["torch", "numpy", "dict", "arrow"])
@pytest.mark.parametrize("column", list(COLUMNS))
def test_views_are_delivered_filtered_and_shuffled_as_plain_values(
    tmp_path: Path, column: str, output_format: str, options: dict[str, Any]
) -> None:
    table = pa.table({"row": range(4), "c": COLUMNS[column]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    loader, _ = StructuredDataset.create_dataloader(tmp_path, format="arrow", output_format=output_format, **options)
    seen = {}
    for batch in loader:
        rows, values = batch["row"], batch["c"]
        if isinstance(values, dict):  # a struct's columns
            values = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
        seen.update(
            zip(
                map(int, rows.to_pylist() if output_format == "arrow" else rows),
                values.to_pylist() if output_format == "arrow" else values,
                strict=True,
            )
        )
    wanted = table.column("c").to_pylist()
    if column == "struct" and output_format in ("torch", "numpy"):  # a null struct has null fields
        wanted = [row or {"x": None, "y": None} for row in wanted]
    assert seen == {row: wanted[row] for row in range(4) if row != 1 or "filters" not in options}


def test_a_filter_may_name_a_view(tmp_path: Path) -> None:
    table = pa.table({"row": range(4), "c": COLUMNS["text"]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    loader, _ = StructuredDataset.create_dataloader(tmp_path, format="arrow", filters=pc.field("c") == "d")
    assert [row for batch in loader for row in batch["row"].tolist()] == [3]
