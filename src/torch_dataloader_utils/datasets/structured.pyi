# Made of the options by scripts/write_options.py. Do not edit.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.options import Shuffle
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._store import Credentials, RemoteOptions
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.files import Files
from torch_dataloader_utils.datasets.keywords import LoaderKeywords, TableKeywords
from torch_dataloader_utils.discover.hive import Hive
from torch_dataloader_utils.formats.file_scan import Missing
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.shape.tensor_batch import TensorBatch
from torch_dataloader_utils.stream.loader import TableDataLoader

T = TypeVar("T")

DATASET: Door
LOADER: Door

class _Options(TableKeywords, LoaderKeywords, total=False):
    storage_options: Mapping[str, Any] | None
    partitioning: Literal["hive", "auto"] | Hive | None
    remote: RemoteOptions | None
    inventory: Inventory | None
    missing: Missing
    credentials: Credentials | None
    allow_bare_files: bool

class StructuredDataset(BuiltDataset):
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
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
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
    ) -> tuple[TableDataLoader[T], StructuredDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
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
    ) -> tuple[TableDataLoader[T], StructuredDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
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
    ) -> tuple[TableDataLoader[TensorBatch], StructuredDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
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
    ) -> tuple[TableDataLoader[dict[str, npt.NDArray[Any]]], StructuredDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
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
    ) -> tuple[TableDataLoader[pa.RecordBatch], StructuredDataset]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
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
    ) -> tuple[TableDataLoader[dict[str, list[Any]]], StructuredDataset]: ...
