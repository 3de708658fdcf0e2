"""The communicating path as a loader: iterate over global batches, save and load where it stands."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch_dataloader_utils._core.arguments import check_fits
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.packing.global_batch import ScheduledBatch
from torch_dataloader_utils.packing.groups import PackingGroups
from torch_dataloader_utils.packing.samples import Item
from torch_dataloader_utils.packing.schedulers import BasePackingScheduler
from torch_dataloader_utils.packing.wrap import PackingOptions, wrap_data_iterator

_STATE_VERSION = 1


class PackedLoader:
    """`wrap_data_iterator` over and over, until the data ends.

    Between two global batches everything that was read has been given, so the state of the loader that is wrapped
    is all the state there is.

    Args:
        loader: gives samples; None on processes that read no data.
        config: as for `wrap_data_iterator`.
        num_microbatches: items of `loader` per global batch and data-parallel rank.
        groups: the process groups; None for a single process.
        scheduler: as for `wrap_data_iterator`.
    """

    def __init__(
        self,
        loader: Iterable[Item] | None,
        config: PackingOptions,
        num_microbatches: int,
        groups: PackingGroups | None = None,
        scheduler: BasePackingScheduler | None = None,
    ) -> None:
        self._loader = loader
        self._config = config
        self._num_microbatches = num_microbatches
        self._groups = groups
        self._scheduler = scheduler

    def __iter__(self) -> Iterator[ScheduledBatch]:
        items = None if self._loader is None else iter(self._loader)
        while True:
            try:
                batch = wrap_data_iterator(items, self._config, self._num_microbatches, self._groups, self._scheduler)
            except StopIteration:
                return
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The state of the wrapped loader (None on processes without one), to be taken between global batches.

        Raises:
            ConfigError: the wrapped loader has no `state_dict`.
        """
        return {"version": _STATE_VERSION, "loader": None if self._loader is None else self._method("state_dict")()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hands its state to the wrapped loader.

        Raises:
            CheckpointMismatchError: a state of another version, or of a process that read no data.
            ConfigError: the wrapped loader has no `load_state_dict`.
        """
        check_fits(state, {"version": _STATE_VERSION, "loader": None}, ("version",), problem="The state does not fit")
        if (state["loader"] is None) != (self._loader is None):
            raise CheckpointMismatchError(
                f"The state has {'no' if state['loader'] is None else 'a'} loader, this process "
                f"{'none' if self._loader is None else 'one'}. Load it on a process of the same kind."
            )
        if self._loader is not None:
            self._method("load_state_dict")(state["loader"])

    def _method(self, name: str) -> Any:
        method = getattr(self._loader, name, None)
        if method is None:
            raise ConfigError(
                f"{type(self._loader).__name__} has no {name}; wrap a loader with state (create_dataloader gives one)."
            )
        return method
