"""Check the options of torch's DataLoader that a caller may choose, before data is read; torch checks them later."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import DataLoader

from torch_dataloader_utils._core.arguments import check_flag, check_function, check_integer, check_not_negative
from torch_dataloader_utils._core.option_values import RayWorkers
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type

# The removed options do not apply, because batches are made where rows are read; torch itself ignores
# pin_memory_device.
LOADER_OPTIONS = frozenset(inspect.signature(DataLoader.__init__).parameters) - {
    "self",
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "drop_last",
    "pin_memory_device",
} | {"callbacks"}


# Options that need worker processes.
_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def check_loader_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with Python's own numbers and bools, and callbacks as a tuple.

        callbacks=None  ()      prefetch_factor=np.int64(2)  2      pin_memory="false", timeout=None  ConfigTypeError

    Raises:
        ConfigTypeError: an option has another type. ConfigError: an option is out of range.
    """
    # Options of later versions of torch are not known here and stay as they are.
    return {name: _CHECKS[name](name, value) if name in _CHECKS else value for name, value in options.items()}


def check_has_workers(num_workers: int, workers: RayWorkers | None, options: Mapping[str, Any]) -> None:
    """Raise ConfigError if an option needs worker processes and the loader has none."""
    meant = [name for name in _WORKER_OPTIONS if options.get(name)]
    if workers is not None:
        meant += [
            name for name, kept in (("worker_init_fn", None), ("in_order", True)) if options.get(name, kept) != kept
        ]
        if meant:
            raise ConfigError(
                f"{meant[0]}={options[meant[0]]!r} is for worker processes, and with workers=RayWorkers(...) there are "
                "none. Leave the option out; prefetch= and max_restarts= of RayWorkers are for actors."
            )
        return
    if num_workers == 0 and meant:
        raise ConfigError(
            f"{meant[0]}={options[meant[0]]!r} is for worker processes, and with num_workers=0 there are none: threads "
            "of this process decode (num_workers=None chooses threads too, unless there is a transform). Leave the "
            "option out (decoding=Decoding(ahead_bytes=...) limits how far threads read ahead), or pass num_workers=1 "
            "or more."
        )


def check_callbacks(name: str, value: Any) -> tuple[LoaderCallback, ...]:
    """Return the callbacks as a tuple, an empty tuple for None.

    Raises:
        ConfigTypeError: `value` is not a list, or a member is not an object of a LoaderCallback class.
    """
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass a list of LoaderCallback objects.")
    callbacks = tuple(value)
    for callback in callbacks:
        if isinstance(callback, type) or not isinstance(callback, LoaderCallback):
            raise ConfigTypeError(
                f"{name}: {callback!r} is not a LoaderCallback. Pass objects of subclasses of LoaderCallback: they "
                "inherit the methods that you do not override."
            )
    return callbacks


def _prefetch_factor(name: str, value: Any) -> int | None:
    return None if value is None else check_integer(name, value, least=1)


def _seconds(name: str, value: Any) -> float:
    return check_not_negative(name, value, what="number of seconds")


def _function(name: str, value: Any) -> Any:
    check_function(name, value, "a function of the worker's number")
    return value


def _generator(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, torch.Generator):
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass a torch.Generator, or None.")
    return value


def _context(name: str, value: Any) -> Any:
    known = get_all_start_methods()
    wanted = f"{name}={value!r}: pass one of {known}, a context of multiprocessing, or None."
    if value is not None and not isinstance(value, str | BaseContext):
        raise ConfigTypeError(wanted)
    if isinstance(value, str) and value not in known:
        raise ConfigError(wanted)
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "callbacks": check_callbacks,
    "pin_memory": check_flag,
    "timeout": _seconds,
    "worker_init_fn": _function,
    "multiprocessing_context": _context,
    "generator": _generator,
    "prefetch_factor": _prefetch_factor,
    "persistent_workers": check_flag,
    "in_order": check_flag,
}
