"""Documents of one row group of a column, as flat tokens and offsets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.errors import NullValueError, SchemaError

# Texts of one batch to the token lists of each.
Tokenizer = Callable[[list[str]], Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentBatch:
    """Document i is tokens[offsets[i]:offsets[i + 1]]; `null_count` rows were left out before."""

    tokens: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    null_count: int


def split_documents(column: pa.Array, tokenizer: Tokenizer | None, *, skips_nulls: bool, where: str) -> DocumentBatch:
    """The documents of a list column of integers, or of a text column through `tokenizer`.

    Raises:
        SchemaError: neither lists of integers, nor text with a tokenizer.
        NullValueError: a null token, or a null document without `skips_nulls`.
    """
    null_count = column.null_count
    if null_count and not skips_nulls:
        raise NullValueError(f"{where} has {null_count} null documents. Pass skips_nulls=True to leave them out.")
    present = column.drop_null()
    if tokenizer is not None:
        tokens, offsets = _tokenize(present, tokenizer, where)
    else:
        tokens, offsets = _flatten(present, where)
    return DocumentBatch(tokens=tokens, offsets=offsets, null_count=null_count)


def _flatten(column: pa.Array, where: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise SchemaError(f"{where} has the type {kind}; lists of integers are needed, or text and a tokenizer.")
    tokens = column.flatten()
    if tokens.null_count:
        raise NullValueError(f"{where} has {tokens.null_count} null tokens. A corpus has no null: clean the column.")
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(pc.list_value_length(column).to_numpy(zero_copy_only=False), out=offsets[1:])
    return tokens.to_numpy(zero_copy_only=False), offsets


def _tokenize(column: pa.Array, tokenizer: Tokenizer, where: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise SchemaError(f"{where} has the type {column.type}; a tokenizer needs text.")
    texts = column.to_pylist()
    lists = tokenizer(texts) if texts else []
    if len(lists) != len(texts):
        raise SchemaError(f"The tokenizer gave {len(lists)} token lists for the {len(texts)} texts of {where}.")
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(tokens) for tokens in lists], out=offsets[1:])
    pieces = [np.asarray(tokens, dtype=np.int64) for tokens in lists]
    return (np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)), offsets
