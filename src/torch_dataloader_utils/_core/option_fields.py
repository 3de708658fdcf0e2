"""How an option is defined: once, as a field of a frozen dataclass.

    @dataclass(frozen=True, kw_only=True)
    class TableOptions(Checked):
        batch_size: int = option(1024, "Rows per batch.", partial(check_integer, least=1), tier="everyday")

The field has the name, type, default, check, text and tier of the option. Everything else is made from the fields:
signatures and `help()` by `Door` (datasets/door.py), stubs for type checkers and the page of options by
scripts/write_options.py.
"""

from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, Literal

Check = Callable[[str, Any], Any]
Tier = Literal["everyday", "tuning", "rare"]


def option(
    default: object,
    text: str,
    check: Check | None = None,
    *,
    tier: Tier = "tuning",
    is_secret: bool = False,
    is_of_rank: bool = False,
) -> Any:
    """Define one option, as a field of a dataclass.

    Args:
        default: MISSING for a required option. If the default is None, a None from the caller is not checked.
        text: The text of `help()` and of the page of options.
        check: Function of name and value that returns the value to keep, or raises a ConfigError. None: the user of the
            value checks it.
        tier: "everyday" options are shown in signatures. `help()` and the page group options by tier.
        is_secret: Leave the value out of the repr.
        is_of_rank: Ranks may differ in this option, which decides neither which rows a rank has nor how many.
    """
    metadata = {"text": text, "check": check, "tier": tier, "is_of_rank": is_of_rank}
    return field(default=default, repr=not is_secret, metadata=metadata)


class Checked:
    """Frozen dataclass of options. Each option is checked in order, and kept as the check returns it."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value, check = getattr(self, each.name), each.metadata["check"]
            if check is not None and not (value is None and each.default is None):
                object.__setattr__(self, each.name, check(each.name, value))
