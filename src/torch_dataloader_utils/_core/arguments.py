"""Check user input once, at the boundary, so that all other code can trust it.

In: the name of an option and its value. Out: the value as Python's own int, float, bool or tuple, or the same frozen
dataclass with Python's own numbers in its fields. numpy's numbers are accepted; text is not accepted as a number or
flag.

Promises: a wrong type is a ConfigTypeError, a wrong value a ConfigError; both name the option and say what to pass. A
state that does not fit is a CheckpointMismatchError. Not for checks that depend on the data or on another option.

Whole numbers must fit into int64, the dtype of arrays of rows, sizes and epochs. Seeds may be any whole number, taken
modulo 2^64.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from functools import cache
from numbers import Real
from types import NoneType
from typing import Any, SupportsIndex, TypeGuard, TypeVar, get_args

import numpy as np

from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError, of_type

T = TypeVar("T")

# The limits of int64, in which sums of rows and bytes are computed.
_LEAST, _MOST = -(2**63), 2**63 - 1


def is_integer(value: object) -> TypeGuard[SupportsIndex]:
    """Return whether the value is a whole number, Python's or numpy's; True and "32" are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    try:
        operator.index(value)  # arrays and tensors have the method, and refuse unless they hold one whole number
    except TypeError:
        return False
    return True


def check_integer(name: str, value: object, *, least: int | None = None) -> int:
    """Return the value as a Python int.

        check_integer("rank", np.int32(3))  3      "3"  ConfigTypeError      2**63  ConfigError

    Raises:
        ConfigTypeError: not a whole number. ConfigError: a number below `least`, or beyond int64.
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


def check_epoch(value: object) -> int:
    """Return the number of an epoch. The next epoch must fit into int64 too, because it is counted as well.

    Raises:
        ConfigTypeError, ConfigError: as `check_integer`.
    """
    epoch = check_integer("epoch", value, least=0)
    if epoch == _MOST:
        raise ConfigError(f"epoch={epoch}: no epoch can follow it. Pass an epoch of at most 2**63 - 2.")
    return epoch


def check_seed(name: str, value: object) -> int:
    """Return the value as a Python int of any size: seeds are taken modulo 2^64 (see `permute.random_words`).

    Raises:
        ConfigTypeError: not a whole number.
    """
    if not is_integer(value):
        raise ConfigTypeError(f"{name}={value!r}: pass a whole number.")
    return operator.index(value)


def hold_integers(options: Any, *names: str, least: int | None = None) -> None:
    """Convert these fields of a frozen dataclass to Python ints, from its `__post_init__`.

    None stays in fields whose type includes None (`int | None`).

    Raises:
        ConfigTypeError, ConfigError: as `check_integer`.
    """
    optional = _optional_fields(options.__class__)
    for name in names:
        value = getattr(options, name)
        if value is not None or name not in optional:
            object.__setattr__(options, name, check_integer(name, value, least=least))


@cache  # called for every value; merging the states of 10,000 ranks makes very many
def _optional_fields(options: type) -> frozenset[str]:
    """Return the fields of a dataclass that may be None."""
    return frozenset(field.name for field in fields(options) if NoneType in get_args(field.type))


def check_flag(name: str, value: object) -> bool:
    """Return the value as a Python bool; numpy's bools and the numbers 0 and 1 are accepted.

        True  True      np.True_  True      0  False      "false"  ConfigTypeError      None  ConfigTypeError

    Raises:
        ConfigTypeError: neither true nor false.
    """
    if isinstance(value, bool | np.bool_) or (is_integer(value) and operator.index(value) in (0, 1)):
        return bool(value)
    raise ConfigTypeError(f"{name}={value!r}: pass True or False.")


def check_count_rows(name: str, value: object) -> bool:
    """Return whether `count_rows` asks for counts; "auto" does.

    Raises:
        ConfigTypeError, ConfigError: not "auto", True or False.
    """
    if isinstance(value, str) and value != "auto":
        raise ConfigError(f'{name}={value!r}: pass "auto", True or False.')
    try:
        return isinstance(value, str) or check_flag(name, value)
    except ConfigTypeError as error:
        raise ConfigTypeError(f'{name}={value!r}: pass "auto", True or False.') from error


def hold_flags(options: object, *names: str) -> None:
    """Convert these fields of a frozen dataclass to Python bools, from its `__post_init__`.

    Raises:
        ConfigTypeError: as `check_flag`.
    """
    for name in names:
        object.__setattr__(options, name, check_flag(name, getattr(options, name)))


def check_not_negative(name: str, value: object, *, what: str = "number", may_be_infinite: bool = False) -> float:
    """Return the value as a Python float; numpy's numbers are accepted, True, "0.5" and NaN are not.

    what: Kind of the number for messages, such as "number of seconds".

    Raises:
        ConfigTypeError: not a number. ConfigError: a number below 0, or infinity where infinity is not allowed.
    """
    wanted = f"{name}={value!r}: pass a {'' if may_be_infinite else 'finite '}{what}, 0 or more."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigTypeError(wanted)
    number = float(value)
    if math.isnan(number) or number < 0 or (number == math.inf and not may_be_infinite):
        raise ConfigError(wanted)
    return number


def hold_not_negative(options: object, *names: str, what: str = "number", may_be_infinite: bool = False) -> None:
    """Convert these fields of a frozen dataclass to Python floats, from its `__post_init__`.

    Raises:
        ConfigTypeError, ConfigError: as `check_not_negative`.
    """
    for name in names:
        number = check_not_negative(name, getattr(options, name), what=what, may_be_infinite=may_be_infinite)
        object.__setattr__(options, name, number)


_POWERS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _POWERS[f"{_letter}B"] = 1000**_power
    _POWERS[f"{_letter}IB"] = 1024**_power


def parse_bytes(name: str, size: object, *, least: int = 0) -> int:
    """Return a number of bytes: an int unchanged, or text with a decimal (KB, MB, GB, TB) or binary (KiB, MiB) unit.

        "128 MiB"  134217728      "1gb"  1000000000      "7"  7

    name: Name of the option, for messages.

    Raises:
        ConfigTypeError: neither a whole number nor text. ConfigError: text that is not a size, or less than `least`.
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
    """Return a byte count for people: three significant digits, binary units.

    0  "0 B"      1000  "0.977 KiB"      134217728  "128 MiB"
    """
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def check_has_order(name: str, value: object) -> None:
    """Raise ConfigTypeError for a set: its order differs in each process, and the order of what is read would too."""
    if isinstance(value, set | frozenset):
        raise ConfigTypeError(f"{name} is {of_type(value)}, and its order differs in each process. Pass a list.")


def check_column_names(name: str, columns: object) -> tuple[str, ...] | None:
    """Return the names as a tuple; None (all columns) stays None.

    A single string is refused: as a sequence, "fare" would be the columns "f", "a", "r" and "e".

    Raises:
        ConfigTypeError: not a list of names.
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        raise ConfigTypeError(f"{name} is a list of names; got the one string {columns!r}. Write {name}=[{columns!r}].")
    check_has_order(name, columns)
    names = tuple(columns) if isinstance(columns, Iterable) else (columns,)
    for each in names:
        if not isinstance(each, str):
            raise ConfigTypeError(f"{name} is a list of names; got {columns!r}. Names are text, not {each!r}.")
    return names


def check_column_name(option: str, column: object) -> str | None:
    """Return the name; None (no column) stays None.

    Raises:
        ConfigTypeError: not text. ConfigError: empty text.
    """
    if column is None:
        return None
    if not isinstance(column, str):
        raise ConfigTypeError(f"{option} is the name of a column; got {column!r}. Names are text.")
    if not column:
        raise ConfigError(f"{option} is the name of a column; got an empty one.")
    return column


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ConfigError unless the value is one of the choices."""
    if value not in choices:
        *others, last = (f'"{choice}"' for choice in choices)
        raise ConfigError(f"{name}={value!r}: pass {', '.join(others)} or {last}.")


def check_function(name: str, value: object, what: str = "a function") -> Any:
    """Return the value if it can be called; None is allowed.

    what: Kind of the function for messages, such as "a function of a batch".

    Raises:
        ConfigTypeError: the value cannot be called.
    """
    if value is not None and not callable(value):
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass {what}, or None.")
    return value


def check_instance(name: str, value: object, *, kind: type[T], wanted: str) -> T:
    """Return the value if it is an instance of this class.

    wanted: Values to pass, for messages, such as "RayWorkers(num), or None".

    Raises:
        ConfigTypeError: the value is an instance of another class.
    """
    if not isinstance(value, kind):
        raise ConfigTypeError(f"{name}={value!r}: pass {wanted}.")
    return value


def check_executor(executor: object) -> None:
    """Raise ConfigTypeError unless the value is an executor or None.

    Raises:
        ConfigTypeError: the value has no `submit`.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ConfigTypeError(
            f"executor={executor!r} has no submit(): pass an executor, such as ProcessPoolExecutor(4), or None."
        )


def check_fits(saved: Mapping[str, object], mine: Mapping[str, object], fixed: Sequence[str], *, problem: str) -> None:
    """Raise CheckpointMismatchError unless a state has the keys of `mine`, and the same values for the keys in `fixed`.

    problem: First words of the message; both sides follow.
    """
    if not isinstance(saved, Mapping):
        raise CheckpointMismatchError(f"{problem}: it is {of_type(saved)}. Load what state_dict returned.")
    if saved.keys() == mine.keys() and all(saved[key] == mine[key] for key in fixed):
        return
    theirs, ours = ({key: state.get(key) for key in fixed} for state in (saved, mine))
    raise CheckpointMismatchError(
        f"{problem}: saved with {theirs} and keys {sorted(saved)}, here it is {ours} and keys {sorted(mine)}. Load it "
        "into the same data under the options it was saved with."
    )


def check_counts(saved: Mapping[str, Any], *names: str) -> None:
    """Raise CheckpointMismatchError unless these values of a state are whole numbers from 0 to 2**63 - 2."""
    for name in names:
        if not is_integer(saved[name]) or not 0 <= operator.index(saved[name]) < _MOST:
            raise CheckpointMismatchError(
                f"The state says {name}={saved[name]!r}, which is not a whole number from 0 to 2**63 - 2. Load what "
                "state_dict returned."
            )
