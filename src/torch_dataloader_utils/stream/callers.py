"""Which of torch's loaders calls a data set. Only the calling frames tell; frames of other code are not looked into."""

from types import FrameType

from torch.utils.data import default_collate

_FETCHER = "torch.utils.data._utils.fetch"
_STATEFUL_LOADER = "torchdata.stateful_dataloader"


def collates_anew(asking: FrameType) -> bool:
    """Whether the caller is a DataLoader that collates what it gets with torch's default_collate.

    The caller then is DataLoader's fetcher, in the trainer's process and in workers.
    """
    if _module(asking) != _FETCHER:
        return False
    known = asking.f_locals
    return bool(known.get("auto_collation")) and known.get("collate_fn") is default_collate


def is_asked_by_transformers(asking: FrameType) -> bool:
    """Whether the caller is the DataLoader that a Trainer of transformers makes, in one process or several."""
    frame: FrameType | None = asking
    while frame is not None and _module(frame).startswith("accelerate."):
        frame = frame.f_back
    if frame is None or _module(frame) != _FETCHER or not frame.f_locals.get("auto_collation"):
        return False
    collate = frame.f_locals.get("collate_fn")
    return str(getattr(collate, "__module__", None)).startswith("transformers.")


def is_asked_by_torchdata(asking: FrameType) -> bool:
    """Whether a loader of torchdata is among the callers, direct or through a data set that wraps this one."""
    frame: FrameType | None = asking
    while frame is not None:
        if _module(frame).startswith(_STATEFUL_LOADER):
            return True
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
