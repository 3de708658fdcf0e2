"""Warnings that point at a line of the user's code."""

import sys
import warnings
from types import FrameType

_PACKAGE = __name__.partition(".")[0]


def warn_user(message: str) -> None:
    """Give a UserWarning for the innermost line of the call stack outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def warn_of_earlier_epoch(loaded: int, epoch: int) -> None:
    """Warn if a loop goes to an epoch before the epoch of the state that was loaded."""
    if epoch < loaded:
        warn_user(
            f"The loaded state is in epoch {loaded}, and set_epoch({epoch}) leaves it for an earlier epoch. To go on "
            f"from the state, begin the loop with epoch {loaded}: for epoch in range({loaded}, epochs)."
        )


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
