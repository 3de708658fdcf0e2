"""`Foresight`: announces to a host's cache which row groups a rank will read."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s, Inventory
from torch_dataloader_utils._store.access import StoreAccess
from torch_dataloader_utils.cache.entries import GroupKey
from torch_dataloader_utils.cache.host_cache import HostCache, opened
from torch_dataloader_utils.cache.schedules import ReadSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """Announcements for one data set.

    access: How its files are read; the token of the access stands for the rank. cache: Cache of the data set.
    """

    access: StoreAccess
    cache: HostCache

    def foresee(self, inventory: Inventory, group: Int64s, at_bytes: npt.NDArray[np.float64], num_present: int) -> None:
        """Announce the row groups that this process and its workers read from now on.

        num_present: The first `num_present` are read in this pass.
        """
        groups, files, scope = inventory.groups, inventory.files, self.access.scope
        distinct, which = np.unique(group, return_inverse=True)
        numbers = [
            GroupKey(scope, files.paths[file], files.pin(file), ordinal).number
            for file, ordinal in zip(groups.file[distinct].tolist(), groups.ordinal[distinct].tolist(), strict=True)
        ]
        keys = np.array(numbers, np.uint64)[which]
        opened(self.cache).foresee(self.access.token, ReadSchedule(keys=keys, times=at_bytes, num_present=num_present))

    def end(self) -> None:
        """Announce that this process reads nothing more."""
        opened(self.cache).withdraw(self.access.token)
