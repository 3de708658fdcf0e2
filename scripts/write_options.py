"""Writes docs/reference/options.md: the options as they are defined. A test holds the page equal to the definitions."""

import inspect
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from torch_dataloader_utils.datasets.delta import DeltaSource
from torch_dataloader_utils.datasets.files import FileSource
from torch_dataloader_utils.datasets.iceberg import IcebergSource
from torch_dataloader_utils.datasets.options import LOADER_TEXT, TableOptions

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"

TEXT = """# Options

These are the options of `StructuredDataset`, `IcebergDataset` and `DeltaDataset`, with and without `create_dataloader`.
`RowDataset`, `scan_files`, `scan_iceberg`, `scan_delta` and `plan_epoch` (where `shuffle_seed` is called `seed`) accept
those that apply to them. Pass them by keyword; only the first twenty of `create_dataloader` can be positional.
`help(StructuredDataset.create_dataloader)` shows the same texts.

## Files

{files}

## Iceberg tables

{iceberg}

## Delta tables

{delta}

## Every data set

{table}

## The loader

`create_dataloader` also accepts {loader}

## Options of several values

::: torch_dataloader_utils.TokenBatches

::: torch_dataloader_utils.Lanes

::: torch_dataloader_utils.Decoding

::: torch_dataloader_utils.RayWorkers
"""


def page() -> str:
    """The text of the page."""
    kinds = {"files": FileSource, "iceberg": IcebergSource, "delta": DeltaSource, "table": TableOptions}
    lists = {name: "\n".join(map(_line, fields(kind))) for name, kind in kinds.items()}
    return TEXT.format(**lists, loader=LOADER_TEXT)


def _line(each: "Field[Any]") -> str:
    default = "" if each.default is MISSING else f" = {each.default!r}"
    return f"- `{each.name}: {_type_text(each.type)}{default}`: {each.metadata['text']}"


def _type_text(annotation: Any) -> str:
    """The type as it is written, without the modules of its parts."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)
    return re.sub(r"Union\[(.*), (\w+)\]$", r"\1 | \2", text)


if __name__ == "__main__":
    PAGE.write_text(page())
