# Made of the options by scripts/write_options.py. Do not edit.

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.options import Shuffle
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._store import Credentials, RemoteOptions
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.files import Files
from torch_dataloader_utils.datasets.keywords import LoaderKeywords, TableKeywords
from torch_dataloader_utils.discover.hive import Hive
from torch_dataloader_utils.formats.file_scan import Missing
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.shape.tensor_batch import TensorBatch
from torch_dataloader_utils.stream.loader import TableDataLoader

T = TypeVar("T")

OPEN: Door

class _Options(TableKeywords, LoaderKeywords, total=False):
    format: str
    storage_options: Mapping[str, Any] | None
    partitioning: Literal["hive", "auto"] | Hive | None
    remote: RemoteOptions | None
    inventory: Inventory | None
    missing: Missing
    credentials: Credentials | None
    allow_bare_files: bool
    catalog_config: Mapping[str, Any] | None
    snapshot_id: int | None
    scan_filter: BooleanExpression | str | None
    as_of_timestamp: int | datetime | None
    branch: str | None
    tag: str | None
    from_snapshot_id: int | None
    allow_rewrites: bool
    path_rewrites: Mapping[str, str] | None
    allowed_roots: Sequence[str] | None
    allow_empty: bool
    allow_bare_vectors: bool
    version: int | None
    timestamp: int | datetime | None
    from_version: int | None
    columns: Sequence[str] | None
    filters: pc.Expression | None
    batch_size: int
    shuffle: Shuffle
    shuffle_seed: int
    num_workers: int | None
    split_bytes: int | str | None
    split_rows: int | None
    split_strategy: SplitStrategy | str | None

@overload
def open_loader(
    path: Files,
    *,
    output_format: OutputFormat = "torch",
    transform: Callable[[Any], Any] | None = None,
    collate_fn: Callable[[Any], T],
    **options: Unpack[_Options],
) -> TableDataLoader[T]: ...
@overload
def open_loader(
    path: Files,
    *,
    output_format: OutputFormat = "torch",
    transform: Callable[[Any], T],
    collate_fn: None = None,
    **options: Unpack[_Options],
) -> TableDataLoader[T]: ...
@overload
def open_loader(
    path: Files,
    *,
    output_format: Literal["torch"] = "torch",
    transform: None = None,
    collate_fn: None = None,
    **options: Unpack[_Options],
) -> TableDataLoader[TensorBatch]: ...
@overload
def open_loader(
    path: Files,
    *,
    output_format: Literal["numpy"],
    transform: None = None,
    collate_fn: None = None,
    **options: Unpack[_Options],
) -> TableDataLoader[dict[str, npt.NDArray[Any]]]: ...
@overload
def open_loader(
    path: Files,
    *,
    output_format: Literal["arrow"],
    transform: None = None,
    collate_fn: None = None,
    **options: Unpack[_Options],
) -> TableDataLoader[pa.RecordBatch]: ...
@overload
def open_loader(
    path: Files,
    *,
    output_format: Literal["dict"],
    transform: None = None,
    collate_fn: None = None,
    **options: Unpack[_Options],
) -> TableDataLoader[dict[str, list[Any]]]: ...
