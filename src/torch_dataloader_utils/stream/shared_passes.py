"""What the copies of a data set in DataLoader workers and the one in the trainer know of each other's passes."""

from torch_dataloader_utils.stream.shared_integers import SharedIntegers

# More than a machine runs; of others nobody knows whether they began.
_MOST_WORKERS = 1024


class SharedPasses:
    """How many states were loaded, and which workers have begun a pass since; all processes see it.

    What a worker sets in its own copy of the data set reaches nobody: the next ones get a copy of the trainer's again.
    """

    __slots__ = ("_begun", "_loads")

    def __init__(self) -> None:
        self._loads = SharedIntegers([0])
        self._begun = SharedIntegers([0] * _MOST_WORKERS)

    @property
    def loads(self) -> int:
        """How many states the trainer's copy was given so far."""
        return int(self._loads.values[0])

    def count_load(self) -> int:
        """Count one more state that was loaded; gives its number, from 1."""
        self._loads.values[0] += 1
        self.forget()
        return self.loads

    def forget(self) -> None:
        """Say from now on that no worker has begun a pass."""
        self._begun.values.zero_()

    @property
    def has_begun(self) -> bool:
        """Whether any worker has begun a pass."""
        return bool(self._begun.values.any())

    def begin(self, worker: int) -> bool:
        """Note that a worker begins a pass; says whether it is the first of this worker, in whichever process."""
        if worker >= _MOST_WORKERS:
            return True
        is_first = not self._begun.values[worker]
        self._begun.values[worker] = 1
        return bool(is_first)
