"""Builds a data set and its loader: the five stages, one after the other. Nothing else wires them.

1. inventory   which files and row groups there are      files.py and iceberg.py find it; build_stages takes it
2. rows        what reads and shapes a row group         build_rows: a Reader, and a Shaper
3. plan        who reads what, in every epoch            Planner
4. stream      the rows of one rank as batches           Stages, which a TableDataset runs
5. loader      threads or worker processes around it     make_loader: a TableDataLoader
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._observe.progress import ProgressReporter
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import StoreAccess, open_store
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.rank_agreement import compared_options, counting_share, shows_bars
from torch_dataloader_utils.datasets.row_counts import (
    check_rows_fit,
    count_live_rows,
    leave_out_bad_groups,
    read_token_counts,
)
from torch_dataloader_utils.plan.planner import Planner
from torch_dataloader_utils.plan.problems import warn_about
from torch_dataloader_utils.plan.strategy_call import find_strategy
from torch_dataloader_utils.read.projection import ReadSpec
from torch_dataloader_utils.read.reader import Reader, make_reader
from torch_dataloader_utils.shape.lengths import LengthShaper, check_has_lengths
from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.shape.slab import TensorBatchCodec
from torch_dataloader_utils.stream.dataset import Stages, TableDataset
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.worker import Pipeline
from torch_dataloader_utils.tokens.pack.packing_reader import PackingReader
from torch_dataloader_utils.tokens.pack.sample_counts import count_packed, stored_inventory, token_type
from torch_dataloader_utils.tokens.pack.token_packing import TokenPacking

# Row groups of remote files that one process fetches at once; each takes one request or more.
_REMOTE_THREADS = 16

# For local row groups up to this size (500 rows of 10 numbers are 20 KB) Python takes as long as decoding, so one job
# decodes several.
_SMALL_BYTES = 64 << 10


def build_stages(inventory: Inventory, options: TableOptions, access: StoreAccess) -> Stages:
    """What a data set of this inventory runs; options: with the ranks as numbers.

    Raises:
        ConfigError: options that do not fit each other or the data.
        DataError, StoreError: rows had to be counted or measured, and could not be read.
    """
    num_ranks, rank = int(options.num_ranks), options.rank
    topology = options.topology(num_ranks)
    topology.check_rank(rank)
    strategy = find_strategy(options.split_strategy)
    plan_options = options.plan_options(strategy)
    share = counting_share(options, num_ranks, rank)

    # 2. Rows. What a filter leaves is counted here, so that the plan knows it.
    rows = build_rows(inventory, options, access, share)
    pipeline = Pipeline(
        reader=rows.reader,
        shaper=rows.shaper,
        codec=TensorBatchCodec() if options.output_format == "torch" else None,
        functions=options.functions,
        row_bytes=_row_bytes(rows.inventory, options),
    )

    # 3. Plan.
    budget = plan_options.token_budget(topology.batch_size)
    lengths = read_budgeted_lengths(rows.inventory, options, budget, access, share)
    planner = Planner(inventory=rows.inventory, options=plan_options, strategy=strategy, lengths=lengths)

    # 4. Stream.
    return Stages(
        planner=planner,
        pipeline=pipeline,
        topology=topology,
        rank=rank,
        num_processes=options.worker_processes,
        decode=_decode_options(rows.inventory, options),
        callbacks=(ProgressReporter(options.progress_interval_sec),) if options.show_progress else (),
        credentials=access.credentials,
        # Discovery has used obstore in this process already; see _store/obstore.py.
        start_method="forkserver" if access.remote.backend == "obstore" else None,
        compared=compared_options(options, num_ranks),
    )


def make_loader(dataset: TableDataset, options: Mapping[str, Any]) -> TableDataLoader:
    """5. Loader: that of a data set; warns of what the caller should know of the plan.

    options: checked options of torch's DataLoader, and callbacks.

    Raises:
        ConfigError: a function of the user cannot be sent to worker processes.
    """
    warn_about(dataset.plan())
    return TableDataLoader(dataset, **options)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRows:
    """The inventory of one data set, and what reads and shapes its row groups; all of it picklable.

    inventory: with live rows counted, unless the options say not to; with `pack` its rows are samples.
    """

    inventory: Inventory
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
    shaper = make_shaper(options.output_format, schema, columns=columns, stack=options.stack, nulls=options.nulls)
    if options.bucket_by is not None:
        check_has_lengths(schema, options.bucket_by, "bucket_by")
        shaper = LengthShaper(shaper=shaper, column=options.bucket_by)
        columns = columns if options.bucket_by in columns else (*columns, options.bucket_by)
    reader = make_reader(read_spec(inventory, options, access, columns))
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        if options.on_error == "skip":
            inventory = leave_out_bad_groups(inventory, reader, share, on_progress)
        if options.count_rows is not False:
            inventory = count_live_rows(inventory, reader, share, on_progress)
    return TableRows(inventory=inventory, reader=reader, shaper=shaper)


def read_budgeted_lengths(
    inventory: Inventory, options: TableOptions, budget: TokenBudget | None, access: StoreAccess, share: Share
) -> Lengths | None:
    """Whole tokens of every row where batches are limited by them, else None; reads the column of `bucket_by` once.

    inventory, share: as `build_rows` gives and takes them. budget: of a batch; None where tokens do not limit it.

    Raises:
        ConfigError: a row that exceeds the budget alone; row counts that are not known.
        DataError, StoreError: see Reader.read and Share.check_alike.
    """
    if budget is None or options.bucket_by is None:
        return None
    reader = make_reader(read_spec(inventory, options, access, (options.bucket_by,)))
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        tokens = read_token_counts(inventory, reader, share, on_progress)
    check_rows_fit(tokens, inventory, budget, options.bucket_by)
    return tokens


def _build_samples(
    inventory: Inventory, options: TableOptions, packing: TokenPacking, access: StoreAccess, share: Share
) -> TableRows:
    """`build_rows` with `pack`: the inventory counts samples, and the reader packs documents into them."""
    stored = stored_inventory(inventory, packing)
    token_type(decode_schema(stored.schema), packing)
    reader = PackingReader(reader=make_reader(read_spec(stored, options, access, (packing.column,))), packing=packing)
    if options.on_error == "skip":
        with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
            good = leave_out_bad_groups(stored, reader.reader, share, on_progress)
        inventory = inventory if good.num_groups == stored.num_groups else good
    packed = count_packed(inventory, reader, share)
    schema = decode_schema(packed.schema)
    shaper = make_shaper(
        options.output_format, schema, columns=packing.fields, stack=options.stack, nulls=options.nulls
    )
    return TableRows(inventory=packed, reader=reader, shaper=shaper)


def read_spec(inventory: Inventory, options: TableOptions, access: StoreAccess, columns: tuple[str, ...]) -> ReadSpec:
    """What a reader is to read: `columns` of the rows that the options' filter keeps."""
    return ReadSpec(
        schema=inventory.schema,
        columns=columns,
        row_filter=options.filters,
        partition_columns=tuple(column.name for column in inventory.files.partitions),
        access=access,
        page_checksums=options.page_checksums,
    )


def _row_bytes(inventory: Inventory, options: TableOptions) -> int:
    """Bytes of a delivered row in its columns of fixed width."""
    schema = decode_schema(inventory.schema)
    names = options.columns if options.pack is None else options.pack.fields
    return sum(_value_bits(schema.field(name).type) for name in (schema.names if names is None else names)) // 8


def _value_bits(data_type: Any) -> int:
    if pa.types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * _value_bits(data_type.value_type)
    return int(data_type.bit_width) if pa.types.is_primitive(data_type) else 0


def _decode_options(inventory: Inventory, options: TableOptions) -> DecodeOptions:
    """As many threads as processors for local files; more for remote files, for which threads mostly wait."""
    threads, worker_threads, small_bytes = options.threads, 1, _SMALL_BYTES
    if inventory.num_files and not open_store(inventory.files.paths[0]).is_local:
        worker_threads = options.decode_threads or _REMOTE_THREADS
        threads = options.decode_threads or max(threads, _REMOTE_THREADS)
        small_bytes = 0
    return DecodeOptions(
        threads=threads, budget_bytes=options.budget_bytes, worker_threads=worker_threads, small_bytes=small_bytes
    )
