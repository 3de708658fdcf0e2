"""Options that are on or off, as Python bools. Text is refused, since even "false" is true in Python."""

import operator

import numpy as np

from torch_dataloader_utils._arguments.integers import is_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


def check_flag(name: str, value: object) -> bool:
    """The value as a Python bool; numpy's and the numbers 0 and 1 are taken.

        True  True      np.True_  True      0  False      "false"  ConfigTypeError      None  ConfigTypeError

    Raises:
        ConfigTypeError: neither on nor off.
    """
    if isinstance(value, bool | np.bool_) or (is_integer(value) and operator.index(value) in (0, 1)):
        return bool(value)
    raise ConfigTypeError(f"{name}={value!r}: pass True or False.")


def check_count_rows(value: object) -> bool:
    """Whether `count_rows` asks for counts; "auto" does.

    Raises:
        ConfigTypeError, ConfigError: none of "auto", True and False.
    """
    if isinstance(value, str) and value != "auto":
        raise ConfigError(f'count_rows={value!r}: pass "auto", True or False.')
    try:
        return isinstance(value, str) or check_flag("count_rows", value)
    except ConfigTypeError as error:
        raise ConfigTypeError(f'count_rows={value!r}: pass "auto", True or False.') from error


def hold_flags(options: object, *names: str) -> None:
    """Check these fields of a frozen dataclass from its `__post_init__`, and keep them as Python bools.

    Raises:
        ConfigTypeError: as `check_flag`.
    """
    for name in names:
        object.__setattr__(options, name, check_flag(name, getattr(options, name)))
