"""Byte counts as people write them."""

import re
from fractions import Fraction
from typing import Any

from torch_dataloader_utils._arguments.integers import check_integer, is_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

_POWERS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _POWERS[f"{_letter}B"] = 1000**_power
    _POWERS[f"{_letter}IB"] = 1024**_power


def parse_bytes(name: str, size: Any, *, least: int = 0) -> int:
    """A number of bytes: an int as it is, text with a decimal (KB, MB, GB, TB) or binary (KiB, MiB, ...) unit.

        "128 MiB"  134217728      "1gb"  1000000000      "7"  7

    name: of the option, for messages.

    Raises:
        ConfigTypeError: neither a whole number nor text. ConfigError: text that is no size, or fewer than `least`.
    """
    wanted = f"{name}={size!r} is no number of bytes: pass an int, or text such as '128MiB' or '1GB'."
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        if match is None or match[2].upper() not in _POWERS:
            raise ConfigError(wanted)
        size = int(Fraction(match[1]) * _POWERS[match[2].upper()])
    elif not is_integer(size):
        raise ConfigTypeError(wanted)
    number = check_integer(name, size)
    if number < least:
        raise ConfigError(f"{name}={number}: pass {least} or more bytes.")
    return number


def format_bytes(count: float) -> str:
    """A byte count for people: three significant digits, binary units.

    0  "0 B"      1000  "0.977 KiB"      134217728  "128 MiB"
    """
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"
