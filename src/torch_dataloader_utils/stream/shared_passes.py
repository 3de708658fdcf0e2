"""Counts of loaded states and begun passes that all copies of a data set share: the trainer's and its workers'."""

from torch_dataloader_utils.stream.shared_integers import SharedIntegers

# More than a machine runs. Workers beyond count as not begun.
_MOST_WORKERS = 1024


class SharedPasses:
    """How many states were loaded, and which workers have begun a pass since then; in shared memory.

    Attributes that a worker sets on its copy of the data set reach no other process.
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
        """Count every worker as not begun again."""
        self._begun.values.zero_()

    @property
    def has_begun(self) -> bool:
        """Whether any worker has begun a pass."""
        return bool(self._begun.values.any())

    def begin(self, worker: int) -> bool:
        """Note that worker `worker` begins a pass; returns whether it is the first one of that worker number."""
        if worker >= _MOST_WORKERS:
            return True
        is_first = not self._begun.values[worker]
        self._begun.values[worker] = 1
        return bool(is_first)
