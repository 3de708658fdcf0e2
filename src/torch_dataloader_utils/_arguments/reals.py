"""Numbers that a user gives and that need not be whole: shares, seconds."""

import math
from numbers import Real
from typing import Any

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


def check_not_negative(name: str, value: Any, *, what: str = "number", may_be_infinite: bool = False) -> float:
    """The value as a Python float; numpy's numbers are taken, True, "0.5" and NaN are not.

    what: "number of seconds", for messages.

    Raises:
        ConfigTypeError: no number. ConfigError: one below 0, or infinity where it is not allowed.
    """
    wanted = f"{name}={value!r}: pass a {'' if may_be_infinite else 'finite '}{what}, 0 or more."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigTypeError(wanted)
    number = float(value)
    if math.isnan(number) or number < 0 or (number == math.inf and not may_be_infinite):
        raise ConfigError(wanted)
    return number


def hold_not_negative(options: object, *names: str, what: str = "number", may_be_infinite: bool = False) -> None:
    """Check these fields of a frozen dataclass from its `__post_init__`, and keep them as Python floats.

    Raises:
        ConfigTypeError, ConfigError: as `check_not_negative`.
    """
    for name in names:
        number = check_not_negative(name, getattr(options, name), what=what, may_be_infinite=may_be_infinite)
        object.__setattr__(options, name, number)
