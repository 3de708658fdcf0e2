# Made of the options by scripts/write_options.py. Do not edit.

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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

def scan_delta(
    table: str | os.PathLike[str],
    *,
    on_progress: OnProgress | None = None,
    version: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    timestamp: int | datetime | None = None,
    from_version: int | None = None,
    remote: RemoteOptions | None = None,
    allowed_roots: Sequence[str] | None = None,
    credentials: Credentials | None = None,
    allow_empty: bool = False,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
    count_rows: Literal["auto"] | bool = "auto",
    on_error: OnError = "raise",
    identity: FileIdentity = "strict",
) -> Inventory: ...

class _Options(TableKeywords, LoaderKeywords, total=False):
    from_version: int | None
    remote: RemoteOptions | None
    inventory: Inventory | None
    allowed_roots: Sequence[str] | None
    credentials: Credentials | None
    allow_empty: bool

class DeltaDataset(BuiltDataset):
    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        version: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timestamp: int | datetime | None = None,
        from_version: int | None = None,
        remote: RemoteOptions | None = None,
        inventory: Inventory | None = None,
        allowed_roots: Sequence[str] | None = None,
        credentials: Credentials | None = None,
        allow_empty: bool = False,
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
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        version: int | None = None,
        timestamp: int | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
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
    ) -> tuple[TableDataLoader[T], DeltaDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        version: int | None = None,
        timestamp: int | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
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
    ) -> tuple[TableDataLoader[T], DeltaDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        version: int | None = None,
        timestamp: int | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
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
    ) -> tuple[TableDataLoader[TensorBatch], DeltaDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        version: int | None = None,
        timestamp: int | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
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
    ) -> tuple[TableDataLoader[dict[str, npt.NDArray[Any]]], DeltaDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        version: int | None = None,
        timestamp: int | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
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
    ) -> tuple[TableDataLoader[pa.RecordBatch], DeltaDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: str | os.PathLike[str],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        version: int | None = None,
        timestamp: int | datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
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
    ) -> tuple[TableDataLoader[dict[str, list[Any]]], DeltaDataset]: ...
