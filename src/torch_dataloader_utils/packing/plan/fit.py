"""Checks of the lengths that a user gives: that they are lengths, and that each fits into a pack."""

from collections.abc import Sequence

import numpy as np

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.packing.plan.schedule import Int64s
from torch_dataloader_utils.packing.plan.shape import SchedulePolicy


def checked_lengths(lengths: Sequence[int] | Int64s) -> Int64s:
    """Lengths as int64, shape [n].

    Raises:
        ConfigTypeError: lengths that are no list of integers. ConfigError: no sequence at all, or a length below 1.
    """
    given = np.asarray(lengths)
    if given.size and given.dtype.kind not in "iu":
        raise ConfigTypeError(f"lengths are {given.dtype}: pass whole numbers of tokens.")
    if given.ndim != 1:
        raise ConfigTypeError(f"lengths have the shape {given.shape}: pass one number of tokens for each sequence.")
    checked = given.astype(np.int64)
    if not len(checked):
        raise ConfigError("the global batch has no sequence; a schedule needs at least one.")
    if checked.min() < 1:
        position = int(checked.argmin())
        raise ConfigError(
            f"sequence {position} has length {int(checked[position])}; lengths are at least 1 token. "
            "Leave empty sequences out before scheduling."
        )
    return checked


def fitting_positions(lengths: Int64s, *, capacity: int, policy: SchedulePolicy) -> Int64s:
    """Positions that are scheduled, ascending: all of them, or with over_long="drop" those within `capacity`.

    Raises:
        ConfigError: a sequence above `capacity` with over_long="error", or nothing left to schedule.
    """
    over = np.flatnonzero(lengths > capacity)
    if not len(over) or policy.over_long == "alone":
        return np.arange(len(lengths))
    if policy.over_long == "error":
        raise ConfigError(
            f"{len(over)} of {len(lengths)} sequences are longer than the {capacity} tokens of a pack "
            f"(first: sequence {int(over[0])} with {int(lengths[over[0]])} tokens). Raise max_seqlen_per_dp_cp_rank "
            'or the number of context-parallel ranks, cut the sequences, or set over_long="alone" or "drop".'
        )
    if len(over) == len(lengths):
        raise ConfigError(
            f"all {len(lengths)} sequences are longer than the {capacity} tokens of a pack; none is left. "
            "Raise max_seqlen_per_dp_cp_rank, or cut the sequences."
        )
    return np.flatnonzero(lengths <= capacity)
