"""An epoch number that DataLoader workers see change, persistent ones included."""

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils.stream.shared_integers import SharedIntegers


class SharedEpoch:
    """One integer that all processes see."""

    __slots__ = ("_memory",)

    def __init__(self, value: int = 0) -> None:
        self._memory = SharedIntegers([value])

    @property
    def value(self) -> int:
        """The epoch, as last set in any process."""
        return int(self._memory.values[0])

    @value.setter
    def value(self, epoch: int) -> None:
        self._memory.values[0] = check_integer("epoch", epoch, least=0)
