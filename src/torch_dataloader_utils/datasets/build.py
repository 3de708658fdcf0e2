"""Builds data sets and loaders. `build` wires the stages, in five steps; nothing else does.

StructuredDataset, IcebergDataset    all five
RowDataset                           the first two
"""

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self, TypeVar, Unpack, overload

import pyarrow as pa
from torch.utils.data import get_worker_info

from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.metadata_columns import check_lineage, metadata_columns
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._formats.arrow_schema import decode_schema
from torch_dataloader_utils._observe.progress import ProgressReporter
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import Foresight, StoreAccess, open_store
from torch_dataloader_utils.datasets.data_change import DataChange, check_continues
from torch_dataloader_utils.datasets.option_fields import check_names, chosen, names_of
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.rank_agreement import (
    check_refreshable,
    compared_options,
    counting_share,
    ranks_of,
    shows_bars,
)
from torch_dataloader_utils.datasets.row_counts import (
    check_rows_fit,
    count_live_rows,
    leave_out_bad_groups,
    read_lengths,
    read_token_counts,
)
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.planner import Planner
from torch_dataloader_utils.plan.problems import warn_about
from torch_dataloader_utils.plan.strategy_call import find_strategy
from torch_dataloader_utils.read.metadata_columns import with_metadata_columns
from torch_dataloader_utils.read.projection import ReadSpec
from torch_dataloader_utils.read.reader import Reader, make_reader
from torch_dataloader_utils.shape.encode import EncodingShaper, encoded_schema
from torch_dataloader_utils.shape.lengths import LengthShaper, check_has_lengths
from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.shape.slab import TensorBatchCodec
from torch_dataloader_utils.shape.specs import select_fields
from torch_dataloader_utils.stream.dataset import Stages, TableDataset
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LOADER_OPTIONS, check_loader_options
from torch_dataloader_utils.stream.ranks import mesh_members
from torch_dataloader_utils.stream.worker import Pipeline
from torch_dataloader_utils.tokens.pack.batch_fields import find_fields
from torch_dataloader_utils.tokens.pack.packing_reader import PackingReader
from torch_dataloader_utils.tokens.pack.sample_counts import count_packed, stored_inventory
from torch_dataloader_utils.tokens.pack.text import tokenized
from torch_dataloader_utils.tokens.pack.token_packing import PackTokensKeywords, TokenPacking, pack_tokens

_log = logging.getLogger(__name__)

# Row groups of remote files that one process fetches at once; each takes one request or more.
_REMOTE_THREADS = 16

# For local row groups up to this size (500 rows of 10 numbers are 20 KB) Python takes as long as decoding, so one job
# decodes several.
_SMALL_BYTES = 64 << 10


class Source(Protocol):
    """Where the data of a data set is: a `FileSource`, an `IcebergSource`, or `Found` for one that is there already."""

    def find(self, options: TableOptions) -> tuple[Inventory, StoreAccess]:
        """The inventory, the same on all ranks, and how its files are reached."""

    def newest(self, read: Inventory) -> "Source":
        """Where to look for what is there by now, after `read`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """An inventory that has been found, how its files are reached, and where newer data are looked for."""

    inventory: Inventory
    access: StoreAccess
    source: Source

    def find(self, options: TableOptions) -> tuple[Inventory, StoreAccess]:  # noqa: ARG002  # see Source
        """Both as they are."""
        return self.inventory, self.access

    def newest(self, read: Inventory) -> Source:
        """See Source."""
        return self.source.newest(read)


D = TypeVar("D", bound=TableDataset)
# Makes a data set of its stages, and of what they were built of.
Make = Callable[[Stages, Found, TableOptions], D]


@overload
def build(source: Source, options: TableOptions, make: Make[D]) -> tuple[D, None]: ...
@overload
def build(
    source: Source, options: TableOptions, make: Make[D], loader_options: Mapping[str, Any]
) -> tuple[D, TableDataLoader]: ...
def build(
    source: Source, options: TableOptions, make: Make[D], loader_options: Mapping[str, Any] | None = None
) -> tuple[D, TableDataLoader | None]:
    """A data set, and its loader.

        inventory   which files and row groups there are
        rows        what reads a row group, and what makes batches of it
        planner     who reads what, in every epoch
        stream      the batches of one rank, as an iterable data set
        loader      threads or worker processes around it

    Args:
        loader_options: checked options of torch's DataLoader, and callbacks. None: no loader, since the user has one.

    Raises:
        ConfigError: options that do not fit each other or the data. NoDataError: nothing to read.
        DataError, StoreError: files had to be looked at, or rows counted or measured, and could not be read.
    """
    num_ranks, rank = ranks_of(options)
    peers = mesh_members(options.mesh) if options.check_ranks else None

    # 1. Inventory. All ranks agree on one.
    inventory, access = source.find(options)
    # From here on without the mesh, which would keep its process group for as long as the data set lives.
    options = replace(options, num_ranks=num_ranks, rank=rank, mesh=None)
    found = Found(inventory=inventory, access=access, source=source)

    # 2. Rows, 3. planner, 4. stream.
    dataset = make(_build_stages(found, options, num_ranks, rank, peers), found, options)

    # 5. Loader.
    if loader_options is None:
        return dataset, None
    warn_about(dataset.plan)
    return dataset, TableDataLoader(dataset, **loader_options)


def _build_stages(
    found: Found, options: TableOptions, num_ranks: int, rank: int, peers: tuple[int, ...] | None
) -> Stages:
    """Steps 2 to 4 of `build`, for data that have been found."""
    access, share = found.access, counting_share(options, num_ranks, rank)
    topology, strategy = options.topology(num_ranks), find_strategy(options.split_strategy)
    topology.check_rank(rank)
    plan_options = options.plan_options(strategy)

    # 2. Rows: a reader and a shaper. Rows that a filter leaves are counted here, so that the plan knows how many.
    rows = build_rows(found.inventory, options, access, share)
    pipeline = Pipeline(
        reader=rows.reader,
        shaper=rows.shaper,
        codec=TensorBatchCodec() if options.output_format == "torch" else None,
        functions=options.functions,
        row_bytes=_row_bytes(rows.delivered),
    )

    # 3. Planner. It needs the lengths of all rows where tokens limit batches.
    lengths = _read_lengths(rows.inventory, options, plan_options.token_budget(topology.batch_size), access, share)
    planner = Planner(inventory=rows.inventory, options=plan_options, strategy=strategy, lengths=lengths)

    # 4. Stream: the data set. It plans a pass, and runs the pipeline on the row groups of its rank.
    return Stages(
        planner=planner,
        pipeline=pipeline,
        topology=topology,
        rank=rank,
        num_processes=options.worker_processes,
        workers=options.workers,
        decode=_decode_options(rows.inventory, options),
        callbacks=(ProgressReporter(options.progress_interval_sec),) if options.show_progress else (),
        sent=_functions_of_readers(access, options),
        # Discovery has used obstore in this process already; see _store/obstore.py.
        start_method="forkserver" if access.remote.backend == "obstore" else None,
        peers=peers,
        compared=compared_options(options, num_ranks),
        row_tokens=0 if options.pack is None else options.pack.sequence_length,
        foresight=None if access.remote.cache is None else Foresight(access=access, cache=access.remote.cache),
    )


def _functions_of_readers(access: StoreAccess, options: TableOptions) -> tuple[Callable[..., Any], ...]:
    tokenizer = None if options.pack is None else options.pack.tokenizer
    given = access.credentials, None if tokenizer is None else tokenizer.call.tokenizer
    return tuple(each for each in given if each is not None)


class BuiltDataset(TableDataset):
    """A data set that `build` made.

    It keeps what it was made of: `pack_tokens` makes another one of it, `refresh` looks for newer data.
    """

    _built_from: tuple[Found, TableOptions] | None = None
    # With refresh="epoch", the epoch that the present data are for; None for the next one that is asked for.
    _epoch_of_data: int | None = None

    def _begin(self, stages: Stages, found: Found, options: TableOptions) -> Self:
        TableDataset.__init__(self, stages)
        self._built_from = found, options
        self.progress.files_may_change = options.refresh is not None
        return self

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot (or Delta's version) that is read now; None for plain files, and for a table without one."""
        snapshot = self.planner.inventory.snapshot
        return None if snapshot is None else snapshot.snapshot_id

    def refresh(self) -> DataChange:
        """Look for newer data, and read them from the next epoch on; call it on every rank, between epochs.

        The newest snapshot of the table or its branch (of an increment, what was added since), or the files that are
        there by now. In a process group, all ranks get what rank 0 finds. If it raises, the data stay as they were.

        Returns:
            What changed; false if nothing did. It is logged, and `plan.explain()` shows it.

        Raises:
            ConfigError: inside an epoch; in a blend, or in a copy in another process; several ranks without a process
                group; a rank that goes on without it. A column of `columns` or `filters` is gone.
            SchemaError: columns that are delivered have other types now, or are others.
            FileChangedError: the next increment is of another table, which has replaced this one.
            NoDataError, DataError, StoreError: as when the data set was made.
        """
        if self._built_from is None or self.keeps_data:
            raise ConfigError(
                "refresh of a data set that a blend reads, or of a copy in another process: its data stay as they are. "
                "Refresh before the data set goes there, and make a new blend."
            )
        self.progress.check_between_epochs()
        found, options = self._built_from
        peers, present = self.stages.peers, self.planner.inventory
        is_shared = check_refreshable(self.topology.num_ranks, peers)
        if is_shared and self.compared is not None:
            self.compared.meet("refresh()")
        # Ranks were checked when this data set was made.
        asked = replace(
            options,
            check_ranks=False,
            broadcast_inventory=is_shared or options.broadcast_inventory,
            identity=options.identity if found.inventory.files.contents is None else "content",
        )
        source = found.newest(found.inventory)
        inventory, access = source.find(asked)
        if inventory.fingerprint() == found.inventory.fingerprint():
            change = DataChange(before=present.source, after=present.source, is_changed=False)
        else:
            check_continues(found.inventory, inventory, options.columns)
            newer = Found(inventory=inventory, access=access, source=source)
            stages = _build_stages(newer, asked, self.topology.num_ranks, self.rank, peers)
            change = DataChange.between(present, stages.planner.inventory)
            noted = replace(stages.planner.inventory, notes=(*stages.planner.inventory.notes, str(change)))
            planner = replace(stages.planner, inventory=noted)
            self.change_data(replace(stages, planner=planner, compared=self.stages.compared))
            self._built_from = newer, options
            warn_about(self.plan)
        self._epoch_of_data = None
        _log.info("%s", change)
        return change

    def set_epoch(self, epoch: int) -> None:
        """See TableDataset.set_epoch. With refresh="epoch", another epoch begins with the newest data."""
        if self._epoch_of_data is None and self.progress.has_begun_in_workers:
            self._epoch_of_data = self.epoch
        super().set_epoch(epoch)
        if self._follows and self._epoch_of_data not in (None, self.epoch):
            self.refresh()
        self._epoch_of_data = self.epoch

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See TableDataset.load_state_dict."""
        super().load_state_dict(state)
        # At the start of an epoch, that one is still to look for its data.
        is_new = self.epoch > 0 and not self.next_position.segments
        self._epoch_of_data = self.epoch - 1 if is_new else self.epoch

    def before_pass(self) -> None:
        """With refresh="epoch", refresh for an epoch that set_epoch has not begun."""
        if self._follows and (self.progress.has_finished or self._epoch_of_data not in (None, self.epoch)):
            self.refresh()
        self._epoch_of_data = self.epoch

    @property
    def _follows(self) -> bool:
        """Whether this refreshes itself; workers of a DataLoader read what the trainer's process found."""
        return self._built_from is not None and self._built_from[1].refresh is not None and get_worker_info() is None

    @classmethod
    def _with_loader(cls, kind: type[Source], arguments: Mapping[str, Any]) -> tuple[TableDataLoader, Self]:
        """A loader and its data set; kind: the class of the source, arguments: all of `create_dataloader`."""
        check_names(arguments, (*names_of(kind, TableOptions), *sorted(LOADER_OPTIONS)))
        loader_options = {name: value for name, value in arguments.items() if name in LOADER_OPTIONS}
        checked, options = check_loader_options(loader_options), chosen(TableOptions, arguments)
        dataset, loader = build(chosen(kind, arguments), options, cls.__new__(cls)._begin, checked)
        return loader, dataset

    def pack_tokens(self, column: str, sequence_length: int, **packing: Unpack[PackTokensKeywords]) -> TableDataset:
        """This data set with documents of a list column as samples of one length, in a new data set at epoch 0.

        All options stay but `columns`; `batch_size` and `shuffle_rows` then count samples. The same data set as that of
        `create_dataloader(..., pack=pack_tokens(...))`, for those who build their own DataLoader.

        Args: see `torch_dataloader_utils.pack_tokens`.

        Raises:
            ConfigError: a value out of range, a column that holds no tokens, options that do not go with packing.
            DataError, StoreError: counting samples needed a read, and it failed.
        """
        if self._built_from is None:
            raise ConfigError("pack_tokens on a copy in another process: pack before the data set goes there.")
        found, options = self._built_from
        # Ranks were checked when this data set was made.
        options = replace(
            options, pack=pack_tokens(column, sequence_length, **packing), columns=None, check_ranks=False
        )
        packed, _ = build(found, options, lambda stages, *_: TableDataset(replace(stages, peers=self.stages.peers)))
        return packed

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes only iterate: they need neither a second inventory nor the caller's options.
        return {name: value for name, value in self.__dict__.items() if name != "_built_from"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRows:
    """The inventory of one data set, and what reads and shapes its row groups; all of it picklable.

    inventory: with live rows counted, unless the options say not to; with `pack` its rows are samples.
    delivered: the columns of its batches, in order.
    """

    inventory: Inventory
    delivered: pa.Schema
    reader: Reader | PackingReader
    shaper: Shaper


def build_rows(inventory: Inventory, options: TableOptions, access: StoreAccess, share: Share) -> TableRows:
    """Reader and shaper of a data set, and its inventory with what a filter leaves counted.

    share: how processes divide the counting.

    Raises:
        ConfigError: columns or options that do not fit the schema.
    """
    if options.pack is not None:
        return _build_samples(inventory, options, options.pack, access, share)
    inventory = stored_inventory(inventory, None)
    schema = decode_schema(inventory.schema)
    columns = tuple(schema.names if options.columns is None else options.columns)
    check_lineage(metadata_columns(columns, frozenset(schema.names)), inventory)
    schema = with_metadata_columns(schema, columns)
    delivered, shaper = _encoded_rows(select_fields(schema, columns), options)
    if options.token_batches is not None:
        column = options.token_batches.column
        check_has_lengths(schema, column, "token_batches")
        shaper = LengthShaper(shaper=shaper, column=column)
        columns = columns if column in columns else (*columns, column)
    # Read side by side and in their order, the columns of a stack may be its matrix as they lie.
    columns = tuple(dict.fromkeys(itertools.chain(*(options.stack or {}).values(), columns)))
    reader = make_reader(read_spec(inventory, options, access, columns))
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        if options.on_error == "skip":
            inventory = leave_out_bad_groups(inventory, reader, share, on_progress)
        if options.count_rows is not False:
            inventory = count_live_rows(inventory, reader, share, on_progress)
    return TableRows(inventory=inventory, delivered=delivered, reader=reader, shaper=shaper)


def _build_samples(
    inventory: Inventory, options: TableOptions, packing: TokenPacking, access: StoreAccess, share: Share
) -> TableRows:
    """`build_rows` with `pack`: the inventory counts samples, and the reader packs documents into them."""
    stored = stored_inventory(inventory, packing)
    fields = find_fields(decode_schema(stored.schema), packing)
    rows = make_reader(read_spec(stored, options, access, packing.columns))
    tokens = make_reader(read_spec(stored, options, access, (packing.column,)))
    reader = PackingReader(
        reader=tokenized(rows, packing.tokenizer, packing.outputs),
        counter=tokenized(tokens, packing.tokenizer),
        packing=packing,
        fields=fields,
    )
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        if options.on_error == "skip":
            good = leave_out_bad_groups(stored, rows, share, on_progress)
            inventory = inventory if good.num_groups == stored.num_groups else good
        packed = count_packed(inventory, reader, share, partial(read_lengths, on_progress=on_progress))
    delivered, shaper = _encoded_rows(pa.schema([(field.name, field.data_type) for field in fields]), options)
    return TableRows(inventory=packed, delivered=delivered, reader=reader, shaper=shaper)


def _encoded_rows(delivered: pa.Schema, options: TableOptions) -> tuple[pa.Schema, Shaper]:
    """The delivered columns in the types that `encode` makes of them, and what shapes their rows."""
    delivered = encoded_schema(delivered, options.encode)
    shaper: Shaper = make_shaper(
        options.output_format, delivered, columns=delivered.names, stack=options.stack, nulls=options.nulls
    )
    if options.encode:
        shaper = EncodingShaper(shaper=shaper, encoders=options.encode)
    return delivered, shaper


def read_spec(inventory: Inventory, options: TableOptions, access: StoreAccess, columns: tuple[str, ...]) -> ReadSpec:
    """The columns to read, of the rows that the options' filter keeps."""
    return ReadSpec(
        schema=inventory.schema,
        columns=columns,
        row_filter=options.filters,
        partition_columns=tuple(column.name for column in inventory.files.partitions),
        access=access,
        page_checksums=options.decoding.page_checksums,
        is_compiled=options.decoding.compiled,
    )


def _read_lengths(
    inventory: Inventory, options: TableOptions, budget: TokenBudget | None, access: StoreAccess, share: Share
) -> Lengths | None:
    """Whole tokens of every row where batches are limited by them (budget is not None), else None; reads them once.

    Raises:
        ConfigError: a row that exceeds the budget alone; row counts that are not known.
        DataError, StoreError: see Reader.read and Share.check_alike.
    """
    if budget is None or options.token_batches is None:
        return None
    column = options.token_batches.column
    reader = make_reader(read_spec(inventory, options, access, (column,)))
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        tokens = read_token_counts(inventory, reader, share, on_progress)
    check_rows_fit(tokens, inventory, budget, column)
    return tokens


def _row_bytes(delivered: pa.Schema) -> int:
    """Bytes of a row in its columns of fixed width."""
    return sum(_value_bits(column.type) for column in delivered) // 8


def _value_bits(data_type: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * _value_bits(data_type.value_type)
    return int(data_type.bit_width) if pa.types.is_primitive(data_type) else 0


def _decode_options(inventory: Inventory, options: TableOptions) -> DecodeOptions:
    """As many threads as processors for local files; more for remote files, for which threads mostly wait."""
    threads, worker_threads, small_bytes = options.threads, 1, _SMALL_BYTES
    if inventory.num_files and not open_store(inventory.files.paths[0]).is_local:
        worker_threads = options.decoding.threads or _REMOTE_THREADS
        threads = options.decoding.threads or max(threads, _REMOTE_THREADS)
        small_bytes = 0
    return DecodeOptions(
        threads=threads,
        budget_bytes=options.decoding.budget_bytes,
        worker_threads=worker_threads,
        small_bytes=small_bytes,
    )
