"""A data set as a fingerprint and short texts, to tell whether a state fits and why not."""

from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Inventory


def planning_fingerprint(inventory: Inventory) -> str:
    """The inventory's fingerprint together with the weights that plans depend on; a state is bound to it."""
    weights = np.ascontiguousarray(inventory.groups.projected_bytes).tobytes()
    return blake2b(inventory.fingerprint().encode() + weights, digest_size=16).hexdigest()


def data_settings(inventory: Inventory) -> tuple[tuple[str, str], ...]:
    """(name, short text) of each part of `planning_fingerprint`, for the message about a state that does not fit.

    A filter is shown as a digest, because its literals are values of the data and states leave the machine.

        (("columns", "row_id, fare"), ("filters", "none"), ("snapshot", "none"), ("files", "3 files 5be1c0de"), ...)
    """
    files, groups = inventory.files, inventory.groups
    file_arrays = [part for c in (files.paths, files.identities) for part in (c.offsets, c.data)]
    return (
        ("columns", "all" if inventory.projection is None else _shortened(", ".join(inventory.projection))),
        ("filters", short_digest(inventory.row_filter.encode()) if inventory.row_filter else "none"),
        ("snapshot", _shortened(inventory.snapshot or "none")),
        ("files", f"{inventory.num_files} files {short_digest(*file_arrays, files.sizes)}"),
        ("schema", short_digest(inventory.schema)),
        ("rows", f"{inventory.num_groups} row groups {short_digest(groups.file, groups.ordinal, groups.live_rows)}"),
    )


def short_digest(*parts: bytes | npt.NDArray[Any]) -> str:
    """Eight hex digits of a digest, short enough for messages."""
    digest = blake2b(digest_size=4)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:84]}... {short_digest(text.encode())}"
