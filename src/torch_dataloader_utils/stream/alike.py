"""Checks that all ranks see the same data, before they divide its row groups by number."""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.strings import counted
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.stream.rank_work import add_over_ranks


def check_alike(inventory: Inventory) -> None:
    """Check that all ranks have the same row groups; every rank of the default process group must call it.

    Paths and times may differ: ranks may have copies on local disks. Filters are compared as text, and a difference is
    only a warning: a filter with a set of strings has another text in each process and keeps the same rows.

    Raises:
        DataError: ranks have different files or row groups; all ranks raise it.
    """
    ranks = np.zeros((4, dist.get_world_size()), dtype=np.int64)
    counts = inventory.num_files, inventory.num_groups
    ranks[:, dist.get_rank()] = _number(_row_groups(inventory)), _number(inventory.row_filter.encode()), *counts
    seen, filters, files, groups = add_over_ranks(ranks)
    if (other := _first_other(seen)) is not None:
        first, others = (
            f"{counted(files[rank], 'file')} with {counted(groups[rank], 'row group')}" for rank in (0, other)
        )
        raise DataError(
            f"{inventory.source}: ranks see other data. Rank 0 found {first}, rank {other} found {others}"
            f"{' of other sizes or rows' if first == others else ''}. Files may have come while the ranks looked, "
            "arguments differ, or loaders are built in another order. Pass the same on all ranks, with "
            "broadcast_inventory=True or one inventory= for all."
        )
    if (other := _first_other(filters)) is not None:
        warn_user(
            f"filters= of rank {other} is not that of rank 0. If they keep other rows, rows are lost or reading fails. "
            "If it holds a set, as in isin(names), pass sorted(names): processes have sets in other orders, and a "
            "state of one filter does not load under the other."
        )


def _first_other(values: npt.NDArray[np.int64]) -> int | None:
    """The first rank whose value is not that of rank 0."""
    others = np.flatnonzero(values != values[0])
    return int(others[0]) if len(others) else None


def _number(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=7).digest(), "little")


def _row_groups(inventory: Inventory) -> bytes:
    """The bytes of all that decides which rows row group i has."""
    groups = inventory.groups
    arrays = inventory.files.sizes, groups.file, groups.ordinal, groups.physical_rows, groups.live_rows
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
