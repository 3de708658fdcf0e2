"""The keyword options of data sets and loaders as types, for editors and type checkers.

What each option does is said at `StructuredDataset.create_dataloader`; defaults and checks are in `table_options.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pyarrow.compute as pc

from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._store import Credentials, RemoteOptions
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.token_packing.options import TokenPacking

if TYPE_CHECKING:
    import torch
    from pyiceberg.expressions import BooleanExpression
    from torch.distributed.device_mesh import DeviceMesh


class LoaderKeywords(TypedDict, total=False):
    """What a loader takes beside its data set: callbacks, and what goes to torch's DataLoader as it is."""

    callbacks: Sequence[LoaderCallback] | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: "torch.Generator | None"
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool


class RowKeywords(TypedDict, total=False):
    """The options of all table data sets that are passed by keyword only."""

    rank_sharding: Literal["rows", "chunks"]
    drop_last: bool
    transform: Callable[[Any], Any] | None
    shuffle_rows: int | None
    interleave: int | None
    num_lanes: int | None
    lane_rows: int | None
    count_rows: Literal["auto"] | bool
    nulls: Any
    stack: Mapping[str, Sequence[str]] | None
    bucket_by: str | None
    max_tokens_per_batch: int | None
    pad_to_multiple_of: int | None
    padding_free: bool
    pack: TokenPacking | None
    page_checksums: bool
    decode_threads: int | None
    decode_ahead_bytes: int | str
    mesh: "DeviceMesh | None"
    check_ranks: bool


class RowLoaderKeywords(RowKeywords, LoaderKeywords, total=False):
    """The same, and those of the loader."""


class TableKeywords(RowKeywords, total=False):
    """All options of `TableOptions`."""

    batch_size: int
    columns: Sequence[str] | None
    filters: pc.Expression | None
    shuffle: bool
    shuffle_seed: int
    split_bytes: int | str | None
    split_rows: int | None
    split_strategy: SplitStrategy | str | None
    num_workers: int | None
    output_format: OutputFormat
    collate_fn: Callable[[Any], Any] | None
    num_ranks: int | str
    rank: int
    show_progress: bool
    progress_interval_sec: float
    shuffle_buffer_size: int | None
    on_error: Literal["raise", "skip"]
    broadcast_inventory: bool


class IcebergKeywords(TableKeywords, total=False):
    """The same, and which part of a table is read, and how."""

    scan_filter: "BooleanExpression | str | None"
    snapshot_id: int | None
    as_of_timestamp: int | datetime | None
    branch: str | None
    tag: str | None
    from_snapshot_id: int | None
    path_rewrites: Mapping[str, str] | None
    allowed_roots: Sequence[str] | None
    storage_options: Mapping[str, Any] | None
    credentials: Credentials | None
    remote: RemoteOptions | None
    allow_empty: bool
    allow_bare_vectors: bool
