"""Blends loaders: makes one loader of several loaders, each with its share, by the rule of Megatron-Core's blends.

In: loaders or data sets of this package, and weights. Out: one loader that alternates whole batches of its sources
(`per="batch"`) or mixes rows of its sources in each batch (`per="sample"`), with `len`, `set_epoch` and a JSON state.

Promises: arithmetic chooses the source of the next batch, the same on every rank, so ranks take equal steps and resume
exactly; memory and state do not grow with the number of steps. Not for: token corpora by index
(`megatron.corpora.BlendedDataset`).
"""

from torch_dataloader_utils._core.weight_schedule import WeightSchedule
from torch_dataloader_utils.blending.blended_loader import BlendedLoader, blend

__all__ = ["BlendedLoader", "WeightSchedule", "blend"]
