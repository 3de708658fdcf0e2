"""Whole numbers that a user gives, as Python ints: states and fingerprints are texts of them."""

import operator
from dataclasses import fields
from types import NoneType
from typing import Any, SupportsIndex, TypeGuard, get_args

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


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

    Raises:
        ConfigTypeError: no whole number. ConfigError: one below `least`.
    """
    wanted = "a whole number" if least is None else f"a whole number of at least {least}"
    if not is_integer(value):
        raise ConfigTypeError(f"{name}={value!r}: pass {wanted}.")
    number = operator.index(value)
    if least is not None and number < least:
        raise ConfigError(f"{name}={number}: pass {wanted}.")
    return number


def hold_integers(options: Any, *names: str, least: int | None = None) -> None:
    """Check these fields of a frozen dataclass from its `__post_init__`, and keep them as Python ints.

    None stays in fields whose type has it (`int | None`).

    Raises:
        ConfigTypeError, ConfigError: as `check_integer`.
    """
    optional = {field.name for field in fields(options) if NoneType in get_args(field.type)}
    for name in names:
        value = getattr(options, name)
        if value is not None or name not in optional:
            object.__setattr__(options, name, check_integer(name, value, least=least))
