"""Check that functions and batches can be sent between processes, before they are sent.

A batch that does not pickle would be lost: the queue's thread in the worker prints an error and drops the batch, and
the trainer waits forever.
"""

import io
import multiprocessing
import pickle
import pickletools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from torch_dataloader_utils.errors import ConfigError, of_type
from torch_dataloader_utils.stream.worker import Function, function_name


def with_sendable_results(
    functions: Sequence[Function], pickler: type[pickle.Pickler] = ForkingPickler
) -> tuple[Function, ...]:
    """Return the functions, but let the last function raise TypeError if its result cannot be sent to the trainer.

    A result that holds more than plain tensors is pickled once more for this check, without its tensors and arrays of
    numbers: 56 us for 51 tensors.
    pickler: class that pickles the results for sending.
    """
    trial = _without_tensors(pickler)
    return (*functions[:-1], *(_returns_sendable(each, trial) for each in functions[-1:]))


def _returns_sendable(function: Function, trial: type[pickle.Pickler]) -> Function:
    def call(batch: object) -> Any:
        result = function(batch)
        reason = None if _has_plain_tensors_only(result) else _reason_against(result, trial)
        if reason is not None:
            place, value = _find_unsendable("", result, trial)
            raise TypeError(
                f"it returned {of_type(value)}{f' at {place}' if place else ''}, which cannot be sent from a "
                f"worker process ({reason}). Return tensors, arrays and plain Python values, or read with "
                "num_workers=0"
            ) from reason
        return result

    call.__qualname__ = function_name(function)
    return call


class SentFunctions(tuple[Function, ...]):
    """Functions that keep tensors of their own in each process that unpickles them, as processes do under fork.

    torch's pickler moves tensors to memory that all processes share, so workers that write into a tensor of a function
    would overwrite each other's rows. A tensor stays shared if the user called `share_memory_()`. Tensors over one
    memory, such as tied weights and views, have one memory in each process too.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        _OwnTensors(sent := io.BytesIO()).dump(tuple(self))
        return pickle.loads, (sent.getvalue(),)


class _OwnTensors(ForkingPickler):
    def reducer_override(self, value: object) -> Any:
        if isinstance(value, torch.UntypedStorage) and value.device.type == "cpu" and not value.is_shared():
            return _load_memory, (torch.empty(0, dtype=torch.uint8).set_(value).numpy().tobytes(),)
        if isinstance(value, torch.Tensor) and not (value.layout is torch.strided and _is_shared(value)):
            # As torch.save does. The memory is a value inside, which comes here too, once for all tensors over it.
            reduced: tuple[Any, ...] = value.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]
            return reduced
        if isinstance(value, torch.TypedStorage) and not value._untyped_storage.is_shared():
            return _with_dtype, (value._untyped_storage, value.dtype)
        return NotImplemented


def _is_shared(value: torch.Tensor) -> bool:
    return bool(value.is_shared())  # type: ignore[no-untyped-call]


def _load_memory(data: bytes) -> torch.TypedStorage:
    """Return a storage with a type, as `torch.load` does: tensors of uint16 and float8 cannot be made of another."""
    return torch.tensor(np.frombuffer(data, np.uint8))._typed_storage()  # type: ignore[no-any-return,no-untyped-call]


def _with_dtype(memory: torch.TypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    untyped = memory._untyped_storage
    return torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def check_functions(functions: Sequence[Callable[..., Any]], context: object) -> None:
    """Raise ConfigError if worker processes do not inherit the user's functions and a function cannot be sent.

    context: DataLoader's multiprocessing_context: a name, a context or None.

    Each function is pickled once more for this check, without its tensors: 4 us for a function. Without the check, some
    workers would have started when the first worker fails, with an error of multiprocessing.
    """
    trial = _without_tensors(ForkingPickler)
    for function in functions if (method := _start_method(context)) != "fork" else ():
        try:
            with _as_if_starting():
                trial(pickled := io.BytesIO()).dump(function)
        except Exception as error:  # pickling runs the object's own code: any error
            raise ConfigError(
                f"{function_name(function)} cannot be sent to worker processes that are started with {method!r} "
                f"({error}). Define the function at the top level of a module (no lambda, no inner function), and let "
                "it make locks, files and clients at its first call, in the worker. Values and locks that all workers "
                f"share come from multiprocessing.get_context({method!r}). Or read with num_workers=0."
            ) from error
        if not _main_is_imported() and any(text == "__main__" for _, text, _ in pickletools.genops(pickled.getvalue())):
            raise ConfigError(
                f"{function_name(function)} is defined in a notebook or an interactive session, and worker processes "
                f"that are started with {method!r} cannot import it from there. Write it into a .py file and import "
                'it, or read with num_workers=0, or with multiprocessing_context="fork" where the system has it.'
            )


class _TrialStart:
    """Start of a process that does not happen, see `_as_if_starting`."""

    DupFd = int

    def duplicate_for_child(self, handle: int) -> int:
        return handle


@contextmanager
def _as_if_starting() -> Iterator[None]:
    """Let values pickle that do so only while a process starts: Value, Array, Lock, Event, Queue of multiprocessing."""
    before = get_spawning_popen()
    set_spawning_popen(_TrialStart())  # type: ignore[arg-type]  # it has what picklers ask for
    try:
        yield
    finally:
        set_spawning_popen(before)


def _main_is_imported() -> bool:
    """Return whether worker processes import the main module, as multiprocessing.spawn does; a notebook is no file."""
    main = sys.modules["__main__"]
    return any(getattr(main, name, None) is not None for name in ("__spec__", "__file__"))


def _start_method(context: Any) -> str:
    if isinstance(context, str):
        return context
    chosen = (context or multiprocessing).get_start_method(allow_none=True)  # else the call itself fixes the method
    return str(chosen or multiprocessing.get_all_start_methods()[0])


# Modules of batches and columns: pickling batches or columns would copy them out of their row group.
_SHAPED = "torch_dataloader_utils.shape."


def _without_tensors(pickler: type[pickle.Pickler]) -> type[pickle.Pickler]:
    return type("_Trial", (_WithoutTensors, pickler), {})


class _WithoutTensors:
    """Mixin that makes a pickler skip tensors and arrays: they can always be sent, and torch opens a file for each."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, torch.Tensor):
            if value.requires_grad and not value.is_leaf:
                raise TypeError("it is part of an autograd graph: detach() it, or compute it under torch.no_grad()")
            return type(value), ()
        if type(value).__module__.startswith(_SHAPED):
            return dict, (dict(value) if isinstance(value, dict) else (),)
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return np.ndarray, ()
        override = getattr(super(), "reducer_override", None)
        return NotImplemented if override is None else override(value)


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


def _has_plain_tensors_only(value: Any) -> bool:
    """Return whether this is a batch of this package, or a dict, with names and tensors that can always be sent."""
    kind = type(value)
    return (
        (kind is dict or (issubclass(kind, dict) and kind.__module__.startswith(_SHAPED)))
        and all(type(column) is torch.Tensor and not column.requires_grad for column in value.values())
        and all(type(name) is str for name in value)
    )


def _reason_against(value: object, trial: type[pickle.Pickler]) -> Exception | None:
    """Return the error that pickling the value raises; None if the value pickles."""
    try:
        trial(_Nowhere()).dump(value)
    except Exception as error:  # noqa: BLE001 - see check_functions
        return error
    return None


def _find_unsendable(place: str, value: object, trial: type[pickle.Pickler]) -> tuple[str, Any]:
    """Return (place, value) of the innermost value inside `value` that does not pickle. `value` does not pickle."""
    for name, member in _members(value):
        if _reason_against(member, trial) is not None:
            return _find_unsendable(f"{place}[{name!r}]", member, trial)
    return place, value


def _members(value: object) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()
