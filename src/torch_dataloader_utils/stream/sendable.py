"""What can travel between processes, told before it is sent.

A batch that does not pickle would be lost: the queue's thread in the worker prints an error and drops it, and the
trainer waits for ever.
"""

import io
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from torch_dataloader_utils.errors import ConfigError, of_type
from torch_dataloader_utils.stream.worker import Function, function_name

_PLAIN = (str, bytes, int, float, complex, type(None), torch.Tensor)


def returns_sendable(function: Function) -> Function:
    """The function, under its name, with a TypeError for results that cannot be sent to the trainer's process.

    Plain values, tensors and arrays of numbers are known to travel; what else there is in dicts, lists and tuples is
    pickled once for trial.
    """

    def call(batch: Any) -> Any:
        result = function(batch)
        for place, value in _unknown_parts("", result):
            _try_to_pickle(place, value)
        return result

    call.__qualname__ = function_name(function)
    return call


def check_functions(functions: Sequence[Callable[..., Any]], context: Any) -> None:
    """Raises ConfigError for functions of the user that cannot be sent to worker processes which do not inherit them.

    context: DataLoader's multiprocessing_context, a name, a context or None.
    """
    for function in functions if (method := _start_method(context)) != "fork" else ():
        try:
            ForkingPickler.dumps(function)
        except Exception as error:  # pickling runs the object's own code: any error
            raise ConfigError(
                f"{function_name(function)} cannot be sent to worker processes that are started with {method!r} "
                f"({error}). Define it at the top level of a module (no lambda, no inner function), or read with "
                "num_workers=0."
            ) from error


def check_socket_names() -> None:
    """Raises ConfigError where the names of multiprocessing's sockets would be too long, through which memory travels.

    The queue's thread in the worker would print an error and drop the batch, see above.
    """
    directory = tempfile.gettempdir()
    longest = len(os.fsencode(f"{directory}/pymp-12345678/listener-12345678"))
    room = 103 if sys.platform == "darwin" else 107
    if hasattr(socket, "AF_UNIX") and longest > room:
        raise ConfigError(
            f"Worker processes need sockets in {directory}, and their names would have {longest} bytes; the system "
            f"allows {room}. Set TMPDIR to a directory with a shorter name, or read with num_workers=0."
        )


def _start_method(context: Any) -> str:
    if isinstance(context, str):
        return context
    chosen = (context or multiprocessing).get_start_method(allow_none=True)  # without, asking would choose for good
    return str(chosen or multiprocessing.get_all_start_methods()[0])


class _TrialPickler(ForkingPickler):
    """Leaves tensors out, which are known to travel: torch would open files for those, as if somebody fetched them."""

    def reducer_override(self, value: Any) -> Any:
        return (torch.Tensor, ()) if isinstance(value, torch.Tensor) else NotImplemented


def _try_to_pickle(place: str, value: Any) -> None:
    try:
        _TrialPickler(io.BytesIO()).dump(value)
    except Exception as error:  # see check_functions
        raise TypeError(
            f"it returned {of_type(value)}{f' at {place}' if place else ''}, which cannot be sent from a "
            f"worker process ({error}). Return tensors, arrays and plain Python values, or read with num_workers=0"
        ) from error


def _unknown_parts(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN) or (isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _unknown_parts(f"{place}[{key!r}]", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unknown_parts(f"{place}[{index}]", item)
    else:
        yield place, value
