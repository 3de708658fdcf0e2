"""Everything for split strategies: the protocol, its values, and the strategies that come with the library.

`splits.core` and similar names are this module too: import paths of version 0.2, for strategies written for it.
"""

import sys

from torch_dataloader_utils._core.splits import (
    DataFileInfo,
    IcebergDataFileInfo,
    RowGroups,
    RowRange,
    Shard,
    Split,
    SplitStrategy,
)
from torch_dataloader_utils.plan.strategies import (
    RoundRobinSplitStrategy,
    SizeBalancedSplitStrategy,
    TargetSizeSplitStrategy,
)

__all__ = [
    "DataFileInfo",
    "IcebergDataFileInfo",
    "RoundRobinSplitStrategy",
    "RowGroups",
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
