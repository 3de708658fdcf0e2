"""Functions and executors that a user gives."""

from typing import Any

from torch_dataloader_utils.errors import ConfigTypeError, of_type


def check_function(name: str, value: Any, what: str = "a function") -> None:
    """Refuses what cannot be called; None is no function, and allowed.

    what: "a function of a batch", for messages.

    Raises:
        ConfigTypeError: it cannot be called.
    """
    if value is not None and not callable(value):
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass {what}, or None.")


def check_executor(executor: Any) -> None:
    """Refuses what runs no functions; None is no executor, and allowed.

    Raises:
        ConfigTypeError: it has no `submit`.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ConfigTypeError(
            f"executor={executor!r} has no submit(): pass an executor, such as ProcessPoolExecutor(4), or None."
        )
