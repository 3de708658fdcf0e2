"""`LoaderOptions`: callbacks, and the options of torch's DataLoader that do not follow from the data set."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from typing import Any

import torch

from torch_dataloader_utils._core.arguments import check_flag, check_function, check_integer, check_not_negative
from torch_dataloader_utils._core.option_fields import Checked, option
from torch_dataloader_utils._core.option_values import RayWorkers
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type

# Options that need worker processes.
_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def check_has_workers(num_workers: int, workers: RayWorkers | None, options: Mapping[str, object]) -> None:
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


def check_callbacks(name: str, value: object) -> tuple[LoaderCallback, ...]:
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


def _generator(name: str, value: object) -> torch.Generator:
    if not isinstance(value, torch.Generator):
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass a torch.Generator, or None.")
    return value


def _context(name: str, value: object) -> str | BaseContext:
    known = get_all_start_methods()
    wanted = f"{name}={value!r}: pass one of {known}, a context of multiprocessing, or None."
    if not isinstance(value, str | BaseContext):
        raise ConfigTypeError(wanted)
    if isinstance(value, str) and value not in known:
        raise ConfigError(wanted)
    return value


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(Checked):
    """Options of a loader that its data set does not have; checked before anything is read."""

    callbacks: Sequence[LoaderCallback] | None = option(
        None, "Sequence of LoaderCallback, called at passes and batches.", check_callbacks
    )
    pin_memory: bool = option(False, "Pin the memory of batches, as torch's DataLoader does.", check_flag)
    prefetch_factor: int | None = option(
        None, "Batches that each worker process prepares; see DataLoader.", partial(check_integer, least=1)
    )
    persistent_workers: bool = option(False, "Keep worker processes between epochs.", check_flag)
    in_order: bool = option(
        True, "False gives batches of worker processes as they are ready, not in the order of the plan.", check_flag
    )
    timeout: float = option(
        0,
        "Seconds to wait for a batch of a worker process; 0 waits without a limit.",
        partial(check_not_negative, what="number of seconds"),
        tier="rare",
    )
    worker_init_fn: Callable[[int], None] | None = option(
        None,
        "Function called with the number of each worker process when it starts.",
        partial(check_function, what="a function of the worker's number"),
        tier="rare",
    )
    multiprocessing_context: Any = option(
        None, 'Start method of worker processes ("spawn"), or a context of multiprocessing.', _context, tier="rare"
    )
    generator: torch.Generator | None = option(None, "See DataLoader.", _generator, tier="rare")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all fields."""
        return tuple(each.name for each in fields(cls))

    def for_torch(self) -> dict[str, Any]:
        """Return the options of torch's DataLoader by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "callbacks"}
