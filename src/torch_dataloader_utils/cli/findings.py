"""Findings about layouts that cost time, from an inventory alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils._core.inventory import Int64s, Inventory

_MIB = 1 << 20

# One thread decodes a whole row group: at 1 GB/s, 128 MiB take an eighth of a second, 1 GiB delays the first batch by a
# second and leaves a shuffle few places to mix.
_HUGE_GROUP_BYTES = 1024 * _MIB
_HUGE_GROUP_SHARE = 0.1
_HUGE_GROUP_MEDIANS = 8
# Opening, seeking and setting up decoders costs about a millisecond a row group, most of the time below 1 MiB.
_TINY_GROUP_BYTES = _MIB
_TINY_FROM_GROUPS = 64
# Fewer row groups than one machine has workers, in data worth splitting.
_FEW_GROUPS = 8
_FEW_GROUPS_BYTES = 128 * _MIB
_MANY_FILES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding for people (message) and programs (kind)."""

    kind: str
    message: str


def find_layout_problems(inventory: Inventory) -> tuple[Finding, ...]:
    """Return the findings, most costly first; empty for a data set that loads well."""
    return tuple(Finding(kind=kind, message=message) for kind, message in _problems(inventory))


def spread(values: Int64s) -> dict[str, int]:
    """Return least, median and most of an array; zeros for an empty array."""
    if len(values) == 0:
        return {"least": 0, "median": 0, "most": 0}
    return {"least": int(values.min()), "median": int(np.median(values)), "most": int(values.max())}


def _problems(inventory: Inventory) -> Iterator[tuple[str, str]]:
    sizes, files = inventory.groups.projected_bytes, inventory.files.sizes
    count, total = inventory.num_groups, int(sizes.sum())
    median = float(np.median(sizes)) if count else 0.0
    worst = int(sizes.argmax()) if count else 0
    if count > 1 and total and _is_huge(int(sizes[worst]), median, total):
        yield (
            "huge_row_group",
            f"{inventory.task(worst).where} is {format_bytes(sizes[worst])} uncompressed, {sizes[worst] / total:.0%} "
            "of everything. One thread decodes it whole before its first row is used, and all ranks that share it "
            "decode from its start. Write row groups of 64 to 256 MiB.",
        )
    if count < _FEW_GROUPS and total >= _FEW_GROUPS_BYTES:
        yield (
            "few_row_groups",
            f"{format_bytes(total)} in {count} row groups: more than {count} workers cannot read different row groups, "
            "and a shuffle has little to permute. Write smaller row groups (64 to 256 MiB).",
        )
    if count >= _TINY_FROM_GROUPS and median < _TINY_GROUP_BYTES:
        yield (
            "tiny_row_groups",
            f"{count:,} row groups of {format_bytes(median)} (median): a request and the set-up of decoders cost more "
            "than the bytes of a row group. Write row groups of 64 to 256 MiB.",
        )
    if len(files) >= _MANY_FILES and files.mean() < _MIB:
        yield (
            "small_files",
            f"{len(files):,} files of {format_bytes(float(files.mean()))} on average: every start reads every footer. "
            "Save the inventory (--save) and pass it to loaders, or write fewer files.",
        )
    if unknown := int((inventory.groups.live_rows < 0).sum()):
        yield (
            "unknown_rows",
            f"The rows of {unknown:,} of {count:,} row groups are not known, so plans are inexact and ranks may take "
            "different numbers of steps. Let rows be counted (count_rows='auto').",
        )


def _is_huge(size: int, median: float, total: int) -> bool:
    is_lopsided = size > _HUGE_GROUP_SHARE * total and size > _HUGE_GROUP_MEDIANS * median
    return size > _HUGE_GROUP_BYTES or is_lopsided
