"""Token types of the .bin/.idx format: one byte of the header names the type.

Source: the code table of Megatron-Core's indexed data set. All types are little-endian on disk.
"""

from types import MappingProxyType
from typing import Any

import numpy as np

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils.errors import ConfigTypeError

TokenDtype = np.dtype[Any]

DTYPES: MappingProxyType[int, TokenDtype] = MappingProxyType(
    {
        1: np.dtype("<u1"),
        2: np.dtype("<i1"),
        3: np.dtype("<i2"),
        4: np.dtype("<i4"),
        5: np.dtype("<i8"),
        6: np.dtype("<f8"),
        7: np.dtype("<f4"),
        8: np.dtype("<u2"),
    }
)

# Not 65,536: existing corpora were written with this limit, and a few ids are kept for padding the vocabulary.
_UINT16_VOCABULARY_LIMIT = 65_500


def dtype_code(dtype: object) -> int:
    """The header byte of a numpy dtype (or anything numpy takes for one).

    Raises:
        ConfigTypeError: no type, or one that the format has no code for.
    """
    names = ", ".join(known.name for known in DTYPES.values())
    try:
        wanted = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise ConfigTypeError(f"{dtype!r} is no type of tokens; the format knows {names}.") from error
    for code, known in DTYPES.items():
        if known == wanted:
            return code
    raise ConfigTypeError(f"A token corpus cannot hold {wanted.name}; the format knows {names}.")


def select_dtype(vocabulary_size: int | None) -> TokenDtype:
    """The type a corpus of this vocabulary is written in: uint16 below 65,500 entries, else int32, else int64.

        vocabulary_size    65,499    65,500    2^31    2^31 + 1    None
        dtype              uint16    int32     int32   int64       int32

    Raises:
        ConfigTypeError, ConfigError: no whole number, or one below 1.
    """
    if vocabulary_size is None:
        return DTYPES[4]
    check_integer("vocabulary_size", vocabulary_size, least=1)
    if vocabulary_size < _UINT16_VOCABULARY_LIMIT:
        return DTYPES[8]
    return DTYPES[4] if vocabulary_size <= 2**31 else DTYPES[5]


def integer_limits(dtype: TokenDtype) -> tuple[int, int]:
    """The lowest and the highest integer between which the type holds all of them.

    uint16    0 and 65,535          float32    -2^24 and 2^24: 2^24 + 1 would become another token
    """
    if dtype.kind == "f":
        whole = 2 ** (int(np.finfo(dtype).nmant) + 1)
        return -whole, whole
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def wider_dtype(*tokens: int) -> str:
    """What to do about tokens that a corpus's type does not hold, for messages.

    tokens: those that do not fit, or the lowest and the highest of them.
    """
    for dtype in map(select_dtype, (1, 2**31, 2**31 + 1)):
        low, high = integer_limits(dtype)
        if all(low <= token <= high for token in tokens):
            return f"Pass dtype=np.{dtype.name}, which holds up to {high:,}; the default is int32."
    return f"The widest type of a corpus is {dtype.name}, up to {high:,}: check the tokens."
