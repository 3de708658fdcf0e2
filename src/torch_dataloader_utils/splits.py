"""The import paths of version 0.2, for strategies that were written for it: `splits`, `splits.core` and the like.

New code imports these names from the top level.
"""

import sys

from torch_dataloader_utils._core.splits import DataFileInfo, IcebergDataFileInfo, RowRange, Shard, Split, SplitStrategy
from torch_dataloader_utils.plan.strategies import (
    RoundRobinSplitStrategy,
    SizeBalancedSplitStrategy,
    TargetSizeSplitStrategy,
)

__all__ = [
    "DataFileInfo",
    "IcebergDataFileInfo",
    "RoundRobinSplitStrategy",
    "RowRange",
    "Shard",
    "SizeBalancedSplitStrategy",
    "Split",
    "SplitStrategy",
    "TargetSizeSplitStrategy",
]

# This module is its own submodules, as `os.path` is another name of posixpath.
core = balanced = round_robin = target_size = sys.modules[__name__]
sys.modules.update({f"{__name__}.{name}": core for name in ("core", "balanced", "round_robin", "target_size")})
