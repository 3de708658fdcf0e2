"""Functions and executors that a user gives."""

from typing import Any

from torch_dataloader_utils.errors import ConfigTypeError, of_type


def check_function(name: str, value: Any, what: str = "a function") -> None:
    """Refuses a value that cannot be called; None is allowed.

    what: "a function of a batch", for messages.

    Raises:
        ConfigTypeError: it cannot be called.
    """
    if value is not None and not callable(value):
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass {what}, or None.")


def check_executor(executor: Any) -> None:
    """Refuses a value that is no executor; None is allowed.

    Raises:
        ConfigTypeError: it has no `submit`.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ConfigTypeError(
            f"executor={executor!r} has no submit(): pass an executor, such as ProcessPoolExecutor(4), or None."
        )
