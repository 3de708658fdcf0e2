"""The composition root: `build` makes a data set and its loader in five steps.

StructuredDataset, IcebergDataset, DeltaDataset    all five
RowDataset                                         the first two
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from torch_dataloader_utils import _engine
from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import FileFormat, Inventory
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
from torch_dataloader_utils.datasets.row_counts import check_rows_fit, null_counts, read_token_counts
from torch_dataloader_utils.datasets.source import Source, find_inventory
from torch_dataloader_utils.datasets.table_rows import TableRows, build_rows, read_spec
from torch_dataloader_utils.errors import ConfigError, plural
from torch_dataloader_utils.formats.registry import format_of
from torch_dataloader_utils.plan.planner import Planner
from torch_dataloader_utils.plan.problems import warn_about
from torch_dataloader_utils.plan.strategy_call import find_strategy
from torch_dataloader_utils.plan.windows import held_bytes
from torch_dataloader_utils.ranks.resolve import processes_of_host
from torch_dataloader_utils.shape.arrow_types import ListType
from torch_dataloader_utils.shape.convert import counted_nulls_error, refuses_nulls
from torch_dataloader_utils.shape.slab import TensorBatchCodec
from torch_dataloader_utils.shape.specs import column_specs
from torch_dataloader_utils.stream.dataset import Stages, TableDataset
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.loader_options import LoaderOptions
from torch_dataloader_utils.stream.worker import Pipeline
from torch_dataloader_utils.tables.reader import make_reader

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
    open_bytes = _window_bytes(planner, topology, rows.row_bytes) * topology.num_workers

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


def _pipeline(rows: TableRows, options: TableOptions) -> Pipeline:
    if options.decoding.compiled and not _engine.IS_BUILT and FileFormat.PARQUET in rows.inventory.files.formats:
        _log_no_decoder()
    return Pipeline(
        reader=rows.reader,
        shaper=rows.shaper,
        codec=TensorBatchCodec() if options.output_format == "torch" else None,
        functions=options.functions,
        row_bytes=rows.row_bytes * (options.sequences.sequence_rows if options.sequences else 1),
        notes_origins=options.audit is not None,
    )


def _functions_of_readers(access: StoreAccess, options: TableOptions) -> tuple[Callable[..., Any], ...]:
    tokenizer = None if options.pack is None else options.pack.tokenizer
    given = access.credentials, None if tokenizer is None else tokenizer.call.tokenizer
    return tuple(each for each in given if each is not None)


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
