"""The rows of one data set: `build_rows` makes the reader and the shaper of its row groups, and counts what they give.

rows          a reader of the columns, a shaper of the output format
sequences=    the same, wrapped: the reader also reads the keys, and rows come with the places of sequences
pack=         a reader that packs documents into samples, a shaper of the samples
"""

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from torch_dataloader_utils._arrow.schema import column_names, decode_schema, is_list
from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.metadata_columns import check_lineage, metadata_columns
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.rank_agreement import shows_bars
from torch_dataloader_utils.datasets.row_counts import KeptArray, count_live_rows, leave_out_bad_groups, read_lengths
from torch_dataloader_utils.formats.task_source import NO_CHANGES, Changes, Conversion
from torch_dataloader_utils.samples.batch_fields import find_fields
from torch_dataloader_utils.samples.kept_tokens import KeptTokens
from torch_dataloader_utils.samples.packing_reader import PackingReader
from torch_dataloader_utils.samples.sample_counts import count_packed, stored_inventory
from torch_dataloader_utils.samples.sequence_counts import count_sequences
from torch_dataloader_utils.samples.sequence_reader import SequenceReader
from torch_dataloader_utils.samples.sequence_shaper import sequence_shaper
from torch_dataloader_utils.samples.sequences import Sequences
from torch_dataloader_utils.samples.token_packing import TokenPacking
from torch_dataloader_utils.samples.tokenizing_reader import tokenized
from torch_dataloader_utils.shape.lengths import LengthShaper, check_has_lengths
from torch_dataloader_utils.shape.prepare import PreparingShaper, log_objects, prepared_shaper
from torch_dataloader_utils.shape.specs import select_fields
from torch_dataloader_utils.tables.holdout import part_of
from torch_dataloader_utils.tables.metadata_columns import with_metadata_columns
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import Reader, make_reader


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRows:
    """Inventory of one data set, and the reader and shaper of its row groups; all picklable.

    Attributes:
        inventory: With live rows counted, unless the options say not to. With `pack` and `sequences`, its rows are
            samples.
        selected: Columns to deliver, in order, in their stored types.
        delivered: The same columns as batches have them.
    """

    inventory: Inventory
    selected: pa.Schema
    delivered: pa.Schema
    reader: Reader | PackingReader | SequenceReader
    shaper: Shaper

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in its delivered columns of fixed width."""
        return sum(_value_bits(column.type) for column in self.delivered) // 8


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
    keys: tuple[str, ...] = ()
    if options.sequences is not None:
        options.sequences.check_fits(schema, is_table=inventory.snapshot is not None)
        keys = options.sequences.key_columns
    names = schema.names if options.columns is None else options.columns
    check_lineage(metadata_columns(names, frozenset(schema.names)), inventory)
    schema = with_metadata_columns(schema, names)
    selected = select_fields(schema, names)
    delivered, shaper = _shaper(selected, options)
    changes = changes_of(shaper)
    if options.token_batches is not None:
        column = options.token_batches.column
        check_has_lengths(schema, column, "token_batches")
        if not is_list(schema.field(column).type):  # lengths are stored numbers, or bytes of text
            changes = changes.without(column)
        shaper, keys = LengthShaper(shaper=shaper, column=column), (column,)
    # If the columns of a stack are read one after the other, their memory may be the matrix already.
    stacked = itertools.chain.from_iterable((options.stack or {}).values())
    columns = column_names(schema, (*stacked, *selected.names, *keys))
    reader = make_reader(replace(read_spec(inventory, options, access, columns), changes=changes))
    rows = TableRows(inventory=inventory, selected=selected, delivered=delivered, reader=reader, shaper=shaper)
    if options.sequences is not None:
        return _with_sequences(rows, reader, options, options.sequences, access, share)
    if options.on_error == "skip" or (options.count_rows and not inventory.rows_are_known):
        return replace(rows, inventory=_counted(inventory, reader, options, share))
    return rows


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
    selected = pa.schema([(field.name, field.data_type) for field in fields])
    delivered, shaper = _shaper(selected, options)
    return TableRows(inventory=packed, selected=selected, delivered=delivered, reader=reader, shaper=shaper)


def _with_sequences(
    rows: TableRows, reader: Reader, options: TableOptions, sequences: Sequences, access: StoreAccess, share: Share
) -> TableRows:
    """Return rows with an inventory that counts sequences, and a reader of sequences."""
    columns = column_names(decode_schema(rows.inventory.schema), sequences.key_columns)
    keys = make_reader(read_spec(rows.inventory, options, access, columns))
    kept = KeptArray.of(rows.inventory, f"sequences {sequences.describe()}")
    with work_bar("row groups", is_wanted=shows_bars(options)) as on_progress:
        inventory = count_sequences(rows.inventory, keys, sequences, share, kept, on_progress)
    return replace(rows, inventory=inventory, reader=SequenceReader(reader=reader, sequences=sequences))


def _shaper(selected: pa.Schema, options: TableOptions) -> tuple[pa.Schema, Shaper]:
    """Return the schema of the columns that become batches, and the shaper. selected: Columns to deliver."""
    choices: dict[str, Any] = {name: getattr(options, name) for name in ("stack", "nulls", "encode", "dtypes")}
    prepared, shaper = prepared_shaper(options.output_format, selected, **choices)
    if options.columns is None and options.output_format in ("torch", "numpy") and options.rank == 0:
        log_objects(selected, prepared)
    if options.sequences is not None:
        # The shapers of its roles see some columns each; the shaper above has checked the options by all columns.
        shaper = sequence_shaper(options.output_format, selected, options.sequences, **choices)
    return prepared, shaper


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


def _value_bits(data_type: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * _value_bits(data_type.value_type)
    return int(data_type.bit_width) if pa.types.is_primitive(data_type) else 0
