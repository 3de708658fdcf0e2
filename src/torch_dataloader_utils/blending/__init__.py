"""Blends of loaders: several as one, each with its share, by the rule that Megatron-Core's blends follow.

In: loaders or data sets of this package, and weights. Out: one loader that alternates their whole batches
(`per="batch"`) or mixes their rows in each batch (`per="sample"`), with `len`, `set_epoch` and a JSON state.

Promises: the source of the next batch is arithmetic, the same on every rank, so ranks take equal steps and resume
exactly; memory and state do not grow with the number of steps. Not for: token corpora by index
(`tokens.BlendedDataset`).
"""

from torch_dataloader_utils._core.weight_schedule import WeightSchedule
from torch_dataloader_utils.blending.blended_loader import BlendedLoader, blend

__all__ = ["BlendedLoader", "WeightSchedule", "blend"]
