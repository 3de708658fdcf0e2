"""The options that all table data sets share, checked once."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import check_filters
from torch_dataloader_utils._core.arguments import (
    check_column_name,
    check_column_names,
    check_count_rows,
    check_function,
    check_not_negative,
    check_seed,
    hold_flags,
    hold_integers,
    is_integer,
    parse_bytes,
)
from torch_dataloader_utils._core.options import DEFAULT_INTERLEAVE, PlanOptions, Topology, chosen_split_bytes
from torch_dataloader_utils._core.skipping import OnError, check_on_error
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._runtime.threads import available_cpus
from torch_dataloader_utils._store import Credentials, RemoteOptions
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.plan.strategy_call import strategy_name
from torch_dataloader_utils.shape.padding import PadRagged
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.tokens.pack.token_packing import TokenPacking

if TYPE_CHECKING:
    import torch
    from pyiceberg.expressions import BooleanExpression
    from torch.distributed.device_mesh import DeviceMesh


_COUNTS = ("split_rows", "interleave", "num_lanes", "lane_rows", "max_tokens_per_batch", "pad_to_multiple_of")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """See `StructuredDataset.create_dataloader` for what each option does."""

    batch_size: int = 1024
    columns: Sequence[str] | None = None
    filters: Any = None
    shuffle: bool = False
    shuffle_seed: int = 42
    split_bytes: int | str | None = None
    split_rows: int | None = None
    split_strategy: SplitStrategy | str | None = None
    num_workers: int | None = None
    output_format: OutputFormat = "torch"
    collate_fn: Callable[[Any], Any] | None = None
    num_ranks: int | str = 1
    rank: int = 0
    show_progress: bool = False
    progress_interval_sec: float = 120.0
    shuffle_buffer_size: int | None = None
    rank_sharding: Literal["rows", "chunks"] = "rows"
    drop_last: bool = False
    transform: Callable[[Any], Any] | None = None
    shuffle_rows: int | None = None
    interleave: int | None = None
    num_lanes: int | None = None
    lane_rows: int | None = None
    count_rows: Literal["auto"] | bool = "auto"
    nulls: Any = None
    stack: Mapping[str, Sequence[str]] | None = None
    bucket_by: str | None = None
    max_tokens_per_batch: int | None = None
    pad_to_multiple_of: int | None = None
    padding_free: bool = False
    pack: TokenPacking | None = None
    page_checksums: bool = True
    on_error: OnError = "raise"
    broadcast_inventory: bool = False
    decode_threads: int | None = None
    decode_ahead_bytes: int | str = "256MiB"
    mesh: Any = None
    check_ranks: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "TableOptions":
        """The options with these names.

        Raises:
            ConfigError: an unknown name.
        """
        check_names(options, TABLE_OPTIONS)
        return cls(**options)

    def __post_init__(self) -> None:
        self._check_types()
        if self.shuffle_rows is not None and self.shuffle_buffer_size is not None:
            raise ConfigError("shuffle_rows and shuffle_buffer_size are two names of one option: pass one of them.")
        if self.num_workers is not None and self.num_workers < 0:
            raise ConfigError(f"num_workers={self.num_workers}: pass 0 (threads), a number of processes, or None.")
        if self.pack is not None:
            self._check_packing(self.pack)
        if self.padding_free:
            self._check_padding_free()
        check_on_error(self.on_error)

    def _check_types(self) -> None:
        """What `PlanOptions` and `Topology` do not look at, or only once the data was scanned."""
        object.__setattr__(self, "columns", check_column_names(self.columns))
        check_column_name("bucket_by", self.bucket_by)
        check_filters(self.filters)
        object.__setattr__(self, "shuffle_seed", check_seed("shuffle_seed", self.shuffle_seed))
        hold_integers(self, "rank", "num_workers")
        hold_integers(self, "decode_threads", "shuffle_rows", "shuffle_buffer_size", least=0)
        hold_integers(self, "batch_size", *_COUNTS, least=1)
        parse_bytes("decode_ahead_bytes", self.decode_ahead_bytes)
        chosen_split_bytes(self.split_bytes)
        object.__setattr__(self, "count_rows", check_count_rows(self.count_rows))
        flags = ("shuffle", "drop_last", "show_progress", "page_checksums", "broadcast_inventory", "padding_free")
        hold_flags(self, *flags, "check_ranks")
        if is_integer(self.num_ranks):
            object.__setattr__(self, "num_ranks", operator.index(self.num_ranks))
        if self.stack is not None and not isinstance(self.stack, Mapping):
            raise ConfigTypeError(
                f'stack={self.stack!r}: pass a dict of lists of columns, such as {{"x": ["a", "b"]}}.'
            )
        for name in ("transform", "collate_fn"):
            check_function(name, getattr(self, name), "a function of a batch")
        check_not_negative("progress_interval_sec", self.progress_interval_sec, what="number of seconds")
        # Not by its class, which only a torch that was built with distributed has.
        if self.mesh is not None and not hasattr(self.mesh, "mesh_dim_names"):
            raise ConfigTypeError(
                f"mesh is {of_type(self.mesh)}: pass a DeviceMesh, such as init_device_mesh of torch.distributed gives."
            )

    def _check_packing(self, packing: TokenPacking) -> None:
        if not isinstance(packing, TokenPacking):
            raise ConfigTypeError(f"pack is {of_type(packing)}: pass what pack_tokens(...) gives.")
        if self.columns is not None and tuple(self.columns) != (packing.column,):
            raise ConfigError(
                f"columns={list(self.columns)} with pack=: samples are made of column {packing.column!r} alone. Leave "
                "columns= out; pack_tokens(fields=...) says what batches hold."
            )
        for name in ("bucket_by", "max_tokens_per_batch", "padding_free"):
            if getattr(self, name) not in (None, False):
                raise ConfigError(f"{name} with pack=: packed samples are all of one length. Leave one of them out.")
        # What is scanned and weighed is what is read.
        object.__setattr__(self, "columns", (packing.column,))

    def _check_padding_free(self) -> None:
        """That rows are counted, and that nothing pads them."""
        if self.max_tokens_per_batch is None:
            raise ConfigError(
                "padding_free=True says how max_tokens_per_batch= counts, which is not given: pass "
                "max_tokens_per_batch= and bucket_by=, or leave padding_free out."
            )
        if self.pad_to_multiple_of is not None:
            raise ConfigError(
                f"pad_to_multiple_of={self.pad_to_multiple_of} with padding_free=True: rows that are not padded count "
                "as they are. Leave one of them out."
            )
        if any(isinstance(each, PadRagged) for each in self.functions):
            raise ConfigError(
                "PadRagged with padding_free=True: padded batches would exceed max_tokens_per_batch. Leave PadRagged "
                "out (columns of lists then are Ragged: values, and offsets of the rows), or padding_free."
            )

    @property
    def _padding_multiple(self) -> int:
        """What lengths count as multiples of: as asked, or as a PadRagged collate function pads them.

        Raises:
            ConfigError: the two differ, so that batches would not be what they are planned to be.
        """
        asked = self.pad_to_multiple_of
        if self.max_tokens_per_batch is None and asked is None:
            return 1
        if self.max_tokens_per_batch is None:
            raise ConfigError(
                f"pad_to_multiple_of={asked} says how max_tokens_per_batch= counts, which is not given. To pad, pass "
                "collate_fn=PadRagged(pad_to_multiple_of=...)."
            )
        pads = next((each.pad_to_multiple_of for each in self.functions if isinstance(each, PadRagged)), asked)
        if asked is not None and asked != pads:
            raise ConfigError(
                f"pad_to_multiple_of={asked}, and PadRagged pads to multiples of {pads}. Leave pad_to_multiple_of out: "
                "it is taken from PadRagged."
            )
        return pads or 1

    @property
    def functions(self) -> tuple[Callable[[Any], Any], ...]:
        """The user's functions that every batch goes through."""
        return tuple(function for function in (self.transform, self.collate_fn) if function is not None)

    @property
    def reads_before_plan(self) -> bool:
        """Whether rows may be read before there is a plan, to count or to check them; ranks do that together."""
        counts = self.filters is not None and self.count_rows is not False
        return counts or self.on_error == "skip" or self.pack is not None or self.max_tokens_per_batch is not None

    @property
    def worker_processes(self) -> int:
        """Processes of the loader: as asked, or none (threads) unless Python functions are to run beside training."""
        if self.num_workers is not None:
            return self.num_workers
        return max(1, available_cpus() - 1) if self.functions else 0

    @property
    def threads(self) -> int:
        """Row groups decoded at once in this process."""
        return self.decode_threads or available_cpus()

    @property
    def budget_bytes(self) -> int:
        """Bytes decoded ahead of the trainer."""
        return parse_bytes("decode_ahead_bytes", self.decode_ahead_bytes)

    @property
    def window_rows(self) -> int | None:
        """Rows that are shuffled together, by either name of the option; 0 or None for none."""
        return self.shuffle_rows if self.shuffle_rows is not None else self.shuffle_buffer_size

    def plan_options(self, strategy: SplitStrategy | None) -> PlanOptions:
        """The part that orders rows."""
        return PlanOptions(
            split_bytes=chosen_split_bytes(self.split_bytes),
            split_rows=self.split_rows,
            shuffle=self.shuffle,
            seed=self.shuffle_seed,
            rank_sharding=self.rank_sharding,
            shuffle_rows=self.window_rows,
            interleave=DEFAULT_INTERLEAVE if self.interleave is None else self.interleave,
            num_lanes=self.num_lanes,
            lane_rows=self.lane_rows,
            strategy=strategy_name(strategy),
            bucket_by=self.bucket_by or "",
            max_tokens_per_batch=self.max_tokens_per_batch,
            pad_to_multiple_of=self._padding_multiple,
            padding_free=self.padding_free,
        )

    def topology(self, num_ranks: int) -> Topology:
        """The part that may change from one resume to the next."""
        return Topology(
            num_ranks=num_ranks,
            num_workers=max(1, self.worker_processes),
            batch_size=self.batch_size,
            drop_last=self.drop_last,
        )


TABLE_OPTIONS = tuple(field.name for field in fields(TableOptions))


# What other libraries call options of ours, where the names are too different to look like one.
_ELSEWHERE = {
    "seed": "shuffle_seed",
    "random_seed": "shuffle_seed",
    "world_size": "num_ranks",
    "num_replicas": "num_ranks",
    "num_shards": "num_ranks",
    "shard_index": "rank",
    "shuffle_size": "shuffle_rows",
    "buffer_size": "shuffle_rows",
    "num_threads": "decode_threads",
    "map_fn": "transform",
}
_SAMPLERS = ("sampler", "batch_sampler")
# What only `scan_files` takes, since no other format needs it.
_TEXT_OPTIONS = ("schema", "text")


def check_names(options: Mapping[str, Any], known: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raises ConfigError for an option that is not `known`; the message has the nearest of `known` and `others`.

    Others are options too, which the caller has taken out already. Where none is near, all are listed.

        known timeout, others batch_size and shuffle_seed, options batchsize      did you mean 'batch_size'?
        the same, options seed                                                    did you mean 'shuffle_seed'?
        the same, options xyzzy                                                   the three names
    """
    for name in options:
        if name not in known:
            raise ConfigError(_unknown(name, [*others, *known]))


def _unknown(name: str, names: Sequence[str]) -> str:
    if name in _SAMPLERS:
        return (
            f"{name}= has no use here: the plan decides who reads which rows, by num_ranks, rank, shuffle and "
            "shuffle_rows. For a sampler of your own, use RowDataset in a DataLoader."
        )
    if name in _TEXT_OPTIONS:
        return (
            f"{name}= is an option of scan_files, for CSV and JSON lines: pass "
            f"inventory=scan_files(path, format, {name}=...)."
        )
    close = [each for each in (_ELSEWHERE.get(name),) if each in names] or get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f". Known are {names}."
    return f"Unknown option {name!r}{hint}"


def separate_options(options: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options with these names, and the others."""
    chosen = {name: value for name, value in options.items() if name in names}
    return chosen, {name: value for name, value in options.items() if name not in names}


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
