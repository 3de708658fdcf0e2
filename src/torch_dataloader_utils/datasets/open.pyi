# Made of the options by scripts/write_options.py. Do not edit.

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
from torch_dataloader_utils._store import Credentials, RemoteOptions
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.files import Files
from torch_dataloader_utils.discover.hive import Hive
from torch_dataloader_utils.formats.file_scan import Missing
from torch_dataloader_utils.samples.token_packing import TokenPacking
from torch_dataloader_utils.shape.dtypes import Dtypes
from torch_dataloader_utils.shape.encode import Encoder
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.shape.tensor_batch import TensorBatch
from torch_dataloader_utils.stream.loader import TableDataLoader

T = TypeVar("T")

OPEN: Door

class _Options(TypedDict, total=False):
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
    count_rows: Literal["auto"] | bool
    on_error: OnError
    identity: FileIdentity
    batch_size: int
    shuffle: Shuffle
    shuffle_seed: int
    shuffle_rows: int | None
    drop_last: bool
    num_workers: int | None
    num_ranks: int | str
    rank: int
    holdout: Holdout | None
    nulls: Any
    dtypes: Dtypes | None
    stack: Mapping[str, Sequence[str]] | None
    encode: Mapping[str, Encoder] | None
    token_batches: TokenBatches | None
    pack: TokenPacking | None
    split_bytes: int | str | None
    split_rows: int | None
    interleave: int | None
    refresh: Literal["epoch"] | None
    decoding: Decoding
    mesh: DeviceMesh | None
    show_progress: bool
    progress_interval_sec: float
    shuffle_buffer_size: int | None
    split_strategy: SplitStrategy | str | None
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
