"""Column names that a user gives, one or a list of them."""

from collections.abc import Iterable
from typing import Any

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


def check_column_names(columns: Any) -> tuple[str, ...] | None:
    """The names as a tuple; None, for all columns, stays.

    One string is refused: as a sequence, "fare" would be the columns "f", "a", "r" and "e".

    Raises:
        ConfigTypeError: no list of names.
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        raise ConfigTypeError(
            f"columns is a list of names; got the one string {columns!r}. Write columns=[{columns!r}]."
        )
    names = tuple(columns) if isinstance(columns, Iterable) else (columns,)
    for name in names:
        if not isinstance(name, str):
            raise ConfigTypeError(f"columns is a list of names; got {columns!r}. Names are text, not {name!r}.")
    return names


def check_column_name(option: str, column: Any) -> str | None:
    """The name; None, for none, stays.

    Raises:
        ConfigTypeError: no text. ConfigError: an empty one.
    """
    if column is None:
        return None
    if not isinstance(column, str):
        raise ConfigTypeError(f"{option} is the name of a column; got {column!r}. Names are text.")
    if not column:
        raise ConfigError(f"{option} is the name of a column; got an empty one.")
    return column
