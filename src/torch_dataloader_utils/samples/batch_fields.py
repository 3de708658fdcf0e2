"""Finds the fields of a batch of samples, each with its Arrow type, from the columns of the data set."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.documents import is_integer_list, plain_type
from torch_dataloader_utils._arrow.schema import is_list, is_utf8
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.samples.named_tokenizer import PADS
from torch_dataloader_utils.samples.token_packing import PerDocument, PerToken, Source, TokenPacking, column_of, is_own
from torch_dataloader_utils.samples.tokenizing_reader import output_column, output_type


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedField:
    """Field of a batch.

    source: PerToken or PerDocument with the name of the column; None for a field that packing makes.
    data_type: Arrow type of the field in one sample.
    """

    name: str
    source: PerToken | PerDocument | None
    data_type: pa.DataType


def token_type(schema: pa.Schema, packing: TokenPacking) -> pa.DataType:
    """Return the integer type of the tokens in the packed column.

    Raises:
        ConfigError: the column does not exist, the column is not a list of integers (with a tokenizer: not text or
            conversations), or its type cannot hold eod or pad_id.
    """
    arrow = _column_type(schema, packing.column)
    if packing.tokenizer is None and not is_integer_list(arrow):
        raise ConfigError(
            f"pack_tokens: column {packing.column!r} is {arrow}, but tokens are a list of integers. For text pass "
            "tokenizer=, or tokenize first (torch_dataloader_utils.megatron.corpora.build_corpus does)."
        )
    if packing.tokenizer is not None and not packing.tokenizer.columns and not _is_text_or_conversation(arrow):
        raise ConfigError(
            f"pack_tokens: column {packing.column!r} is {arrow}, but a tokenizer takes text, or conversations (lists "
            "of structs). Leave tokenizer= out if the column holds tokens."
        )
    token = pa.int32() if packing.tokenizer is not None else arrow.value_type
    for name, value in (("eod", packing.eod or 0), ("pad_id", packing.pad_id)):
        if not _holds(token, value):
            raise ConfigError(f"pack_tokens: {name}={value} does not fit the column's {token} tokens.")
    return token


def _is_text_or_conversation(arrow: pa.DataType) -> bool:
    return is_utf8(arrow) or (is_list(arrow) and bool(pa.types.is_struct(arrow.value_type)))


def own_types(token: pa.DataType, packing: TokenPacking) -> dict[str, pa.DataType]:
    """Return the types of the fields that packing makes, in order."""
    length = packing.sequence_length
    return {
        "tokens": pa.list_(token, packing.sample_tokens),
        "positions": pa.list_(pa.int32(), length),
        "loss_mask": pa.list_(pa.bool8(), length),
        "cu_seqlens": pa.list_(pa.int32()),
        "document_file": pa.list_(pa.string()),
        "document_row_group": pa.list_(pa.int32()),
        "document_row": pa.list_(pa.int64()),
        "document_start": pa.list_(pa.int64()),
        "document_tokens": pa.list_(pa.int32()),
    }


def find_fields(schema: pa.Schema, packing: TokenPacking) -> tuple[PackedField, ...]:
    """Return the fields of a batch, in order. schema: Schema of the documents.

    Raises:
        ConfigError: see `token_type`; a field is neither made by packing nor a column; a per-token column does not hold
            numbers or bools; a column's type cannot hold eod or pad.
    """
    own = own_types(token_type(schema, packing), packing)
    return tuple(
        PackedField(name=name, source=None, data_type=own[name])
        if is_own(name, source)
        else _column_field(schema, name, source, packing)
        for name, source in packing.sources.items()
    )


def _column_field(schema: pa.Schema, name: str, source: Source, packing: TokenPacking) -> PackedField:
    if isinstance(source, PerToken) and source.output is not None:
        column, arrow = output_column(source.output), pa.list_(output_type(source.output))
    else:
        column = column_of(name, source)
        arrow = _column_type(schema, column)
    if not isinstance(source, PerToken | PerDocument):
        # Padding with 0 would train a model to say token 0.
        source = PerToken(pad=PADS.get(name, 0)) if is_list(arrow) else PerDocument()
    if isinstance(source, PerDocument):
        return PackedField(name=name, source=PerDocument(column=column), data_type=pa.list_(arrow))
    item = arrow.value_type if is_list(arrow) else arrow
    if not (pa.types.is_integer(item) or pa.types.is_floating(item) or pa.types.is_boolean(item)):
        raise ConfigError(
            f"pack_tokens: column {column!r} is {arrow}, but a value for each token is a number or a bool. Take it for "
            f"each document: fields={{{name!r}: PerDocument(column={column!r})}}."
        )
    if source.eod is not None and not is_list(arrow):
        raise ConfigError(
            f"pack_tokens: column {column!r} is {arrow}: all tokens of a document get its one value, the appended EOD "
            "too, and eod of PerToken is for lists. Leave eod out."
        )
    eod = source.pad if source.eod is None else source.eod
    for what, value in (("pad", source.pad), ("eod", eod)):
        if not _holds(item, value):
            raise ConfigError(
                f"pack_tokens: {what}={value!r} of PerToken does not fit the {item} of column {column!r}. "
                f"Choose another value: fields={{{name!r}: PerToken(pad=..., column={column!r})}}."
            )
    item = pa.bool8() if pa.types.is_boolean(item) else item
    source = PerToken(pad=source.pad, eod=eod, column=column)
    return PackedField(name=name, source=source, data_type=pa.list_(item, packing.sample_tokens))


def _column_type(schema: pa.Schema, column: str) -> pa.DataType:
    if schema.names.count(column) != 1:
        raise ConfigError(f"pack_tokens: column {column!r} is not in the data set; it has {schema.names}.")
    return plain_type(schema.field(column).type)


def _holds(item: pa.DataType, value: Any) -> bool:
    """Return whether the type can hold this value, but for rounding of fractions."""
    dtype = pa.array([], item).to_numpy(zero_copy_only=False).dtype
    try:
        held = np.asarray(value).astype(dtype)
    except (TypeError, ValueError, OverflowError):
        return False
    return held.ndim == 0 and (dtype.kind == "f" or bool(held == value))
