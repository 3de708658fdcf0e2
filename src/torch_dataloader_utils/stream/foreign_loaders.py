"""Refuse loaders of torch, torchdata and trainers that would give wrong batches or lose rows, without an error.

This is the only module that looks at the frames of callers. Only frames show how the batches will be used: the collate
functions of torch and of the Trainer stack batches as if they were rows, and a StatefulDataLoader calls what every
loader calls. Only errors depend on frames; rows and states never do.
"""

import sys
from types import FrameType
from typing import TYPE_CHECKING

from torch.utils.data import default_collate

from torch_dataloader_utils.errors import ConfigError

if TYPE_CHECKING:
    from torch_dataloader_utils.stream.dataset import TableDataset

_FETCHER = "torch.utils.data._utils.fetch"


def refuse_collation(dataset: "TableDataset") -> None:
    """Raise ConfigError if a DataLoader asks for an iterator to make batches of batches. Called by `__iter__`."""
    asking = sys._getframe(2)
    fetcher: FrameType | None = asking
    while fetcher is not None and _module(fetcher).startswith("accelerate."):
        fetcher = fetcher.f_back
    if fetcher is None or _module(fetcher) != _FETCHER or not fetcher.f_locals.get("auto_collation"):
        return
    collate = fetcher.f_locals.get("collate_fn")
    name = type(dataset).__name__
    if str(getattr(collate, "__module__", None)).startswith("transformers."):
        raise ConfigError(
            f"Trainer(train_dataset={name}) would collate batches as if they were rows, and shard them again. Return "
            'the loader of create_dataloader(..., num_ranks="auto") from get_train_dataloader of your own Trainer '
            "subclass (get_eval_dataloader likewise), as torch_dataloader_utils.integrations.transformers shows, and "
            "pass no train_dataset."
        )
    if fetcher is asking and collate is default_collate:
        raise ConfigError(
            f"A DataLoader with a batch_size of its own would make batches of batches: {name} gives batches already, "
            f"of {dataset.topology.batch_size} rows. Write DataLoader(dataset, batch_size=None), and pass batch_size= "
            "to the data set; or use create_dataloader."
        )


def refuse_torchdata(dataset: "TableDataset") -> None:
    """Raise ConfigError if a StatefulDataLoader asks for an iterator. Called by `__iter__`.

    In the states of a StatefulDataLoader, the end of an epoch would be the next epoch.
    """
    asking = sys._getframe(2)
    frame: FrameType | None = asking
    while frame is not None and _module(frame).startswith("torch.utils.data."):
        frame = frame.f_back
    if frame is not asking and frame is not None and _module(frame).startswith("torchdata."):
        raise ConfigError(
            f"torchdata's StatefulDataLoader needs states of its own kind from a {type(dataset).__name__}. Write "
            "StatefulDataLoader(for_torchdata(dataset), batch_size=None), with for_torchdata from "
            "torch_dataloader_utils.integrations.torchdata; or use create_dataloader: its loader has states."
        )


def refuse_random_split(dataset: "TableDataset") -> None:
    """Raise ConfigError if torch's random_split asks for the length of the data set or of its loader.

    Called by `__len__`.
    """
    asking = sys._getframe(2)
    for frame in (asking, asking.f_back):
        if frame is not None and frame.f_code.co_name == "random_split" and _module(frame).startswith("torch."):
            raise ConfigError(
                f"random_split divides a data set by the numbers of its rows, and a {type(dataset).__name__} gives "
                "batches in the order of a plan. Make two loaders of the same data, one with holdout=Holdout(0.1, "
                '"train"), one with holdout=Holdout(0.1, "holdout"): together they have every row once.'
            )


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
