"""`StructuredDataset`: data sets of files, and their loaders. `tables/` wires the stages for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pyarrow.compute as pc

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.splits import DataFileInfo, SplitStrategy
from torch_dataloader_utils._store import Credentials, RemoteOptions, StoreAccess
from torch_dataloader_utils.datasets.build import build_stages, make_loader
from torch_dataloader_utils.datasets.files import find_inventory
from torch_dataloader_utils.datasets.options import (
    TABLE_OPTIONS,
    LoaderKeywords,
    TableKeywords,
    TableOptions,
    check_names,
)
from torch_dataloader_utils.datasets.rank_agreement import ranks_of
from torch_dataloader_utils.discover.paths import PathLike
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.stream.dataset import TableDataset
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LOADER_OPTIONS, check_loader_options
from torch_dataloader_utils.stream.ranks import mesh_members
from torch_dataloader_utils.tokens.pack.token_packing import PackTokensKeywords, TokenPacking, pack_tokens

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class WiredDataset(TableDataset):
    """A data set of an inventory and options; it keeps both, so that `pack_tokens` can make another one of them."""

    _wired_from: tuple[Inventory, TableOptions, StoreAccess] | None = None

    def __init__(self, inventory: Inventory, options: TableOptions, access: StoreAccess) -> None:
        num_ranks, rank = ranks_of(options)
        peers = mesh_members(options.mesh) if options.check_ranks else None
        # Not with the mesh, which would keep its process group for as long as the data set lives.
        options = replace(options, num_ranks=num_ranks, rank=rank, mesh=None)
        super().__init__(replace(build_stages(inventory, options, access), peers=peers))
        self._wired_from = inventory, options, access

    def pack_tokens(self, column: str, sequence_length: int, **packing: Unpack[PackTokensKeywords]) -> TableDataset:
        """This data set with documents of a list column as samples of one length, in a new data set at epoch 0.

        All options stay but `columns`; `batch_size` and `shuffle_rows` then count samples. The same data set as that of
        `create_dataloader(..., pack=pack_tokens(...))`, for those who build their own DataLoader.

        Args: see `torch_dataloader_utils.pack_tokens`.

        Raises:
            ConfigError: a value out of range, a column that holds no tokens, options that do not go with packing.
            DataError, StoreError: counting samples needed a read, and it failed.
        """
        if self._wired_from is None:
            raise ConfigError("pack_tokens on a copy in another process: pack before the data set goes there.")
        inventory, options, access = self._wired_from
        chosen = pack_tokens(column, sequence_length, **packing)
        stages = build_stages(inventory, replace(options, pack=chosen, columns=None), access)
        return TableDataset(replace(stages, peers=self.stages.peers))

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes only iterate: they need neither a second inventory nor the caller's options.
        return {name: value for name, value in self.__dict__.items() if name != "_wired_from"}


class StructuredDataset(WiredDataset):
    """Parquet, ORC, CSV, JSON or Arrow files as an iterable data set of batches, one rank's share of them.

    `create_dataloader` is the usual way in. The constructor is for those who build their own DataLoader: pass the
    data set with batch_size=None and any number of workers; the plan is made for as many as there are.
    """

    def __init__(
        self,
        files: Sequence[DataFileInfo | PathLike] | PathLike,
        format: str = "parquet",  # noqa: A002  # the field's name for it
        *,
        partitioning: Literal["hive"] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        credentials: Credentials | None = None,
        remote: RemoteOptions | None = None,
        inventory: Inventory | None = None,
        allow_bare_files: bool = False,
        **options: Unpack[TableKeywords],
    ) -> None:
        """A data set of these files.

        Args:
            files: data files, paths, or a directory or pattern.
            format: see `create_dataloader`, as for all other options; num_workers (here 1 by default) is the number
                that plans are shown for.

        Raises:
            ConfigError, DataError, StoreError: see `create_dataloader`.
        """
        chosen = TableOptions.of({"num_workers": 1, **options})
        access = StoreAccess.of(storage_options, credentials, remote)
        found = find_inventory(
            files,
            format,
            chosen,
            partitioning=partitioning,
            access=access,
            inventory=inventory,
            allow_bare_files=allow_bare_files,
        )
        super().__init__(found, chosen, access)

    @classmethod
    def create_dataloader(
        cls,
        path: PathLike | Sequence[PathLike],
        format: str = "parquet",  # noqa: A002  # the field's name for it
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        output_format: OutputFormat = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        partitioning: Literal["hive"] | None = None,
        num_ranks: int | str = 1,
        rank: int = 0,
        show_progress: bool = False,
        progress_interval_sec: float = 120.0,
        shuffle_buffer_size: int | None = None,
        *,
        rank_sharding: Literal["rows", "chunks"] = "rows",
        drop_last: bool = False,
        transform: Callable[[Any], Any] | None = None,
        shuffle_rows: int | None = None,
        interleave: int | None = None,
        num_lanes: int | None = None,
        lane_rows: int | None = None,
        count_rows: Literal["auto"] | bool = "auto",
        nulls: Any = None,
        stack: Mapping[str, Sequence[str]] | None = None,
        bucket_by: str | None = None,
        max_tokens_per_batch: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_free: bool = False,
        pack: TokenPacking | None = None,
        credentials: Credentials | None = None,
        remote: RemoteOptions | None = None,
        inventory: Inventory | None = None,
        page_checksums: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
        broadcast_inventory: bool = False,
        decode_threads: int | None = None,
        decode_ahead_bytes: int | str = "256MiB",
        mesh: "DeviceMesh | None" = None,
        allow_bare_files: bool = False,
        check_ranks: bool = True,
        **loader_options: Unpack[LoaderKeywords],
    ) -> tuple[TableDataLoader, "StructuredDataset"]:
        """A loader of one rank's batches, and its data set.

        Args:
            path: file, directory (searched recursively), pattern, or a list of those; local or any fsspec URL.
            format: "parquet", "orc", "csv", "json" (or "jsonl": one object a line) or "arrow". Types of CSV and JSON
                lines, and how large files are cut, are options of `scan_files` (schema, text): pass inventory then.
            batch_size: rows of a batch on this rank.
            columns: names to deliver, in this order; None for all. Only these (and the filter's) are read.
            filters: a pyarrow expression; exactly the rows for which it is true. May name columns that are not
                delivered and partition columns. Files and row groups that cannot match are not read.
            shuffle: permute chunks by (shuffle_seed, epoch). The seed is any integer, taken modulo 2^64.
            split_bytes: size of a chunk in projected, uncompressed bytes; an int or text such as "64MiB". Without it
                128 MiB, and with `shuffle` a 1,024th of the data if that is less.
            split_rows: size of a chunk in rows; wins over split_bytes.
            split_strategy: an object with `generate`, or the name of an installed plug-in. It also does the shuffling.
            num_workers: 0 decodes ahead in threads of this process (fastest), N in N worker processes. None takes
                threads, or processes if `transform` or `collate_fn` is given.
            output_format: "torch" gives a TensorBatch (a dict of tensors), "numpy" a dict of arrays, "arrow" a
                pyarrow.RecordBatch, "dict" a dict of lists.
            storage_options: for the storage client; never logged, saved or put into a state.
            credentials: a function that returns storage options with credentials, called again when they expire.
                Worker processes are sent the function, never what it returned.
            remote: how remote files are read: RemoteOptions(backend, retry, coalesce, connections, keep_footers).
            collate_fn: applied to each batch, after `transform`, where the batch is read.
            partitioning: "hive" reads typed columns from directory names such as year=2024.
            num_ranks: training processes, or "auto" to ask torch.distributed, Ray Train, or RANK and WORLD_SIZE.
            rank: this process's global rank, in [0, num_ranks).
            show_progress: a bar for each rank on a terminal; elsewhere a log line every progress_interval_sec seconds.
                On a terminal also a line about footers and counts that take more than two seconds.
            shuffle_buffer_size: another name of shuffle_rows.
            rank_sharding: "rows" gives all ranks equal steps; "chunks" keeps each chunk on one rank.
            drop_last: full batches only; the plan says how many rows that leaves out.
            transform: applied to each batch where it is read.
            shuffle_rows: permute rows in windows of about this many; 0 or None for no row shuffle.
            interleave: chunks that a window draws from.
            num_lanes, lane_rows: one order of global batches for every number of ranks and workers.
            count_rows: "auto" counts what a filter leaves by reading its columns once; False plans without counts.
            nulls: what nulls of columns without NaN become: "error", "mask" or {"fill": value}, for all columns or
                by column.
            stack: matrix name -> columns of one number type, delivered as one [B, n] tensor.
            bucket_by: batches of rows of similar length, in random order: a column of numbers (its value), lists
                (items) or text (bytes), delivered or not. Needs shuffle_rows, the rows that are sorted together.
            max_tokens_per_batch: with bucket_by, at most so many rows × longest padded length; reads all lengths once.
            pad_to_multiple_of: what max_tokens_per_batch rounds lengths up to; None: as PadRagged in collate_fn pads.
            padding_free: max_tokens_per_batch limits the sum of lengths, and batches mix rows of all lengths.
            pack: documents of a list column as samples of one length: what `pack_tokens` gives. Rows then are samples.
            inventory: from `scan_files` or `load_inventory`; then it is what is read, and nothing is listed. If it has
                files elsewhere than in `path`, that is a warning.
            page_checksums: check Parquet page checksums where the file has them.
            on_error: "skip" decodes every row group once before the plan and leaves out, with a warning that names
                them, those that are corrupt; steps stay equal. "raise" raises when they are met.
            broadcast_inventory: only rank 0 of the default process group scans, and sends the inventory to the others.
            decode_threads: row groups decoded at once (threads engine). decode_ahead_bytes: decoded ahead, at most.
            mesh: a torch DeviceMesh with named dimensions, instead of num_ranks and rank: processes along its
                data-parallel ones (dp, dp_replicate, dp_shard, ...) read different rows, along others (tp, cp, pp, ...)
                the same.
            allow_bare_files: read the directory of a Delta, Hudi or Iceberg table as the plain files in it, including
                removed rows, instead of an UnsupportedFeatureError. Files that are named themselves are always read.
            check_ranks: in a process group of several ranks, num_ranks and rank have to be those of the group (or of
                mesh), and ranks that read other data, options or epochs raise. False takes num_ranks and rank as they
                are and compares nothing.
            loader_options: callbacks, a sequence of LoaderCallback; and for torch's DataLoader: pin_memory,
                prefetch_factor, persistent_workers, timeout, multiprocessing_context, worker_init_fn, in_order.

        Returns:
            (loader, dataset). `len(loader)` is exact. Call `dataset.set_epoch(epoch)` before each epoch if shuffling.

        Raises:
            ConfigError: arguments that do not fit each other or the data. NoDataError: nothing to read.
            DataError: files that are corrupt or do not share one schema. StoreError: the storage failed.
        """
        check_names(loader_options, sorted(LOADER_OPTIONS), TABLE_OPTIONS)
        checked = check_loader_options(loader_options)
        dataset = cls(
            path,
            format,
            partitioning=partitioning,
            storage_options=storage_options,
            credentials=credentials,
            remote=remote,
            inventory=inventory,
            allow_bare_files=allow_bare_files,
            batch_size=batch_size,
            columns=columns,
            filters=filters,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            split_bytes=split_bytes,
            split_rows=split_rows,
            split_strategy=split_strategy,
            num_workers=num_workers,
            output_format=output_format,
            collate_fn=collate_fn,
            num_ranks=num_ranks,
            rank=rank,
            show_progress=show_progress,
            progress_interval_sec=progress_interval_sec,
            shuffle_buffer_size=shuffle_buffer_size,
            rank_sharding=rank_sharding,
            drop_last=drop_last,
            transform=transform,
            shuffle_rows=shuffle_rows,
            interleave=interleave,
            num_lanes=num_lanes,
            lane_rows=lane_rows,
            count_rows=count_rows,
            nulls=nulls,
            stack=stack,
            bucket_by=bucket_by,
            max_tokens_per_batch=max_tokens_per_batch,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_free=padding_free,
            pack=pack,
            page_checksums=page_checksums,
            on_error=on_error,
            broadcast_inventory=broadcast_inventory,
            decode_threads=decode_threads,
            decode_ahead_bytes=decode_ahead_bytes,
            mesh=mesh,
            check_ranks=check_ranks,
        )
        return make_loader(dataset, checked), dataset
