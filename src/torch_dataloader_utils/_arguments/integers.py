"""Whole numbers that a user gives, as Python ints, since states and fingerprints are made of their text.

Numbers must fit into int64, as in arrays of rows, sizes and epochs. Seeds may be any whole number, taken modulo 2^64.
"""

import operator
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, SupportsIndex, TypeGuard, get_args

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

# Of int64, in which sums of rows and bytes are computed.
_LEAST, _MOST = -(2**63), 2**63 - 1


def is_integer(value: object) -> TypeGuard[SupportsIndex]:
    """Whether it is a whole number, one of numpy's too; True and "32" are none."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    try:
        operator.index(value)  # arrays and tensors have the method, and refuse unless they are one whole number
    except TypeError:
        return False
    return True


def check_integer(name: str, value: Any, *, least: int | None = None) -> int:
    """The value as a Python int.

        check_integer("rank", np.int32(3))  3      "3"  ConfigTypeError      2**63  ConfigError

    Raises:
        ConfigTypeError: no whole number. ConfigError: one below `least`, or beyond int64.
    """
    wanted = "a whole number" if least is None else f"a whole number of at least {least}"
    if not is_integer(value):
        raise ConfigTypeError(f"{name}={value!r}: pass {wanted}.")
    number = operator.index(value)
    if least is not None and number < least:
        raise ConfigError(f"{name}={number}: pass {wanted}.")
    if not _LEAST <= number <= _MOST:
        raise ConfigError(f"{name}={number}: pass {wanted} that int64 holds (2**63 - 1 at most).")
    return number


def check_epoch(value: Any) -> int:
    """The number of an epoch; the one after it is counted too, and has to fit into int64.

    Raises:
        ConfigTypeError, ConfigError: as `check_integer`.
    """
    epoch = check_integer("epoch", value, least=0)
    if epoch == _MOST:
        raise ConfigError(f"epoch={epoch}: no epoch can follow it. Pass one of at most 2**63 - 2.")
    return epoch


def check_seed(name: str, value: Any) -> int:
    """The value as a Python int, however large: seeds are taken modulo 2^64 (see `permute.random_words`).

    Raises:
        ConfigTypeError: no whole number.
    """
    if not is_integer(value):
        raise ConfigTypeError(f"{name}={value!r}: pass a whole number.")
    return operator.index(value)


def hold_integers(options: Any, *names: str, least: int | None = None) -> None:
    """Check these fields of a frozen dataclass from its `__post_init__`, and keep them as Python ints.

    None stays in fields whose type has it (`int | None`).

    Raises:
        ConfigTypeError, ConfigError: as `check_integer`.
    """
    optional = _optional_fields(options.__class__)
    for name in names:
        value = getattr(options, name)
        if value is not None or name not in optional:
            object.__setattr__(options, name, check_integer(name, value, least=least))


@cache  # called for every value, such as those of the states of 10,000 ranks that are merged
def _optional_fields(options: type) -> frozenset[str]:
    """The fields of a dataclass whose type has None."""
    return frozenset(field.name for field in fields(options) if NoneType in get_args(field.type))
