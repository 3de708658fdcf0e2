"""Findings about the layout of a data set that will cost time; computed from an inventory alone."""

from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils._core.inventory import Int64s, Inventory
from torch_dataloader_utils._store import redact

_MIB = 1 << 20

# A row group is decoded by one thread and held whole: at 1 GB/s and 128 MiB that is an eighth of a second, at 1 GiB a
# first batch that takes a second and a shuffle that mixes few places.
_HUGE_GROUP_BYTES = 1024 * _MIB
_HUGE_GROUP_SHARE = 0.1
_HUGE_GROUP_MEDIANS = 8
# Opening, seeking and setting up decoders costs about a millisecond a row group; below 1 MiB that is most of the time.
_TINY_GROUP_BYTES = _MIB
_TINY_FROM_GROUPS = 64
# Fewer row groups than the workers of one machine, in data that is worth splitting.
_FEW_GROUPS = 8
_FEW_GROUPS_BYTES = 128 * _MIB
_MANY_FILES = 1000
# A file of so many medians leaves a strategy that assigns whole files one worker that works alone for long.
_SKEW_MEDIANS = 20
_SKEW_FROM_FILES = 8
_SKEW_FROM_BYTES = 64 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """kind: a word for programs. message: what, where, why it matters, what to do."""

    kind: str
    message: str


def find_layout_problems(inventory: Inventory) -> tuple[Finding, ...]:
    """The findings, most costly first; empty for a data set that loads well."""
    found = (
        _huge_row_group(inventory),
        _few_row_groups(inventory),
        _tiny_row_groups(inventory),
        _small_files(inventory),
        _skewed_files(inventory),
        _unknown_rows(inventory),
    )
    return tuple(each for each in found if each is not None)


def spread(values: Int64s) -> dict[str, int]:
    """Least, median and most of an array; zeros for an empty one."""
    if len(values) == 0:
        return {"least": 0, "median": 0, "most": 0}
    return {"least": int(values.min()), "median": int(np.median(values)), "most": int(values.max())}


def _huge_row_group(inventory: Inventory) -> Finding | None:
    sizes = inventory.groups.projected_bytes
    if len(sizes) < 2 or sizes.sum() == 0:
        return None
    worst = int(sizes.argmax())
    share = sizes[worst] / sizes.sum()
    is_lopsided = share > _HUGE_GROUP_SHARE and sizes[worst] > _HUGE_GROUP_MEDIANS * np.median(sizes)
    if sizes[worst] <= _HUGE_GROUP_BYTES and not is_lopsided:
        return None
    return Finding(
        kind="huge_row_group",
        message=f"{inventory.task(worst).where} is {format_bytes(sizes[worst])} uncompressed, {share:.0%} of "
        "everything. One thread decodes it whole before its first row is used, and ranks that share it all decode from "
        "its start. Write row groups of 64 to 256 MiB.",
    )


def _few_row_groups(inventory: Inventory) -> Finding | None:
    count, size = inventory.num_groups, int(inventory.groups.projected_bytes.sum())
    if count >= _FEW_GROUPS or size < _FEW_GROUPS_BYTES:
        return None
    return Finding(
        kind="few_row_groups",
        message=f"{format_bytes(size)} in {count} row groups: more than {count} workers cannot read different ones, "
        "and shuffling chunks has little to permute. Write smaller row groups (64 to 256 MiB), or use --shuffle-rows.",
    )


def _tiny_row_groups(inventory: Inventory) -> Finding | None:
    sizes = inventory.groups.projected_bytes
    median = float(np.median(sizes)) if len(sizes) else 0.0
    if len(sizes) < _TINY_FROM_GROUPS or median >= _TINY_GROUP_BYTES:
        return None
    return Finding(
        kind="tiny_row_groups",
        message=f"{len(sizes):,} row groups of {format_bytes(median)} (median): a request and the set-up of decoders "
        "for each cost more than their bytes. Write row groups of 64 to 256 MiB.",
    )


def _small_files(inventory: Inventory) -> Finding | None:
    sizes = inventory.files.sizes
    if len(sizes) < _MANY_FILES or sizes.mean() >= _MIB:
        return None
    return Finding(
        kind="small_files",
        message=f"{len(sizes):,} files of {format_bytes(float(sizes.mean()))} on average: every start reads a footer "
        "for each. Save the inventory (--save) and pass it to loaders, or write fewer files.",
    )


def _skewed_files(inventory: Inventory) -> Finding | None:
    sizes = inventory.files.sizes
    if len(sizes) < _SKEW_FROM_FILES or sizes.max() < _SKEW_FROM_BYTES:
        return None
    worst = int(sizes.argmax())
    factor = sizes[worst] / max(float(np.median(sizes)), 1.0)
    if factor <= _SKEW_MEDIANS:
        return None
    return Finding(
        kind="skewed_files",
        message=f"{redact(inventory.files.paths[worst])} is {factor:.0f} times the median file. Row groups go "
        "to ranks one by one, so that ranks stay even; a strategy that assigns whole files would not keep them so.",
    )


def _unknown_rows(inventory: Inventory) -> Finding | None:
    unknown = int((inventory.groups.live_rows < 0).sum())
    if unknown == 0:
        return None
    return Finding(
        kind="unknown_rows",
        message=f"The rows of {unknown:,} of {inventory.num_groups:,} row groups are not known, so plans are inexact "
        "and ranks may take different steps. Let them be counted (count_rows='auto').",
    )
