"""Builds data sets and loaders. `build` wires the stages, in five steps; nothing else does.

StructuredDataset, IcebergDataset, DeltaDataset    all five
RowDataset                                         the first two
"""

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol, TypeVar, overload

import pyarrow as pa

from torch_dataloader_utils import _decoder
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import FileFormat, Inventory
from torch_dataloader_utils._core.metadata_columns import check_lineage, metadata_columns
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._observe.progress import ProgressReporter
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import Foresight, StoreAccess, open_store
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.rank_agreement import (
    compared_options,
    counting_share,
    ranks_of,
    shows_bars,
)
from torch_dataloader_utils.datasets.row_counts import (
    check_rows_fit,
    count_live_rows,
    leave_out_bad_groups,
    null_counts,
    read_lengths,
    read_token_counts,
)
from torch_dataloader_utils.plan.planner import Planner
from torch_dataloader_utils.plan.problems import warn_about
from torch_dataloader_utils.plan.strategy_call import find_strategy
from torch_dataloader_utils.ranks.resolve import mesh_members
from torch_dataloader_utils.samples.batch_fields import find_fields
from torch_dataloader_utils.samples.packing_reader import PackingReader
from torch_dataloader_utils.samples.sample_counts import count_packed, stored_inventory
from torch_dataloader_utils.samples.text import tokenized
from torch_dataloader_utils.samples.token_packing import TokenPacking
from torch_dataloader_utils.shape.convert import counted_nulls_error, refuses_nulls
from torch_dataloader_utils.shape.encode import EncodingShaper, encoded_schema
from torch_dataloader_utils.shape.lengths import LengthShaper, check_has_lengths
from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.shape.slab import TensorBatchCodec
from torch_dataloader_utils.shape.specs import column_specs, select_fields
from torch_dataloader_utils.stream.dataset import Stages, TableDataset
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.worker import Pipeline
from torch_dataloader_utils.tables.metadata_columns import with_metadata_columns
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import Reader, make_reader

_log = logging.getLogger(__name__)

# Row groups of remote files that one process fetches at once; each takes one request or more.
_REMOTE_THREADS = 16

# For local row groups up to this size (500 rows of 10 numbers are 20 KB) Python takes as long as decoding, so one job
# decodes several.
_SMALL_BYTES = 64 << 10


class Source(Protocol):
    """Where the data of a data set is: files, a table of Iceberg or Delta, or `Found` for what was found before."""

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
# Makes a data set from its stages and what they were built from.
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
    dataset = make(build_stages(found, options, num_ranks, rank, peers), found, options)

    # 5. Loader.
    if loader_options is None:
        return dataset, None
    warn_about(dataset.plan)
    return dataset, TableDataLoader(dataset, **loader_options)


@cache
def _log_no_decoder() -> None:
    """Log it, once a process."""
    _log.warning(
        "The compiled decoder is not installed: pyarrow decodes all columns, which takes longer, with the same rows. "
        "Install a wheel that has it, or build with a C compiler; Decoding(compiled=False) leaves it out on purpose."
    )


def build_stages(
    found: Found, options: TableOptions, num_ranks: int, rank: int, peers: tuple[int, ...] | None
) -> Stages:
    """Steps 2 to 4 of `build`, for data that have been found."""
    access, share = found.access, counting_share(options, num_ranks, rank)
    topology, strategy = options.topology(num_ranks), find_strategy(options.split_strategy)
    topology.check_rank(rank)
    plan_options = options.plan_options(strategy)

    # 2. Rows: a reader and a shaper. Rows that a filter leaves are counted here, so that the plan knows how many.
    rows = build_rows(found.inventory, options, access, share)
    if options.decoding.compiled and not _decoder.IS_BUILT and FileFormat.PARQUET in rows.inventory.files.formats:
        _log_no_decoder()
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
    _check_nulls(rows, options, planner, topology)

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
    # If the columns of a stack are read one after the other, their memory may be the matrix already.
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


def _check_nulls(rows: TableRows, options: TableOptions, planner: Planner, topology: Topology) -> None:
    """Check the nulls that metadata count against `nulls=`, before a row is read.

    Raises:
        NullValueError: columns with nulls that batches have no place for; all of them in one message.
    """
    if options.pack is not None or options.output_format in ("arrow", "dict"):
        return
    counts = null_counts(rows.inventory)
    refused = [
        spec for spec in column_specs(rows.delivered, options.nulls) if counts[spec.name] and refuses_nulls(spec)
    ]
    if refused and topology.drop_last:
        plan = planner.plan(Position(epoch=0, segment=Segment(topology=topology)))
        most = plan.dropped_rows if rows.inventory.rows_are_known else max(counts.values())
        refused = [spec for spec in refused if counts[spec.name] > most]
    if refused:
        raise counted_nulls_error(rows.inventory.source, refused, counts, options.nulls)


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
