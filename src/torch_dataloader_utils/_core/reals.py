"""Numbers that a user gives and that need not be whole: shares, seconds."""

import math
from numbers import Real
from typing import Any

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


def check_not_negative(name: str, value: Any, *, what: str = "number") -> float:
    """The value as a Python float; numpy's numbers are taken, True, "0.5", NaN and infinity are not.

    what: "number of seconds", for messages.

    Raises:
        ConfigTypeError: no number. ConfigError: one below 0, or not finite.
    """
    wanted = f"{name}={value!r}: pass a finite {what}, 0 or more."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigTypeError(wanted)
    number = float(value)
    if not 0 <= number < math.inf:
        raise ConfigError(wanted)
    return number
