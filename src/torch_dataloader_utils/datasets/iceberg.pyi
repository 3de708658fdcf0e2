# Made of the options by scripts/write_options.py. Do not edit.

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pyiceberg.expressions import BooleanExpression
from torch.distributed.device_mesh import DeviceMesh

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.option_values import Decoding, FileIdentity, Holdout, Lanes, RayWorkers, TokenBatches
from torch_dataloader_utils._core.options import RankSharding, Shuffle
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._store import Credentials, RemoteOptions
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.samples.token_packing import TokenPacking
from torch_dataloader_utils.shape.dtypes import Dtypes
from torch_dataloader_utils.shape.encode import Encoder
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

class _Options(TypedDict, total=False):
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
    count_rows: Literal["auto"] | bool
    on_error: OnError
    identity: FileIdentity
    shuffle_rows: int | None
    drop_last: bool
    num_ranks: int | str
    rank: int
    holdout: Holdout | None
    nulls: Any
    dtypes: Dtypes | None
    stack: Mapping[str, Sequence[str]] | None
    encode: Mapping[str, Encoder] | None
    token_batches: TokenBatches | None
    pack: TokenPacking | None
    interleave: int | None
    refresh: Literal["epoch"] | None
    decoding: Decoding
    mesh: DeviceMesh | None
    show_progress: bool
    progress_interval_sec: float
    shuffle_buffer_size: int | None
    rank_sharding: RankSharding
    lanes: Lanes | int | None
    host_shares: int | None
    broadcast_inventory: bool | None
    workers: RayWorkers | None
    check_ranks: bool
    callbacks: Sequence[LoaderCallback] | None
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None

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
        count_rows: Literal["auto"] | bool = "auto",
        on_error: OnError = "raise",
        identity: FileIdentity = "strict",
        batch_size: int = 1024,
        shuffle: Shuffle = False,
        shuffle_seed: int = 42,
        shuffle_rows: int | None = None,
        drop_last: bool = False,
        output_format: OutputFormat = "torch",
        transform: Callable[[Any], Any] | None = None,
        num_workers: int | None = None,
        num_ranks: int | str = 1,
        rank: int = 0,
        holdout: Holdout | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        nulls: Any = None,
        dtypes: Dtypes | None = None,
        stack: Mapping[str, Sequence[str]] | None = None,
        encode: Mapping[str, Encoder] | None = None,
        token_batches: TokenBatches | None = None,
        pack: TokenPacking | None = None,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        interleave: int | None = None,
        refresh: Literal["epoch"] | None = None,
        decoding: Decoding = ...,
        mesh: DeviceMesh | None = None,
        show_progress: bool = False,
        progress_interval_sec: float = 120.0,
        shuffle_buffer_size: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        rank_sharding: RankSharding = "rows",
        lanes: Lanes | int | None = None,
        host_shares: int | None = None,
        broadcast_inventory: bool | None = None,
        workers: RayWorkers | None = None,
        check_ranks: bool = True,
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
