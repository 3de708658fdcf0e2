"""From an inventory and options to the reader and shaper of its rows; for iterable and map-style data sets."""

from dataclasses import dataclass

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.read.projection import ReadSpec
from torch_dataloader_utils.read.reader import Reader, make_reader
from torch_dataloader_utils.shape.lengths import LengthShaper, check_has_lengths
from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.tables.bad_groups import leave_out_bad_groups
from torch_dataloader_utils.tables.counting import count_live_rows
from torch_dataloader_utils.tables.rank_share import shows_bars
from torch_dataloader_utils.tables.row_lengths import check_rows_fit, read_token_counts
from torch_dataloader_utils.tables.table_options import TableOptions
from torch_dataloader_utils.token_packing.documents import token_type
from torch_dataloader_utils.token_packing.inventory import count_packed, stored_inventory
from torch_dataloader_utils.token_packing.options import TokenPacking
from torch_dataloader_utils.token_packing.reader import PackingReader


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRows:
    """The inventory of one data set, and what reads and shapes its row groups; all of it picklable.

    inventory: with live rows counted, unless the options say not to; with `pack` its rows are samples.
    """

    inventory: Inventory
    reader: Reader | PackingReader
    shaper: Shaper


def wire_rows(inventory: Inventory, options: TableOptions, access: StoreAccess, share: Share) -> TableRows:
    """Reader and shaper of a data set, and its inventory with what a filter leaves counted.

    share: how processes divide the counting.

    Raises:
        ConfigError: columns or options that do not fit the schema.
    """
    if options.pack is not None:
        return _wire_samples(inventory, options, options.pack, access, share)
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


def wire_lengths(
    inventory: Inventory, options: TableOptions, budget: TokenBudget | None, access: StoreAccess, share: Share
) -> Lengths | None:
    """Whole tokens of every row where batches are limited by them, else None; reads the column of `bucket_by` once.

    inventory, share: as `wire_rows` gives and takes them. budget: of a batch; None where tokens do not limit it.

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


def _wire_samples(
    inventory: Inventory, options: TableOptions, packing: TokenPacking, access: StoreAccess, share: Share
) -> TableRows:
    """`wire_rows` with `pack`: the inventory counts samples, and the reader packs documents into them."""
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
