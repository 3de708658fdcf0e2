"""An example split strategy: whole files, largest first, each to the worker that has least so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch_dataloader_utils.splits import DataFileInfo, Shard, Split


@dataclass(frozen=True)
class LargestFirst:
    """Balances bytes over all workers of all ranks without ever cutting a file.

    A pure function of its arguments: every rank computes the whole assignment and takes its own part. Ties go to the
    file that comes first and to the lowest worker.

        sizes 5 3 3 2, two ranks of one worker      rank 0: 5, 2      rank 1: 3, 3
    """

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int = 0, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        """The shards of one rank's workers; the same in every epoch."""
        splits: list[list[Split]] = [[] for _ in range(num_ranks * num_workers)]
        loads = [0] * len(splits)
        for file in sorted(files, key=lambda file: -(file.file_size or 0)):
            lightest = loads.index(min(loads))
            splits[lightest].append(Split(file))
            loads[lightest] += file.file_size or 0
        mine = splits[rank * num_workers : (rank + 1) * num_workers]
        return [Shard(worker, of_worker) for worker, of_worker in enumerate(mine)]
