"""The keyword options that all data sets of tables share, for type checkers and editors only.

Names and types are those that `options.py` defines; tests/structured/test_options_definition.py compares them. Those of
one kind of data set are beside its options (`files.py`, `iceberg.py`, `delta.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pyarrow.compute as pc

from torch_dataloader_utils._core.option_values import Decoding, FileIdentity, Lanes, RayWorkers, TokenBatches
from torch_dataloader_utils._core.options import RankSharding
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils.samples.token_packing import TokenPacking
from torch_dataloader_utils.shape.encode import Encoder
from torch_dataloader_utils.shape.shapers import OutputFormat

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


class LoaderKeywords(TypedDict, total=False):
    """Options of a loader that its data set does not have: callbacks, and those of torch's DataLoader."""

    callbacks: Sequence[LoaderCallback] | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: "torch.Generator | None"
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool


class TransformKeywords(TypedDict, total=False):
    """The option that makes other batches of batches; apart, because the type of the loader depends on it."""

    transform: Callable[[Any], Any] | None


class TableKeywords(TypedDict, total=False):
    """The other options of `TableOptions` that are never passed by position."""

    rank_sharding: RankSharding
    drop_last: bool
    shuffle_rows: int | None
    interleave: int | None
    lanes: Lanes | int | None
    host_shares: int | None
    count_rows: Literal["auto"] | bool
    nulls: Any
    stack: Mapping[str, Sequence[str]] | None
    encode: Mapping[str, Encoder] | None
    token_batches: TokenBatches | None
    pack: TokenPacking | None
    on_error: OnError
    identity: FileIdentity
    refresh: Literal["epoch"] | None
    broadcast_inventory: bool | None
    decoding: Decoding
    workers: RayWorkers | None
    mesh: "DeviceMesh | None"
    check_ranks: bool


class PlainKeywords(TableKeywords, total=False):
    """The options of `TableOptions` on which the type of batches does not depend, except batch_size and columns."""

    filters: pc.Expression | None
    shuffle: bool
    shuffle_seed: int
    split_bytes: int | str | None
    split_rows: int | None
    split_strategy: SplitStrategy | str | None
    num_workers: int | None
    num_ranks: int | str
    rank: int
    show_progress: bool
    progress_interval_sec: float
    shuffle_buffer_size: int | None


class AllTableKeywords(PlainKeywords, TransformKeywords, total=False):
    """All options of `TableOptions`."""

    batch_size: int
    columns: Sequence[str] | None
    output_format: OutputFormat
    collate_fn: Callable[[Any], Any] | None
