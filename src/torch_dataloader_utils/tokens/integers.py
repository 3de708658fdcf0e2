"""Whole numbers that a user gives."""

import operator
from typing import Any

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


def check_integer(name: str, value: Any, *, least: int) -> int:
    """The value as a Python int; numpy's integers are taken, True and "32" are not.

    Raises:
        ConfigTypeError: no whole number. ConfigError: one below `least`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigTypeError(f"{name}={value!r}: pass a whole number of at least {least}.")
    number = operator.index(value)
    if number < least:
        raise ConfigError(f"{name}={number}: pass a whole number of at least {least}.")
    return number
