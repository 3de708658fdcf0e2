"""Streaming blends: several loaders as one, each in its share, by the rule that Megatron-Core's blends follow.

In: loaders or data sets of this package, and weights. Out: a loader of whole batches of theirs in turn (`per="batch"`),
or of batches mixed row by row (`per="sample"`), with `len`, `set_epoch` and a JSON state.

Promises: who gives the next batch is arithmetic, the same on every rank, so ranks take equal steps and resume exactly;
memory and state do not grow with the number of steps. Not for: map-style token corpora (`tokens.BlendedDataset`).
"""

from torch_dataloader_utils.datasets.blend.blended_loader import BlendedLoader, blend

__all__ = ["BlendedLoader", "blend"]
