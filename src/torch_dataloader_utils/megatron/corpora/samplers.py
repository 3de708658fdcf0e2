"""Sample batches for one rank, from the number of samples that the job has consumed.

Source: the samplers of Megatron-LM's data loaders; the orders are the same, so a job continues where another stopped.
Megatron-LM gives ranks unequal numbers of batches, or empty batches, where samples run out. The samplers here give the
index None instead, and `GPTDataset` turns None into a sample without loss: all ranks take the same number of full
batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

from torch_dataloader_utils._core.arguments import check_flag, check_integer, hold_flags, hold_integers
from torch_dataloader_utils.errors import ConfigError

Batch = list[int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """Part of one rank in each step: `micro_batch_size` samples on each of `data_parallel_size` ranks."""

    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int

    def __post_init__(self) -> None:
        hold_integers(self, "micro_batch_size", "data_parallel_size", least=1)
        hold_integers(self, "data_parallel_rank", least=0)
        if self.data_parallel_rank >= self.data_parallel_size:
            raise ConfigError(
                f"data_parallel_rank={self.data_parallel_rank} is not in [0, "
                f"data_parallel_size={self.data_parallel_size}). Pass the rank in the data-parallel group and its size."
            )

    @property
    def step_samples(self) -> int:
        """Number of samples of all ranks in one step."""
        return self.micro_batch_size * self.data_parallel_size

    @property
    def offset(self) -> int:
        """Position of this rank's first sample within a step."""
        return self.micro_batch_size * self.data_parallel_rank


@dataclass(eq=False)
class _StepSampler(Sampler[Batch]):
    """Options of the samplers over steps of all ranks: number of samples, and this rank's part of a step."""

    total_samples: int
    consumed_samples: int
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int

    def __post_init__(self) -> None:
        hold_integers(self, "total_samples", least=1)
        hold_integers(self, "consumed_samples", least=0)
        self._part = RankPart(
            micro_batch_size=self.micro_batch_size,
            data_parallel_rank=self.data_parallel_rank,
            data_parallel_size=self.data_parallel_size,
        )


@dataclass(eq=False)
class PretrainingSampler(_StepSampler):
    """Samples in order; neighbouring micro-batches go to neighbouring ranks.

    Samples that do not fill a step of all ranks are left out, or the step is filled up with None:

        10 samples, micro-batch 2, 2 ranks    rank 0: 0 1 | 4 5         rank 1: 2 3 | 6 7
        with drop_last=False                  rank 0: 0 1 | 4 5 | 8 9   rank 1: 2 3 | 6 7 | None None

    As in Megatron, at least one sample must be left to consume.
    """

    drop_last: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        hold_flags(self, "drop_last")
        if self.consumed_samples >= self.total_samples:
            raise ConfigError(
                f"consumed_samples={self.consumed_samples} of total_samples={self.total_samples}: none are left to "
                "train on. Build the data set for more samples, or begin another pass with consumed_samples=0."
            )

    def __len__(self) -> int:
        remaining = self.total_samples - self.consumed_samples
        step = self._part.step_samples
        return remaining // step if self.drop_last else -(-remaining // step)

    def __iter__(self) -> Iterator[Batch]:
        part, first = self._part, self.consumed_samples + self._part.offset
        for start in range(first, first + len(self) * part.step_samples, part.step_samples):
            samples = range(start, start + part.micro_batch_size)
            yield [sample if sample < self.total_samples else None for sample in samples]


@dataclass(eq=False)
class PretrainingRandomSampler(_StepSampler):
    """One epoch of samples in random order; iterating again gives the next epoch.

    `consumed_samples` determines the epoch and the place in the epoch, and grows with every batch given. Each epoch
    has the same number of full batches on all ranks. Samples that do not fill a step are left out: other samples in
    each epoch, or with `data_sharding` always the same samples.

    Args:
        data_sharding: whether each rank permutes its own bucket, so that ranks share no samples over epochs. If not,
            all samples are permuted, and rank r takes r, r + R, r + 2R, ….
    """

    data_sharding: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        hold_flags(self, "data_sharding")
        if self._epoch_samples == 0:
            raise ConfigError(
                f"{self.total_samples} samples do not fill one step of {self._part.step_samples}. Lower "
                "micro_batch_size, or train on fewer ranks."
            )
        if self.consumed_samples % self._part.step_samples:
            raise ConfigError(
                f"{self.consumed_samples} consumed samples are not a whole number of steps of "
                f"{self._part.step_samples}. Resume with the micro_batch_size and the ranks that they were consumed "
                "with."
            )

    @property
    def _epoch_samples(self) -> int:
        return self.total_samples - self.total_samples % self._part.step_samples

    def __len__(self) -> int:
        """Return the number of batches left in the current epoch."""
        return (self._epoch_samples - self.consumed_samples % self._epoch_samples) // self._part.step_samples

    def __iter__(self) -> Iterator[Batch]:
        part = self._part
        epoch, done = divmod(self.consumed_samples, self._epoch_samples)
        samples = self._order_bucket(epoch) if self.data_sharding else self._order_all(epoch)
        for start in range(done // part.data_parallel_size, len(samples), part.micro_batch_size):
            self.consumed_samples += part.step_samples
            batch: Batch = [*samples[start : start + part.micro_batch_size]]
            yield batch

    def _order_bucket(self, epoch: int) -> list[int]:
        bucket = self._epoch_samples // self._part.data_parallel_size
        first = self._part.data_parallel_rank * bucket
        return [first + sample for sample in self._permute(bucket, epoch)]

    def _order_all(self, epoch: int) -> list[int]:
        # Megatron permutes the samples that fill micro-batches of one rank, and uses the first that fill whole steps.
        permuted = self.total_samples - self.total_samples % self._part.micro_batch_size
        order = self._permute(permuted, epoch)[: self._epoch_samples]
        return order[self._part.data_parallel_rank :: self._part.data_parallel_size]

    @staticmethod
    def _permute(count: int, epoch: int) -> list[int]:
        # The epoch alone is the seed, as in Megatron: the data set already orders its samples by the seed of the job.
        order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(epoch)).tolist()
        return order


class GlobalBatchSampler(Sampler[Batch]):
    """All samples of one rank in a global batch at once, for schedulers that divide the samples again.

    The samples are the samples that `PretrainingSampler` gives in all steps of the global batch:

        16 samples, global batch 8, micro-batch 2      rank 0 of 2: 0 1 4 5 | 8 9 12 13
                                                       rank 1 of 2: 2 3 6 7 | 10 11 14 15
    """

    def __init__(
        self,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        global_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        drop_last: bool = True,
    ) -> None:
        self._steps = PretrainingSampler(
            total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size, drop_last=False
        )
        step_samples = micro_batch_size * data_parallel_size
        global_batch_size = check_integer("global_batch_size", global_batch_size, least=1)
        if global_batch_size % step_samples:
            raise ConfigError(
                f"global_batch_size={global_batch_size} is not a whole number of steps of {step_samples} samples. Pass "
                "a multiple of micro_batch_size x data_parallel_size."
            )
        self.global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size
        self._steps_per_batch = global_batch_size // step_samples
        self.drop_last = check_flag("drop_last", drop_last)

    def __len__(self) -> int:
        remaining = self._steps.total_samples - self._steps.consumed_samples
        return remaining // self.global_batch_size if self.drop_last else -(-remaining // self.global_batch_size)

    def __iter__(self) -> Iterator[Batch]:
        steps = iter(self._steps)
        missing: Batch = [None] * self.micro_batch_size
        for _ in range(len(self)):
            micro_batches = [next(steps, missing) for _ in range(self._steps_per_batch)]
            yield [sample for micro_batch in micro_batches for sample in micro_batch]


class FullValidationSampler(Sampler[int | None]):
    """Every sample once over all ranks: rank r takes r, r + R, r + 2R, …, and None fills up ranks that end early.

    All ranks give ⌈samples / R⌉ indices:

        5 samples, 2 ranks    rank 0: 0 2 4    rank 1: 1 3 None
    """

    def __init__(self, total_samples: int, data_parallel_rank: int, data_parallel_size: int) -> None:
        self.total_samples = check_integer("total_samples", total_samples, least=1)
        self._part = RankPart(
            micro_batch_size=1, data_parallel_rank=data_parallel_rank, data_parallel_size=data_parallel_size
        )

    def __len__(self) -> int:
        return -(-self.total_samples // self._part.data_parallel_size)

    def __iter__(self) -> Iterator[int | None]:
        ranks = self._part.data_parallel_size
        for sample in range(self._part.data_parallel_rank, len(self) * ranks, ranks):
            yield sample if sample < self.total_samples else None
