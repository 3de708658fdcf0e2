"""Protocols of executors that users pass: `submit`, and the futures it returns."""

from collections.abc import Callable
from typing import Any, Protocol


class Future(Protocol):
    """The result of `submit`."""

    def result(self) -> Any:
        """Wait, and give the value or raise the error."""

    def cancel(self) -> Any:
        """Do not start it, if it has not started."""


class Executor(Protocol):
    """Anything that runs a function elsewhere: `concurrent.futures`, mpi4py.futures, a dask client."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Run function(*arguments) at some time."""
