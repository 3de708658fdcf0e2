"""The composition root: `build` makes a data set and its loader in five steps.

StructuredDataset, IcebergDataset, DeltaDataset    all five
RowDataset                                         the first two
"""

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

import pyarrow as pa

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.schema import column_names, decode_schema, is_list
from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import FileFormat, Inventory
from torch_dataloader_utils._core.metadata_columns import check_lineage, metadata_columns
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._observe.progress import ProgressReporter
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._runtime.system_limits import memory_bytes
from torch_dataloader_utils._store import Foresight, StoreAccess, open_store
from torch_dataloader_utils.cache.kept_values import token_cache
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.rank_agreement import Ranks, compared_options, counting_share, shows_bars
from torch_dataloader_utils.datasets.row_counts import (
    KeptArray,
    check_rows_fit,
    count_live_rows,
    leave_out_bad_groups,
    null_counts,
    read_lengths,
    read_token_counts,
)
from torch_dataloader_utils.datasets.source import Source, find_inventory
from torch_dataloader_utils.errors import ConfigError, plural
from torch_dataloader_utils.formats.registry import format_of
from torch_dataloader_utils.formats.task_source import NO_CHANGES, Changes, Conversion
from torch_dataloader_utils.plan.planner import Planner
from torch_dataloader_utils.plan.problems import warn_about
from torch_dataloader_utils.plan.strategy_call import find_strategy
from torch_dataloader_utils.plan.windows import held_bytes
from torch_dataloader_utils.ranks.resolve import processes_of_host
from torch_dataloader_utils.samples.batch_fields import find_fields
from torch_dataloader_utils.samples.kept_tokens import KeptTokens
from torch_dataloader_utils.samples.packing_reader import PackingReader
from torch_dataloader_utils.samples.sample_counts import count_packed, stored_inventory
from torch_dataloader_utils.samples.sequence_counts import count_sequences
from torch_dataloader_utils.samples.sequence_reader import SequenceReader
from torch_dataloader_utils.samples.sequence_shaper import sequence_shaper
from torch_dataloader_utils.samples.sequences import Sequences
from torch_dataloader_utils.samples.text import tokenized
from torch_dataloader_utils.samples.token_packing import TokenPacking
from torch_dataloader_utils.shape.arrow_types import ListType
from torch_dataloader_utils.shape.convert import counted_nulls_error, refuses_nulls
from torch_dataloader_utils.shape.lengths import LengthShaper, check_has_lengths
from torch_dataloader_utils.shape.prepare import PreparingShaper, log_objects, prepared_shaper
from torch_dataloader_utils.shape.slab import TensorBatchCodec
from torch_dataloader_utils.shape.specs import column_specs, select_fields
from torch_dataloader_utils.stream.dataset import Stages, TableDataset
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LoaderOptions
from torch_dataloader_utils.stream.worker import Pipeline
from torch_dataloader_utils.tables.holdout import part_of
from torch_dataloader_utils.tables.metadata_columns import with_metadata_columns
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import Reader, make_reader

_log = logging.getLogger(__name__)

# Row groups of remote files that one process fetches at once; each takes one request or more. Small row groups are
# fetched more at once, up to so many and so many bytes: 1 MiB each, they fill a link of 200 MB/s in spite of a latency
# of 100 ms. With 64 threads the first batch waited for their start (up to 5 ms each, in the trainer's thread).
_REMOTE_THREADS, _MOST_REMOTE_THREADS = 16, 32
_REMOTE_BYTES = 64 << 20

# For local row groups up to this size (500 rows of 10 numbers are 20 KB) Python takes as long as decoding, so one job
# decodes several.
_SMALL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """Inventory that was found, how its files are reached, and the source for later refreshes."""

    inventory: Inventory
    access: StoreAccess
    source: Source


D = TypeVar("D", bound=TableDataset)


def build(
    source: Source,
    options: TableOptions,
    make: Callable[[Stages, Found, TableOptions], D],
    loader_options: LoaderOptions | None = None,
) -> tuple[TableDataLoader | None, D]:
    """Build a data set and its loader.

        inventory   the files and row groups
        rows        a reader of row groups, and a shaper that makes batches of rows
        planner     the rows of each rank and worker, in every epoch
        stream      the batches of one rank, as an iterable data set
        loader      threads or worker processes around it

    Args:
        make: Function that makes the data set of its stages and of the two values behind them.
        loader_options: None: no loader, since the caller has one.

    Raises:
        ConfigError: options that do not fit each other or the data. NoDataError: nothing to read.
        DataError, StoreError: files had to be looked at, or rows counted or measured, and could not be read.
    """
    ranks = Ranks.of(options)
    # The mesh would keep its process group for as long as the data set lives.
    options = replace(options, num_ranks=ranks.num_ranks, rank=ranks.rank, mesh=None)

    # 1. Inventory. All ranks agree on one.
    inventory, access = find_inventory(source, options, ranks)
    found = Found(inventory=inventory, access=access, source=source)

    # 2. Rows, 3. planner, 4. stream.
    dataset = make(build_stages(found, options, ranks), found, options)

    # 5. Loader.
    if loader_options is None:
        return None, dataset
    warn_about(dataset.plan)
    return TableDataLoader(dataset, **vars(loader_options)), dataset


@cache
def _log_no_decoder() -> None:
    """Log that the compiled decoder is missing, once in a process."""
    _log.warning(
        "The compiled decoder is not installed: pyarrow decodes all columns, which takes longer, with the same rows. "
        "Install a wheel that has it, or build with a C compiler; Decoding(compiled=False) leaves it out on purpose."
    )


def build_stages(found: Found, options: TableOptions, ranks: Ranks) -> Stages:
    """Build steps 2 to 4 of `build`, for data that was found."""
    access, share = found.access, counting_share(options, ranks)
    topology = options.topology(ranks.num_ranks)
    topology.check_rank(ranks.rank)
    strategy = None if options.split_strategy is None else find_strategy(options.split_strategy)
    plan_options = options.plan_options(strategy)

    # 2. Rows: a reader and a shaper. Rows that a filter leaves are counted here, so that the plan knows how many.
    rows = build_rows(found.inventory, options, access, share)

    if options.audit is not None and not rows.inventory.rows_are_known:
        raise ConfigError(
            "audit= needs known row counts: without them, nothing says which rows are missing. Leave count_rows out."
        )

    # 3. Planner. It needs the lengths of all rows if tokens limit batches.
    budget = plan_options.token_budget(topology.batch_size)
    lengths = None
    if budget is not None:
        lengths = _read_lengths(rows.inventory, options, plan_options.bucket_by, budget, access, share)
    planner = Planner(inventory=rows.inventory, options=plan_options, strategy=strategy, lengths=lengths)
    if rows.inventory.nulls or rows.inventory.files.partitions:
        _check_nulls(rows, options, planner, topology)
    open_bytes = _window_bytes(planner, topology, _row_bytes(rows.delivered)) * topology.num_workers

    # 4. Stream: the data set. It plans a pass, and runs the pipeline on the row groups of its rank.
    return Stages(
        planner=planner,
        pipeline=_pipeline(rows, options),
        topology=topology,
        rank=ranks.rank,
        num_processes=options.worker_processes,
        workers=options.workers,
        decode=_decode_options(rows.inventory, options, open_bytes),
        callbacks=(ProgressReporter(options.progress_interval_sec),) if options.show_progress else (),
        functions_to_check=_functions_of_readers(access, options),
        # Discovery has used obstore in this process already; see _store/obstore.py.
        start_method="forkserver" if access.remote.backend == "obstore" else None,
        peers=ranks.peers,
        compared={} if ranks.peers is None else compared_options(options, ranks.num_ranks),
        row_tokens=0 if options.pack is None else options.pack.sequence_length,
        audit=options.audit,
        foresight=_foresight(options, access),
    )


def _foresight(options: TableOptions, access: StoreAccess) -> Foresight | None:
    """Return what announces reads to the cache of remote bytes, or of tokens."""
    cache = access.remote.cache
    if cache is None and options.pack is not None and options.pack.tokenizer is not None:
        cache = token_cache() if options.pack.tokenizer.keeps_tokens else None
    return None if cache is None else Foresight(access=access, cache=cache)


def _pipeline(rows: "TableRows", options: TableOptions) -> Pipeline:
    if options.decoding.compiled and not _engine.IS_BUILT and FileFormat.PARQUET in rows.inventory.files.formats:
        _log_no_decoder()
    return Pipeline(
        reader=rows.reader,
        shaper=rows.shaper,
        codec=TensorBatchCodec() if options.output_format == "torch" else None,
        functions=options.functions,
        row_bytes=_row_bytes(rows.delivered) * (options.sequences.sequence_rows if options.sequences else 1),
        notes_origins=options.audit is not None,
    )


def _functions_of_readers(access: StoreAccess, options: TableOptions) -> tuple[Callable[..., Any], ...]:
    tokenizer = None if options.pack is None else options.pack.tokenizer
    given = access.credentials, None if tokenizer is None else tokenizer.call.tokenizer
    return tuple(each for each in given if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRows:
    """Inventory of one data set, and the reader and shaper of its row groups; all picklable.

    Attributes:
        inventory: With live rows counted, unless the options say not to. With `pack` and `sequences`, its rows are
            samples.
        delivered: Columns of the batches, in order.
    """

    inventory: Inventory
    delivered: pa.Schema
    reader: Reader | PackingReader | SequenceReader
    shaper: Shaper


def build_rows(inventory: Inventory, options: TableOptions, access: StoreAccess, share: Share) -> TableRows:
    """Build the reader and shaper of a data set, and count the rows of its inventory that a filter leaves.

    Args:
        share: How processes divide the counting.

    Raises:
        ConfigError: columns or options that do not fit the schema.
    """
    if inventory.holdout != options.holdout:
        inventory = part_of(stored_inventory(inventory), options.holdout, options.threads)
    if options.pack is not None:
        return _build_samples(inventory, options, options.pack, access, share)
    schema = decode_schema(inventory.schema)
    columns = tuple(schema.names)
    if options.columns is not None:
        columns = tuple(options.columns)
        check_lineage(metadata_columns(columns, frozenset(schema.names)), inventory)
        schema = with_metadata_columns(schema, columns)
    selected = select_fields(schema, columns)
    if options.sequences is not None:
        return _build_sequences(inventory, options, options.sequences, selected, access, share)
    columns = tuple(selected.names)
    delivered, shaper = _shaper(selected, options)
    changes = changes_of(shaper)
    if options.token_batches is not None:
        column = options.token_batches.column
        check_has_lengths(schema, column, "token_batches")
        if not is_list(schema.field(column).type):  # lengths are stored numbers, or bytes of text
            changes = changes.without(column)
        shaper = LengthShaper(shaper=shaper, column=column)
        columns = columns if column in columns else (*columns, column)
    if options.stack is not None:
        # If the columns of a stack are read one after the other, their memory may be the matrix already.
        columns = column_names(schema, itertools.chain(*options.stack.values(), columns))
    spec = read_spec(inventory, options, access, columns)
    reader = make_reader(replace(spec, changes=changes))
    if options.on_error == "skip" or (options.count_rows and not inventory.rows_are_known):
        inventory = _counted(inventory, reader, options, share)
    return TableRows(inventory=inventory, delivered=delivered, reader=reader, shaper=shaper)


def changes_of(shaper: Shaper) -> Changes:
    """Return the changes of columns that a reader may make for a shaper."""
    if not isinstance(shaper, PreparingShaper):
        return NO_CHANGES
    conversions = {name: Conversion(target.data_type, target.loss) for name, target in shaper.conversions.items()}
    return Changes(conversions, shaper.leaves, shaper.dictionaries)


def _counted(inventory: Inventory, reader: Reader, options: TableOptions, share: Share) -> Inventory:
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        if options.on_error == "skip":
            inventory = leave_out_bad_groups(inventory, reader, share, on_progress)
        if options.count_rows:
            inventory = count_live_rows(inventory, reader, share, on_progress)
    return inventory


def _build_samples(
    inventory: Inventory, options: TableOptions, packing: TokenPacking, access: StoreAccess, share: Share
) -> TableRows:
    """`build_rows` with `pack`: the inventory counts samples, and the reader packs documents into them."""
    stored = stored_inventory(inventory)
    fields = find_fields(decode_schema(stored.schema), packing)
    rows = make_reader(read_spec(stored, options, access, packing.columns))
    tokens = make_reader(read_spec(stored, options, access, packing.token_columns))
    skips, kept = options.on_error == "skip", KeptTokens.of(access)
    reader = PackingReader(
        reader=tokenized(rows, packing.tokenizer, packing.outputs, skips_bad_rows=skips, kept=kept),
        # With all outputs, since it keeps what the first epoch reads.
        counter=tokenized(tokens, packing.tokenizer, packing.outputs, skips_bad_rows=skips, kept=kept),
        packing=packing,
        fields=fields,
    )
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        if skips:
            good = leave_out_bad_groups(stored, rows, share, on_progress)
            inventory = inventory if good.num_groups == stored.num_groups else good
        packed = count_packed(inventory, reader, share, partial(read_lengths, on_progress=on_progress))
    delivered, shaper = _shaper(pa.schema([(field.name, field.data_type) for field in fields]), options)
    return TableRows(inventory=packed, delivered=delivered, reader=reader, shaper=shaper)


def _build_sequences(
    inventory: Inventory,
    options: TableOptions,
    sequences: Sequences,
    selected: pa.Schema,
    access: StoreAccess,
    share: Share,
) -> TableRows:
    """`build_rows` with `sequences`: the inventory counts sequences. selected: Columns to deliver."""
    if sequences.order is None and inventory.snapshot is not None:
        raise ConfigError(
            "Sequences without order= take rows in the order of files, and files of a table have random names. Pass "
            'order="timestamp", the column that orders the rows of a group.'
        )
    schema = decode_schema(inventory.schema)
    sequences.check_columns(schema)
    delivered, _ = _shaper(selected, options)
    shaper = sequence_shaper(
        options.output_format,
        selected,
        sequences,
        stack=options.stack,
        nulls=options.nulls,
        encode=options.encode,
        dtypes=options.dtypes,
    )
    keys = make_reader(read_spec(inventory, options, access, sequences.key_columns))
    columns = tuple(dict.fromkeys([*selected.names, *sequences.key_columns]))
    reader = make_reader(read_spec(inventory, options, access, columns))
    kept = KeptArray.of(inventory, f"sequences {sequences.describe()}")
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        counted = count_sequences(inventory, keys, sequences, share, kept, on_progress)
    return TableRows(
        inventory=counted,
        delivered=delivered,
        reader=SequenceReader(reader=reader, sequences=sequences),
        shaper=shaper,
    )


def _shaper(selected: pa.Schema, options: TableOptions) -> tuple[pa.Schema, Shaper]:
    """Return the schema of the columns that become batches, and the shaper of rows. selected: Columns to deliver."""
    prepared, shaper = prepared_shaper(
        options.output_format,
        selected,
        stack=options.stack,
        nulls=options.nulls,
        encode=options.encode,
        dtypes=options.dtypes,
    )
    if options.columns is None and options.output_format in ("torch", "numpy") and options.rank == 0:
        log_objects(selected, prepared)
    return prepared, shaper


def _check_nulls(rows: TableRows, options: TableOptions, planner: Planner, topology: Topology) -> None:
    """Check the nulls that metadata count against `nulls=`, before a row is read.

    Raises:
        NullValueError: batches have no place for the nulls of some columns. The message names all of these columns.
    """
    if options.pack is not None or options.output_format in ("arrow", "dict"):
        return
    counts = null_counts(rows.inventory)
    refusing = [spec for spec in column_specs(rows.delivered, options.nulls) if refuses_nulls(spec)]
    refused = [spec for spec in refusing if counts[spec.name]]
    if refused and topology.drop_last:
        plan = planner.plan(Position(epoch=0, segment=Segment(topology=topology)))
        most = plan.dropped_rows if rows.inventory.rows_are_known else max(counts.values())
        refused = [spec for spec in refused if counts[spec.name] > most]
    if refused:
        lists = [spec for spec in refusing if isinstance(spec.kind, ListType) and spec not in refused]
        raise counted_nulls_error(rows.inventory.source, refused, lists, counts, options.nulls)


def read_spec(inventory: Inventory, options: TableOptions, access: StoreAccess, columns: tuple[str, ...]) -> ReadSpec:
    """Return the request for these columns, in the rows that the filter of the options keeps."""
    return ReadSpec(
        schema=inventory.schema,
        columns=columns,
        row_filter=options.filters,
        partition_columns=tuple(column.name for column in inventory.files.partitions),
        access=access,
        page_checksums=options.decoding.page_checksums,
        is_compiled=options.decoding.compiled,
        holdout=options.holdout,
    )


def _read_lengths(
    inventory: Inventory, options: TableOptions, column: str, budget: TokenBudget, access: StoreAccess, share: Share
) -> Lengths:
    """Read the number of tokens of every row, the limit of batches.

    Raises:
        ConfigError: a row that exceeds the budget alone; row counts that are not known.
        DataError, StoreError: see Reader.read and Share.check_alike.
    """
    reader = make_reader(read_spec(inventory, options, access, (column,)))
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        tokens = read_token_counts(inventory, reader, share, on_progress)
    check_rows_fit(tokens, inventory, budget, column)
    return tokens


def _row_bytes(delivered: pa.Schema) -> int:
    """Return the bytes of a row in its columns of fixed width."""
    return sum(_value_bits(column.type) for column in delivered) // 8


def _value_bits(data_type: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * _value_bits(data_type.value_type)
    return int(data_type.bit_width) if pa.types.is_primitive(data_type) else 0


def _window_bytes(planner: Planner, topology: Topology, row_bytes: int) -> int:
    """Return the decoded bytes of the row groups that the shuffle windows of one worker hold; 0 without windows.

    Raises:
        ConfigError: windows of the default size need more memory than this host has.
    """
    options = planner.sized_options
    open_bytes, window_bytes = held_bytes(options, planner.space, topology, row_bytes)
    workers = topology.num_workers * processes_of_host()
    needed, memory = (open_bytes + window_bytes) * workers, memory_bytes()
    if options.default_windows and memory is not None and needed > memory:
        raise ConfigError(
            f"shuffle=True needs about {format_bytes(needed)} on this host, which has {format_bytes(memory)}: each of "
            f"{plural(workers, 'worker')} keeps row groups of {options.interleave} chunks decoded "
            f"({format_bytes(open_bytes)}), and three windows of {plural(options.shuffle_rows or 0, 'row')}. "
            'Pass shuffle="chunks" (rows stay in stored order), a smaller interleave=, fewer workers or '
            "columns=, or write smaller row groups. To have it tried anyway, pass shuffle_rows=."
        )
    return open_bytes


def _decode_options(inventory: Inventory, options: TableOptions, open_bytes: int) -> DecodeOptions:
    """Choose as many threads as processors for local files; more for remote files, since threads then mostly wait.

    open_bytes: decoded bytes that the shuffle windows of all workers hold, beside the bytes that are decoded ahead.
    """
    threads, worker_threads, small_bytes = options.threads, 1, _SMALL_BYTES
    if inventory.num_files and not open_store(inventory.files.paths[0]).is_local:
        at_once = inventory.num_groups * _REMOTE_BYTES // max(1, int(inventory.groups.projected_bytes.sum()))
        at_once = min(_MOST_REMOTE_THREADS, at_once) // max(1, options.worker_processes)
        worker_threads = options.decoding.threads or max(_REMOTE_THREADS, at_once)
        threads = options.decoding.threads or max(threads, worker_threads)
        small_bytes = 0
    # The projected bytes of text do not show how much memory its rows take.
    if any(format_of(number).is_text for number in set(inventory.files.formats.tolist())):
        small_bytes = 0
    if options.sequences is not None:  # a row group is read with rows of the next ones
        small_bytes = 0
    return DecodeOptions(
        threads=threads,
        budget_bytes=options.decoding.budget_bytes + open_bytes,
        worker_threads=worker_threads,
        small_bytes=small_bytes,
    )
