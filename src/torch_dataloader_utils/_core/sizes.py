"""Byte counts as people write them."""

import operator
import re
from typing import Any

from torch_dataloader_utils._core.integers import is_integer
from torch_dataloader_utils.errors import ConfigError

_POWERS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _POWERS[f"{_letter}B"] = 1000**_power
    _POWERS[f"{_letter}IB"] = 1024**_power


def parse_bytes(size: int | str) -> int:
    """A number of bytes: an int as it is, text with a decimal (KB, MB, GB, TB) or binary (KiB, MiB, ...) unit.

        "128 MiB"  134217728      "1gb"  1000000000      "7"  7

    Raises:
        ConfigError: no such number.
    """
    if is_integer(size):
        return operator.index(size)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    if match is None or match[2].upper() not in _POWERS:
        raise ConfigError(f"{size!r} is no number of bytes: pass an int, or text such as '128MiB' or '1GB'.")
    return int(float(match[1]) * _POWERS[match[2].upper()])


def check_bytes(name: str, size: Any) -> int:
    """The same for an option that may be 0 and not less.

    Raises:
        ConfigError: no such number.
    """
    number = parse_bytes(size)
    if number < 0:
        raise ConfigError(f"{name}={number}: pass 0 or more bytes.")
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
