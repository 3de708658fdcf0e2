# Made of the options by scripts/write_options.py. Do not edit.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch.distributed.device_mesh import DeviceMesh

from torch_dataloader_utils._core.option_values import Decoding, FileIdentity, Holdout, Lanes, RayWorkers, TokenBatches
from torch_dataloader_utils._core.options import RankSharding
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils.samples.sequences import Sequences
from torch_dataloader_utils.samples.token_packing import TokenPacking
from torch_dataloader_utils.shape.dtypes import Dtypes
from torch_dataloader_utils.shape.encode import Encoder

class TableKeywords(TypedDict, total=False):
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
    sequences: Sequences | None
    host_shares: int | None
    broadcast_inventory: bool | None
    workers: RayWorkers | None
    audit: str | None
    check_ranks: bool

class LoaderKeywords(TypedDict, total=False):
    callbacks: Sequence[LoaderCallback] | None
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
