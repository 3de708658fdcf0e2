"""`Secret`: a value that no message, log or dump shows."""

from typing import Any, final


@final
class Secret:
    """Holds storage options; `reveal()` is the only way to them.

    Pickles with its value, because a worker process needs it: never write that pickle anywhere. It is no JSON
    value on purpose, and has no equality, so that comparing dumps cannot leak it either.

        f"{Secret({'key': 'AKIA'})}"      ***
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def reveal(self) -> Any:
        """The value itself; hand it to the storage client and to nothing else."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __format__(self, format_spec: str) -> str:
        return "***"

    def __reduce__(self) -> tuple[type["Secret"], tuple[Any]]:
        return (Secret, (self._value,))
