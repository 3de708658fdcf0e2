# Made of the options by scripts/write_options.py. Do not edit.

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow.compute as pc

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.option_values import Decoding, Holdout
from torch_dataloader_utils._store import Credentials, RemoteOptions
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.files import Files
from torch_dataloader_utils.datasets.numbered_rows import NumberedRows
from torch_dataloader_utils.discover.hive import Hive
from torch_dataloader_utils.formats.file_scan import Missing
from torch_dataloader_utils.shape.dtypes import Dtypes
from torch_dataloader_utils.shape.encode import Encoder
from torch_dataloader_utils.shape.shapers import OutputFormat

ROWS: Door

class RowDataset(NumberedRows):
    def __init__(
        self,
        path: Files,
        format: str = "parquet",
        *,
        storage_options: Mapping[str, Any] | None = None,
        partitioning: Literal["hive", "auto"] | Hive | None = None,
        remote: RemoteOptions | None = None,
        inventory: Inventory | None = None,
        missing: Missing = "error",
        credentials: Credentials | None = None,
        allow_bare_files: bool = False,
        cache_bytes: int | str = "256MiB",
        length_column: str | None = None,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        output_format: OutputFormat = "torch",
        holdout: Holdout | None = None,
        nulls: Any = None,
        dtypes: Dtypes | None = None,
        stack: Mapping[str, Sequence[str]] | None = None,
        encode: Mapping[str, Encoder] | None = None,
        decoding: Decoding = ...,
    ) -> None: ...
