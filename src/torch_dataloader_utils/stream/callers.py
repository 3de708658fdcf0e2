"""Who asks a data set for batches or for its state: told by the frames of torch's loaders, since nothing else does.

Of other code, frames are passed by and not looked into.
"""

from types import FrameType

from torch.utils.data import default_collate

_FETCHER = "torch.utils.data._utils.fetch"
_STATEFUL_LOADER = "torchdata.stateful_dataloader"


def collates_anew(asking: FrameType) -> bool:
    """Whether a DataLoader asks that will make batches of what it gets, and not by a function of the user.

    Its fetcher knows, in the trainer and in workers alike.
    """
    if _module(asking) != _FETCHER:
        return False
    known = asking.f_locals
    return bool(known.get("auto_collation")) and known.get("collate_fn") is default_collate


def is_asked_by_torchdata(asking: FrameType) -> bool:
    """Whether a loader of torchdata is among the callers: of a data set that wraps this one, too."""
    frame: FrameType | None = asking
    while frame is not None:
        if _module(frame).startswith(_STATEFUL_LOADER):
            return True
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
