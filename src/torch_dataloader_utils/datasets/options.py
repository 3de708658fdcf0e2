"""`TableOptions`: the options that all data sets of tables share, each defined once (see _core/option_fields.py).

`FileSource` (files.py), `IcebergSource` (iceberg_source.py) and `DeltaSource` (delta_source.py) have the options about
the place of the data, `LoaderOptions` (stream/loader_options.py) the options of torch's DataLoader.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import check_filters
from torch_dataloader_utils._core.arguments import (
    check_column_names,
    check_count_rows,
    check_flag,
    check_function,
    check_instance,
    check_integer,
    check_not_negative,
    check_seed,
    is_integer,
    parse_bytes,
)
from torch_dataloader_utils._core.option_fields import Checked, option
from torch_dataloader_utils._core.option_values import (
    Decoding,
    FileIdentity,
    Holdout,
    Lanes,
    RayWorkers,
    TokenBatches,
    check_holdout,
    check_identity,
    check_lanes,
    check_token_batches,
)
from torch_dataloader_utils._core.options import PlanOptions, RankSharding, Shuffle, Topology, check_shuffle
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._core.skipping import OnError, check_on_error
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._runtime.threads import available_cpus
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.plan.strategy_call import strategy_name
from torch_dataloader_utils.samples.sequences import Sequences, check_sequences
from torch_dataloader_utils.samples.token_packing import TokenPacking
from torch_dataloader_utils.shape.dtypes import Dtypes, check_dtypes
from torch_dataloader_utils.shape.encode import Encoder
from torch_dataloader_utils.shape.padding import PadRagged
from torch_dataloader_utils.shape.shapers import OutputFormat

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def _workers(name: str, value: Any) -> int:
    number = check_integer(name, value)
    if number < 0:
        raise ConfigError(f"{name}={number}: pass 0 (threads), a number of processes, or None.")
    return number


def _ranks(name: str, value: Any) -> Any:
    """Return numpy's integers as ints, and all else unchanged: `resolve_ranks` checks the value."""
    return check_integer(name, value) if is_integer(value) else value


def _stack(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigTypeError(f'{name}={value!r}: pass a dict of lists of columns, such as {{"x": ["a", "b"]}}.')
    return value


def _encode(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(
        isinstance(column, str) and isinstance(encoder, Encoder) for column, encoder in value.items()
    ):
        raise ConfigTypeError(
            f'{name}={value!r}: pass a dict of columns and encoders, such as {{"city": Hash(buckets=1_000_000)}} '
            'or {"city": Vocabulary(["Rome", "Paris"])}; Bytes is an encoder too.'
        )
    return dict(sorted(value.items()))  # ranks compare it as a text


def _packing(name: str, value: Any) -> TokenPacking:
    if not isinstance(value, TokenPacking):
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass the result of pack_tokens(...).")
    return value


def _refresh(name: str, value: Any) -> Any:
    if value != "epoch":
        raise ConfigError(f'{name}={value!r} is unknown; use "epoch" or None.')
    return value


def _folder(name: str, value: Any) -> str:
    folder = check_path(name, value)
    if "://" in folder:
        raise ConfigError(f"{name}={folder!r} is a URL; files that grow need a local or mounted folder.")
    return folder


def _mesh(name: str, value: Any) -> Any:
    # Not checked by class: a torch that was built without distributed does not have it.
    if not hasattr(value, "mesh_dim_names"):
        raise ConfigTypeError(
            f"{name} is {of_type(value)}: pass a DeviceMesh, such as init_device_mesh of torch.distributed gives."
        )
    return value


_FUNCTION = partial(check_function, what="a function of a batch")
_COUNT = partial(check_integer, least=1)
_COUNT_OR_0 = partial(check_integer, least=0)
_SECONDS = partial(check_not_negative, what="number of seconds")


@dataclass(frozen=True, kw_only=True)
class ScanOptions(Checked):
    """Options of a scan, the search for files and row groups."""

    columns: Sequence[str] | None = option(
        None,
        "Names of the columns to deliver, in this order; None for all. Other columns are not read, except by filters. "
        "`_file` and `_pos` (path of a row's file, and place in the file) are known for every row, `_row_id` and "
        "`_last_updated_sequence_number` for rows of Iceberg tables of version 3. With `pack`, these columns are added "
        "to the fields of the samples; None adds nothing.",
        check_column_names,
        tier="everyday",
    )
    filters: pc.Expression | None = option(
        None,
        "pyarrow expression; exactly the rows for which it is true are delivered. It may use partition columns, and "
        "columns that are not delivered. Files and row groups that cannot match are not read.",
        check_filters,
        tier="everyday",
    )
    count_rows: Literal["auto"] | bool = option(
        "auto",
        '"auto" counts the rows that pass the filter (and equality deletes), by reading the columns that decide it '
        "once; False plans without counts.",
        check_count_rows,
        tier="rare",
    )
    on_error: OnError = option(
        "raise",
        '"raise" raises an error when it reads a corrupt row group. "skip" decodes every row group once before '
        "planning and leaves out corrupt ones, with a warning that names them; ranks still take equal steps.",
        check_on_error,
    )
    identity: FileIdentity = option(
        "strict",
        'How files are identified. "strict": by path, size and etag or time. "content": by the name below their common '
        "directory and a digest of all bytes, so that states fit copies of the data in another place, store or time, "
        "and nothing else. Every byte of every file is read before the first batch, unless this host has kept the "
        "digest.",
        check_identity,
        tier="rare",
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(ScanOptions):
    """Options of every data set of tables. `FileSource`, `IcebergSource` and `DeltaSource` say where the data is."""

    batch_size: int = option(1024, "Rows of a batch on this rank.", _COUNT, tier="everyday")
    shuffle: Shuffle = option(
        False,
        'True permutes chunks, and rows in windows, by (shuffle_seed, epoch); "chunks" permutes chunks only.',
        check_shuffle,
        tier="everyday",
    )
    shuffle_seed: int = option(42, "Any integer, taken modulo 2^64.", check_seed, tier="everyday")
    shuffle_rows: int | None = option(
        None,
        "Permute rows in windows of about this many rows. None with shuffle=True: windows of about 32 MiB, at most "
        "262,144 rows. Otherwise 0 or None: do not shuffle rows.",
        _COUNT_OR_0,
        tier="everyday",
    )
    drop_last: bool = option(
        False,
        "Deliver only full batches; the plan has the number of rows left out.",
        check_flag,
        tier="everyday",
    )
    output_format: OutputFormat = option(
        "torch",
        '"torch" gives a TensorBatch (a dict of tensors), "numpy" a dict of arrays, "arrow" a pyarrow.RecordBatch, '
        '"dict" a dict of lists.',
        tier="everyday",
        is_of_rank=True,
    )
    transform: Callable[[Any], Any] | None = option(
        None, "Function applied to each batch, where the batch is read.", _FUNCTION, tier="everyday", is_of_rank=True
    )
    num_workers: int | None = option(
        None,
        "0 decodes ahead in threads of this process (fastest), N in N worker processes. None means threads, or "
        "processes if `transform` or `collate_fn` is given. For a data set without a loader, None shows its plan for "
        "1 worker.",
        _workers,
        tier="everyday",
    )
    num_ranks: int | str = option(
        1,
        'Number of training processes, or "auto" to take it from torch.distributed, Ray Train, or RANK and WORLD_SIZE.',
        _ranks,
        tier="everyday",
    )
    rank: int = option(
        0, "Global rank of this process, in [0, num_ranks).", check_integer, tier="everyday", is_of_rank=True
    )
    holdout: Holdout | None = option(
        None,
        'One of two parts of the rows, to train on one and validate on the other: Holdout(0.1, "train") and '
        'Holdout(0.1, "holdout"), of random rows or of random values of a column (by=).',
        check_holdout,
    )
    collate_fn: Callable[[Any], Any] | None = option(
        None,
        "Function applied to each batch after `transform`, where the batch is read.",
        _FUNCTION,
        is_of_rank=True,
    )
    nulls: Any = option(
        None,
        'Replacement of nulls in columns without NaN, for all columns or by column: "fill" (zeros, False, the epoch, '
        '"" in text), ("fill", value), "mask" (a bool column `<column>_mask` beside the column) or "error".',
        is_of_rank=True,
    )
    dtypes: Dtypes | None = option(
        None,
        'Number type of tensors: "float32" for all columns of numbers, or {column, stack or "*" for all others: type}. '
        "A value that the type does not hold (out of range, a fraction in an integer type) is an error; "
        '("clip", type) takes the nearest value. Integer types give unscaled decimals, which are float64 by default.',
        check_dtypes,
        is_of_rank=True,
    )
    stack: Mapping[str, Sequence[str]] | None = option(
        None,
        "{name of a matrix: columns of numbers}; the columns are delivered as one [B, n] tensor, of the type in dtypes "
        "or of the smallest type that holds all values.",
        _stack,
        is_of_rank=True,
    )
    encode: Mapping[str, Encoder] | None = option(
        None,
        "{column of text or categories: encoder}, which turns values into numbers: Hash(buckets), Vocabulary(values) "
        "or Bytes(). Filters see the stored values.",
        _encode,
    )
    token_batches: TokenBatches | None = option(
        None,
        "Batches of rows of similar length, optionally limited by tokens: TokenBatches(column, max_tokens). Needs "
        "shuffle=True or shuffle_rows.",
        check_token_batches,
    )
    pack: TokenPacking | None = option(
        None,
        "Join the documents of a list column to samples of one length: pass the result of `pack_tokens`. Rows are "
        "then samples.",
        _packing,
    )
    split_bytes: int | str | None = option(
        None,
        'Size of a chunk in decoded bytes of the columns that are read; an int or text such as "64MiB". None: 128 '
        "MiB, or with `shuffle` a 1,024th of the data if that is less.",
        partial(parse_bytes, least=1),
    )
    split_rows: int | None = option(None, "Size of a chunk in rows; replaces split_bytes.", _COUNT)
    interleave: int | None = option(
        None,
        "Number of chunks from which the rows of a window come; None for 16 with shuffle=True, otherwise 4.",
        _COUNT,
    )
    refresh: Literal["epoch"] | None = option(
        None,
        '"epoch" looks for newer data before every epoch but the first: the newest snapshot of the table or its '
        "branch, the next increment, or the files that exist then. Options that choose a snapshot, and inventory, "
        "apply to the first epoch. All ranks read the data that rank 0 finds.",
        _refresh,
    )
    decoding: Decoding = option(
        Decoding(),
        "How row groups are decoded: Decoding(threads, ahead_bytes, page_checksums, compiled).",
        partial(check_instance, kind=Decoding, wanted="Decoding(threads=..., ahead_bytes=...)"),
        is_of_rank=True,
    )
    mesh: "DeviceMesh | None" = option(
        None,
        "A torch DeviceMesh with named dimensions, instead of num_ranks and rank. Processes along its data-parallel "
        "dimensions (dp, dp_replicate, dp_shard, ...) read different rows, along others (tp, cp, pp, ...) the same.",
        _mesh,
        is_of_rank=True,
    )
    show_progress: bool = option(
        False,
        "Show a bar on a terminal (of rank 0) and in a notebook; otherwise a log line every progress_interval_sec "
        "seconds. On a terminal also a line about reading footers and counting rows, if that takes more than a "
        "second.",
        check_flag,
        is_of_rank=True,
    )
    progress_interval_sec: float = option(
        120.0, "Seconds between the log lines of show_progress.", _SECONDS, tier="rare", is_of_rank=True
    )
    shuffle_buffer_size: int | None = option(None, "Another name of shuffle_rows.", _COUNT_OR_0, tier="rare")
    split_strategy: SplitStrategy | str | None = option(
        None,
        "An object with `generate`, or the name of an installed plug-in. A strategy also shuffles files or chunks.",
        tier="rare",
    )
    rank_sharding: RankSharding = option(
        "rows", '"rows" gives all ranks equal steps; "chunks" keeps each chunk on one rank.', tier="rare"
    )
    lanes: Lanes | int | None = option(
        None,
        "The same global batches for any number of ranks and workers: Lanes(num_lanes, rows), or the number of lanes.",
        check_lanes,
        tier="rare",
    )
    sequences: Sequences | None = option(
        None,
        "Samples of consecutive rows of one group instead of rows: Sequences(length, horizon=..., by=..., order=...), "
        "for time series, histories and episodes. `batch_size` and `shuffle_rows` then count sequences.",
        check_sequences,
        tier="rare",
    )
    host_shares: int | None = option(
        None,
        "Divide the chunks into this many shares by the seed alone; the same neighbouring ranks read a share in "
        "every epoch. With one share per host, a HostCache only needs to hold its host's share. Needs shuffle.",
        _COUNT,
        tier="rare",
    )
    broadcast_inventory: bool | None = option(
        None,
        "Let only rank 0 of the default process group scan, and send the inventory to the others. None: if files are "
        "remote, a process group of num_ranks exists that accepts CPU tensors (gloo), and check_ranks is on.",
        check_flag,
        tier="rare",
    )
    workers: RayWorkers | None = option(
        None,
        "RayWorkers(num) runs the workers of a loader in actors of a Ray cluster instead; the batches are equal to "
        "the batches of num_workers=num. None: on this host.",
        partial(check_instance, kind=RayWorkers, wanted="RayWorkers(num), or None"),
        tier="rare",
        is_of_rank=True,
    )
    audit: str | None = option(
        None,
        "Local folder, shared by all ranks, in which every process records the rows that its batches have; `tdu audit` "
        "compares the records of a job with the data. Needs known row counts.",
        _folder,
        tier="rare",
        is_of_rank=True,
    )
    check_ranks: bool = option(
        True,
        "In a process group of several ranks, raise an error if num_ranks and rank differ from the group (or from "
        "mesh), or if ranks read other data, options or epochs. False compares nothing.",
        check_flag,
        tier="rare",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffle_rows is not None and self.shuffle_buffer_size is not None:
            raise ConfigError("shuffle_rows and shuffle_buffer_size are two names of one option: pass one of them.")
        if self.workers is not None and self.num_workers not in (None, self.workers.num):
            raise ConfigError(
                f"num_workers={self.num_workers} and workers=RayWorkers({self.workers.num}): leave num_workers out."
            )
        if self.pack is not None:
            self._check_packing(self.pack)
        if self.sequences is not None:
            self._check_sequences(self.sequences)
        if self.token_batches is not None:
            object.__setattr__(self, "token_batches", self._as_padded(self.token_batches))

    def _check_packing(self, packing: TokenPacking) -> None:
        if self.token_batches is not None:
            raise ConfigError("token_batches with pack=: packed samples are all of one length. Leave one of them out.")
        packing = packing.with_columns(self.columns or ())
        object.__setattr__(self, "pack", packing)
        # The scan weighs the columns that are read.
        object.__setattr__(self, "columns", packing.columns)

    def _check_sequences(self, sequences: Sequences) -> None:
        for name, value in (("pack", self.pack), ("token_batches", self.token_batches)):
            if value is not None:
                raise ConfigError(f"sequences= with {name}=: both make samples of rows. Leave one of them out.")
        if self.count_rows is False or self.on_error == "skip":
            raise ConfigError(
                'sequences= needs all rows, counted: with count_rows=False or on_error="skip" nothing says which rows '
                "are neighbours. Leave these options out."
            )
        if self.holdout is not None and self.holdout.by not in sequences.by:
            raise ConfigError(
                "holdout= with sequences= leaves rows out of the middle of sequences. Hold out whole groups: "
                f"Holdout(..., by={(*sequences.by, 'series_id')[0]!r})."
            )

    def _as_padded(self, batches: TokenBatches) -> TokenBatches:
        """Return the options with lengths padded as by a PadRagged among the user's functions.

        Raises:
            ConfigError: PadRagged and token_batches exclude each other or differ, so that batches would not be as
                planned.
        """
        pads = next((each.pad_to_multiple_of for each in self.functions if isinstance(each, PadRagged)), None)
        if pads is None or batches.max_tokens is None:
            return batches
        if batches.padding_free:
            raise ConfigError(
                "PadRagged with padding_free=True: padded batches would exceed max_tokens. Leave PadRagged out "
                "(columns of lists then are Ragged: values, and offsets of the rows), or padding_free."
            )
        if batches.pad_to_multiple_of is None:
            return batches if pads == 1 else replace(batches, pad_to_multiple_of=pads)
        if batches.pad_to_multiple_of != pads:
            raise ConfigError(
                f"pad_to_multiple_of={batches.pad_to_multiple_of} of token_batches=, and PadRagged pads to multiples "
                f"of {pads}. Leave the first one out: it is taken from PadRagged."
            )
        return batches

    @property
    def functions(self) -> tuple[Callable[[Any], Any], ...]:
        """User's functions, in the order in which a batch goes through them."""
        return tuple(function for function in (self.transform, self.collate_fn) if function is not None)

    @property
    def reads_before_plan(self) -> bool:
        """Whether the ranks may read rows together before the plan is made, to count or to check rows."""
        counts = self.filters is not None and self.count_rows is not False
        limits_tokens = self.token_batches is not None and self.token_batches.max_tokens is not None
        return counts or self.on_error == "skip" or self.pack is not None or self.sequences is not None or limits_tokens

    @property
    def worker_processes(self) -> int:
        """Number of worker processes; by default 0 (threads), unless Python functions are to run beside training."""
        if self.workers is not None:
            return self.workers.num
        if self.num_workers is not None:
            return self.num_workers
        return max(1, available_cpus() - 1) if self.functions else 0

    @property
    def threads(self) -> int:
        """Number of row groups decoded at once in this process."""
        return self.decoding.threads or available_cpus()

    @property
    def window_rows(self) -> int | None:
        """Number of rows that are shuffled together, by either name of the option; 0 or None: rows are not shuffled."""
        return self.shuffle_rows if self.shuffle_rows is not None else self.shuffle_buffer_size

    def plan_options(self, strategy: SplitStrategy | None) -> PlanOptions:
        """Return the options that decide the order of rows."""
        return PlanOptions.of(
            split_bytes=self.split_bytes,
            split_rows=self.split_rows,
            shuffle=self.shuffle,
            seed=self.shuffle_seed,
            rank_sharding=self.rank_sharding,
            shuffle_rows=self.window_rows,
            interleave=self.interleave,
            lanes=check_lanes("lanes", self.lanes),
            token_batches=self.token_batches,
            host_shares=self.host_shares,
            strategy="" if strategy is None else strategy_name(strategy),
        )

    def topology(self, num_ranks: int) -> Topology:
        """Return the options that may change from one resume to the next."""
        return Topology(
            num_ranks=num_ranks,
            num_workers=max(1, self.worker_processes),
            batch_size=self.batch_size,
            drop_last=self.drop_last,
        )


# Texts of options that several sources have.
CREDENTIALS_TEXT = (
    "Function that returns storage options with credentials; called again when the credentials expire. Worker "
    "processes get the function, never its result."
)
REMOTE_TEXT = "How remote files are read: RemoteOptions(backend, retry, coalesce, connections, keep_footers, cache)."
ALLOW_EMPTY_TEXT = "Make an empty loader if there is nothing to read, instead of an error."
