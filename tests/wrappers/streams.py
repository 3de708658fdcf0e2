"""Sources to shard, and an oracle that knows nothing of runs: it walks a list."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


class PlainStream(IterableDataset):
    """range(count) without a length or a state; the epoch is added times 1000."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0
        self.num_read = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for item in range(self.count):
            self.num_read += 1
            yield self.epoch * 1000 + item


class StatefulStream(PlainStream):
    """The same with a state, so that a resume need not walk."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.position = 0
        self.start = 0

    def __iter__(self) -> Iterator[int]:
        self.position, self.start = self.start, 0
        while self.position < self.count:
            self.num_read += 1
            self.position += 1
            yield self.epoch * 1000 + self.position - 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.start = state_dict["position"]


class IteratorStateStream(IterableDataset):
    """The state belongs to the iterator, not to the data set."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> "CountingIterator":
        return CountingIterator(self.count)


class CountingIterator:
    def __init__(self, count: int) -> None:
        self.count = count
        self.position = 0

    def __iter__(self) -> "CountingIterator":
        return self

    def __next__(self) -> int:
        if self.position >= self.count:
            raise StopIteration
        self.position += 1
        return self.position - 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = state_dict["position"]


def oracle_shard(items: list[Any], num_shards: int, index: int, run_items: int, tail: str) -> list[Any]:
    """Fill a group, give slice `index`; the last, incomplete group is kept, dropped, or filled up from the start."""
    group_items = num_shards * run_items
    given = []
    for start in range(0, len(items), group_items):
        group = items[start : start + group_items]
        if len(group) < group_items:
            if tail == "drop":
                break
            first = items[:group_items]
            while tail == "pad" and len(group) < group_items:
                group = group + first
        given += group[index * run_items : (index + 1) * run_items]
    return given
