"""The documents of one row group: a list column as one array of tokens, and where documents begin and end."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.errors import ConfigError, NullValueError
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.token_packing.options import TokenPacking
from torch_dataloader_utils.tokens.plain_layout import is_integer_list, list_offsets, plain_type, to_plain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """values: all tokens. offsets: document d is values[offsets[d]:offsets[d + 1]], int64 [documents + 1], from 0."""

    values: npt.NDArray[Any]
    offsets: Int64s

    @property
    def lengths(self) -> Int64s:
        """Tokens of each document, int64 [documents]."""
        return np.diff(self.offsets)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The column's integer type."""
        return self.values.dtype


def list_documents(column: pa.Array, where: str) -> Documents:
    """The documents of a list column; null lists are empty ones.

    Raises:
        NullValueError: a null among the tokens. where: names the row group in the message.
    """
    column = to_plain(column)
    tokens = column.flatten()
    if tokens.null_count:
        raise NullValueError(
            f"{where}: {tokens.null_count} tokens of {len(tokens)} are null. A token has no stand-in: write the file "
            "without them, or filter their rows out."
        )
    return Documents(values=tokens.to_numpy(), offsets=list_offsets(column))


def token_type(schema: pa.Schema, packing: TokenPacking) -> pa.DataType:
    """The integer type of the tokens in the packed column.

    Raises:
        ConfigError: no such column, one that is no list of integers, or an eod or pad_id that the type cannot hold.
    """
    if schema.names.count(packing.column) != 1:
        raise ConfigError(f"pack_tokens: column {packing.column!r} is not in the data set; it has {schema.names}.")
    arrow = plain_type(schema.field(packing.column).type)
    if not is_integer_list(arrow):
        raise ConfigError(
            f"pack_tokens: column {packing.column!r} is {arrow}, and tokens are a list of integers. For text, tokenize "
            "first (torch_dataloader_utils.tokens.build_corpus does)."
        )
    largest = (1 << (arrow.value_type.bit_width - pa.types.is_signed_integer(arrow.value_type))) - 1
    for name, value in (("eod", packing.eod or 0), ("pad_id", packing.pad_id)):
        if value > largest:
            raise ConfigError(f"pack_tokens: {name}={value} does not fit the column's {arrow.value_type} tokens.")
    return arrow.value_type


def flat_cu_seqlens(cu_seqlens: Ragged, sequence_length: int) -> Tensor:
    """The boundaries of B samples laid end to end, int32, from 0 to B * sequence_length.

    The end of one sample is the beginning of the next:

        samples [0, 3, 8] and [0, 8], sequence_length=8      0 3 8 16
    """
    ends = cu_seqlens.values
    samples = torch.arange(len(cu_seqlens), device=ends.device, dtype=ends.dtype)
    sample = torch.repeat_interleave(samples, cu_seqlens.lengths, output_size=len(ends))
    flat = (ends + sample * sequence_length)[ends > 0]
    return torch.cat([flat.new_zeros(1), flat])
