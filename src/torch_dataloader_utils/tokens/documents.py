"""Documents of one row group of a column, as flat tokens and offsets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import NullValueError, SchemaError, of_type
from torch_dataloader_utils.tokens.plain_layout import is_integer_list, list_offsets, plain_type, to_plain

# Takes the texts of one batch; gives per text one flat list, or array, of whole numbers.
Tokenizer = Callable[[list[str]], Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentBatch:
    """Document i is tokens[offsets[i]:offsets[i + 1]]; `null_count` null rows are not among them."""

    tokens: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    null_count: int


def split_documents(column: pa.Array, tokenizer: Tokenizer | None, *, skips_nulls: bool, where: str) -> DocumentBatch:
    """The documents of a list column of integers, or of a text column through `tokenizer`.

    Raises:
        SchemaError: neither lists of integers, nor text with a tokenizer; or the tokenizer did not give one flat list
            of integers per text.
        NullValueError: a null token, or a null document without `skips_nulls`.
    """
    column = to_plain(column)
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
    kind = plain_type(column.type)
    if not is_integer_list(kind):
        raise SchemaError(f"{where} has the type {kind}; lists of integers are needed, or text and a tokenizer.")
    tokens = column.flatten()
    if tokens.null_count:
        raise NullValueError(f"{where} has {tokens.null_count} null tokens. A corpus has no null: clean the column.")
    return tokens.to_numpy(zero_copy_only=False), list_offsets(column)


def _tokenize(column: pa.Array, tokenizer: Tokenizer, where: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise SchemaError(f"{where} has the type {column.type}; a tokenizer needs text.")
    texts = column.to_pylist()
    lists = tokenizer(texts) if texts else []
    if isinstance(lists, Mapping):
        raise SchemaError(
            f"The tokenizer gave a mapping with {sorted(map(str, lists))} for the texts of {where}, not their token "
            'lists. For one of Hugging Face pass a function that returns tokenizer(texts)["input_ids"].'
        )
    if not hasattr(lists, "__len__") or len(lists) != len(texts):
        given = f"{len(lists)} token lists" if hasattr(lists, "__len__") else of_type(lists)
        raise SchemaError(f"The tokenizer gave {given} for the {len(texts)} texts of {where}; give one list a text.")
    pieces = [_check_tokens(tokens, text, where) for text, tokens in enumerate(lists)]
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([piece.size for piece in pieces], out=offsets[1:])
    return (np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)), offsets


def _check_tokens(tokens: Any, text: int, where: str) -> npt.NDArray[np.int64]:
    """The tokens of text number `text` as an array; nothing is rounded, parsed or flattened."""
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError) as error:  # lists of several lengths, a tensor on a GPU
        raise SchemaError(_describe_tokens(type(tokens).__name__, text, where)) from error
    # numpy makes an empty list one of floats.
    is_integer = array.size == 0 or array.dtype.kind in "iu"
    if array.ndim != 1 or not is_integer:
        raise SchemaError(_describe_tokens(f"{array.dtype} array of shape {array.shape}", text, where))
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 1 << 63:
        raise SchemaError(_describe_tokens(f"token {array.max()}, which is beyond int64,", text, where))
    return array.astype(np.int64, copy=False)


def _describe_tokens(given: str, text: int, where: str) -> str:
    return (
        f"The tokenizer gave a {given} for text {text} (of those that are not null) of {where}. Let it give one flat "
        "list of whole numbers a text."
    )
