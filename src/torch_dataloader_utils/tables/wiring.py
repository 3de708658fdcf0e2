"""Wires the stages of one data set: from an inventory and options to what `TableDataset` runs, and its loader.

`datasets.py` and `iceberg.py` find the inventory.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._observe.progress import ProgressReporter
from torch_dataloader_utils._store import StoreAccess, open_store
from torch_dataloader_utils.plan.planner import Planner
from torch_dataloader_utils.plan.problems import warn_about
from torch_dataloader_utils.plan.strategy_call import find_strategy
from torch_dataloader_utils.shape.slab import TensorBatchCodec
from torch_dataloader_utils.stream.dataset import Stages, TableDataset
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.worker import Pipeline
from torch_dataloader_utils.tables.rank_share import compared_options, counting_share
from torch_dataloader_utils.tables.table_options import TableOptions
from torch_dataloader_utils.tables.table_rows import wire_lengths, wire_rows

# Row groups of remote files that one process fetches at once; each takes one request or more.
_REMOTE_THREADS = 16

# For local row groups up to this size (500 rows of 10 numbers are 20 KB) Python takes as long as decoding, so one job
# decodes several.
_SMALL_BYTES = 64 << 10


def wire(inventory: Inventory, options: TableOptions, access: StoreAccess) -> Stages:
    """The stages of one data set; options: with the ranks as numbers."""
    num_ranks, rank = int(options.num_ranks), options.rank
    topology = options.topology(num_ranks)
    topology.check_rank(rank)
    strategy = find_strategy(options.split_strategy)
    plan_options = options.plan_options(strategy)
    share = counting_share(options, num_ranks, rank)
    rows = wire_rows(inventory, options, access, share)
    budget = plan_options.token_budget(topology.batch_size)
    lengths = wire_lengths(rows.inventory, options, budget, access, share)
    planner = Planner(inventory=rows.inventory, options=plan_options, strategy=strategy, lengths=lengths)
    return Stages(
        planner=planner,
        pipeline=Pipeline(
            reader=rows.reader,
            shaper=rows.shaper,
            codec=TensorBatchCodec() if options.output_format == "torch" else None,
            functions=options.functions,
            row_bytes=_row_bytes(rows.inventory, options),
        ),
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
    """The loader of a data set; warns of what the caller should know of the plan.

    options: checked options of torch's DataLoader, and callbacks.

    Raises:
        ConfigError: a function of the user cannot be sent to worker processes.
    """
    warn_about(dataset.plan())
    return TableDataLoader(dataset, **options)


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
