# Made of the options by scripts/write_options.py. Do not edit.

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.option_values import FileIdentity
from torch_dataloader_utils._core.options import Shuffle
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._store import Credentials, RemoteOptions
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.keywords import LoaderKeywords, TableKeywords
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.shape.tensor_batch import TensorBatch
from torch_dataloader_utils.stream.loader import TableDataLoader

T = TypeVar("T")

SCAN: Door
DATASET: Door
LOADER: Door

def scan_iceberg(
    table: str | os.PathLike[str],
    catalog_config: Mapping[str, Any] | None = None,
    *,
    on_progress: OnProgress | None = None,
    snapshot_id: int | None = None,
    scan_filter: BooleanExpression | str | None = None,
    as_of_timestamp: int | datetime | None = None,
    branch: str | None = None,
    tag: str | None = None,
    from_snapshot_id: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    remote: RemoteOptions | None = None,
    allow_rewrites: bool = False,
    path_rewrites: Mapping[str, str] | None = None,
    allowed_roots: Sequence[str] | None = None,
    credentials: Credentials | None = None,
    allow_empty: bool = False,
    allow_bare_vectors: bool = False,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
    count_rows: Literal["auto"] | bool = "auto",
    on_error: OnError = "raise",
    identity: FileIdentity = "strict",
) -> Inventory: ...

class _Options(TableKeywords, LoaderKeywords, total=False):
    as_of_timestamp: int | datetime | None
    branch: str | None
    tag: str | None
    from_snapshot_id: int | None
    storage_options: Mapping[str, Any] | None
    remote: RemoteOptions | None
    inventory: Inventory | None
    allow_rewrites: bool
    path_rewrites: Mapping[str, str] | None
    allowed_roots: Sequence[str] | None
    credentials: Credentials | None
    allow_empty: bool
    allow_bare_vectors: bool

class IcebergDataset(BuiltDataset):
    def __init__(
        self,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        *,
        snapshot_id: int | None = None,
        scan_filter: BooleanExpression | str | None = None,
        as_of_timestamp: int | datetime | None = None,
        branch: str | None = None,
        tag: str | None = None,
        from_snapshot_id: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
        inventory: Inventory | None = None,
        allow_rewrites: bool = False,
        path_rewrites: Mapping[str, str] | None = None,
        allowed_roots: Sequence[str] | None = None,
        credentials: Credentials | None = None,
        allow_empty: bool = False,
        allow_bare_vectors: bool = False,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        batch_size: int = 1024,
        shuffle: Shuffle = False,
        shuffle_seed: int = 42,
        output_format: OutputFormat = "torch",
        transform: Callable[[Any], Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        **options: Unpack[TableKeywords],
    ) -> None: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: BooleanExpression | str | None = None,
        snapshot_id: int | None = None,
        shuffle: Shuffle = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        *,
        output_format: OutputFormat = "torch",
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[Any], T],
        **options: Unpack[_Options],
    ) -> tuple[TableDataLoader[T], IcebergDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: BooleanExpression | str | None = None,
        snapshot_id: int | None = None,
        shuffle: Shuffle = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        *,
        output_format: OutputFormat = "torch",
        transform: Callable[[Any], T],
        collate_fn: None = None,
        **options: Unpack[_Options],
    ) -> tuple[TableDataLoader[T], IcebergDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: BooleanExpression | str | None = None,
        snapshot_id: int | None = None,
        shuffle: Shuffle = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        *,
        output_format: Literal["torch"] = "torch",
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[_Options],
    ) -> tuple[TableDataLoader[TensorBatch], IcebergDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: BooleanExpression | str | None = None,
        snapshot_id: int | None = None,
        shuffle: Shuffle = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        *,
        output_format: Literal["numpy"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[_Options],
    ) -> tuple[TableDataLoader[dict[str, npt.NDArray[Any]]], IcebergDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: BooleanExpression | str | None = None,
        snapshot_id: int | None = None,
        shuffle: Shuffle = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        *,
        output_format: Literal["arrow"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[_Options],
    ) -> tuple[TableDataLoader[pa.RecordBatch], IcebergDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        catalog_config: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: BooleanExpression | str | None = None,
        snapshot_id: int | None = None,
        shuffle: Shuffle = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        *,
        output_format: Literal["dict"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[_Options],
    ) -> tuple[TableDataLoader[dict[str, list[Any]]], IcebergDataset]: ...
