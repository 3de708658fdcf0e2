"""Load packed global batches from known lengths: every rank computes the schedule and reads only its own sequences."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from torch_dataloader_utils._core.arguments import (
    check_counts,
    check_epoch,
    check_fits,
    check_flag,
    check_integer,
    check_seed,
)
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._runtime.user_warning import warn_of_earlier_epoch
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError, DataError, of_type
from torch_dataloader_utils.megatron.schedules.global_batch import ScheduledBatch, length_statistics, stage_has_data
from torch_dataloader_utils.megatron.schedules.groups import (
    PackingGroups,
    check_groups,
    communication_device,
    group_rank,
    known_groups,
)
from torch_dataloader_utils.megatron.schedules.microbatches import (
    Microbatch,
    build_packed_microbatches,
    create_data_iterator,
    packed_metadata,
)
from torch_dataloader_utils.megatron.schedules.plan.fit import checked_lengths
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s
from torch_dataloader_utils.megatron.schedules.samples import TOKEN_FIELDS, Tensors, flatten_field
from torch_dataloader_utils.megatron.schedules.schedulers import BasePackingScheduler

_STATE_VERSION = 1


class SequenceSource(Protocol):
    """Source of sequences by index: `TOKEN_FIELDS` as 1-D tensors, without padding.

    A source with PyTorch's `__getitems__(indices)` is called once for all sequences of a global batch.
    """

    def __getitem__(self, index: int, /) -> Tensors:
        """Return the sequence at `index`."""


class PlannedPackedLoader:
    """Loader of global batches as `wrap_data_iterator` returns them, without any communication.

    The lengths are known before a byte is read, so every rank computes the schedule of the whole global batch and
    reads the sequences of its own packs. Global batch b holds sequences b × global_batch_size onwards, in order or
    in the permutation keyed by (seed, epoch).

    Iterating gives the global batches of one epoch from the current position; the next iteration is the next epoch.
    The state counts given global batches, is the same on every rank, and fits any number of ranks.

    Args:
        source: source of the sequences; read on tensor rank 0 of the first and last pipeline stage only.
        lengths: number of tokens of every sequence of `source`, [n].
        scheduler: scheduler for the sizes of `groups`.
        global_batch_size: number of sequences of a global batch, over all ranks.
        groups: process groups; None for a single process.
        shuffle: whether every epoch has another order.
        seed: key of the orders.
        drop_last: whether the last sequences of an epoch are left out if they do not fill a global batch.
        virtual_pipeline_size: number of virtual pipeline stages per process, or None.

    Raises:
        ConfigError: an impossible length or size, or a scheduler for other sizes than the sizes of `groups`.
    """

    def __init__(
        self,
        source: SequenceSource,
        lengths: Sequence[int] | Int64s,
        scheduler: BasePackingScheduler,
        *,
        global_batch_size: int,
        groups: PackingGroups | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        virtual_pipeline_size: int | None = None,
    ) -> None:
        self._source = source
        self._lengths = checked_lengths(lengths)
        if not isinstance(scheduler, BasePackingScheduler):
            raise ConfigTypeError(
                f"scheduler={scheduler!r}: pass a scheduler, such as ComputeBalancedScheduler(8192, cp_size, dp_size)."
            )
        self._scheduler = scheduler
        self._global_batch_size = check_integer("global_batch_size", global_batch_size, least=1)
        self._groups = known_groups(groups)
        self._shuffle = check_flag("shuffle", shuffle)
        self._seed = check_seed("seed", seed)
        self._drop_last = check_flag("drop_last", drop_last)
        self._virtual_pipeline_size = virtual_pipeline_size
        self._epoch = 0
        self._num_given = 0
        self._loaded_epoch: int | None = None
        check_groups(self._groups, shape=scheduler.shape)
        self._check_last_batch()

    def __len__(self) -> int:
        """Return the number of global batches of an epoch."""
        full, rest = divmod(len(self._lengths), self._global_batch_size)
        return full + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[ScheduledBatch]:
        epoch, order, self._loaded_epoch = self._epoch, self._order(), None
        for index in range(self._num_given, len(self)):
            batch = self._read(order[index * self._global_batch_size : (index + 1) * self._global_batch_size])
            is_last = index + 1 == len(self)
            self._epoch, self._num_given = (epoch + 1, 0) if is_last else (epoch, index + 1)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Start `epoch`; the current epoch keeps its position.

        Raises:
            ConfigError: not a whole number from 0.
        """
        epoch = check_epoch(epoch)
        if self._loaded_epoch is not None:
            warn_of_earlier_epoch(self._loaded_epoch, epoch)
        if epoch != self._epoch:
            self._epoch, self._num_given, self._loaded_epoch = epoch, 0, None

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON values: fingerprint of the data, epoch, number of global batches given."""
        return {
            "version": _STATE_VERSION,
            "fingerprint": self._fingerprint(),
            "seed": self._seed,
            "epoch": self._epoch,
            "global_batches": self._num_given,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last global batch of `state`, on any number of ranks.

        Raises:
            CheckpointMismatchError: the state is of other lengths, another global batch size, order or seed, or its
                position is not in an epoch.
        """
        problem = "The state does not fit (fingerprint is that of lengths, global_batch_size, shuffle and drop_last)"
        check_fits(state, self.state_dict(), ("version", "fingerprint", "seed"), problem=problem)
        check_counts(state, "epoch", "global_batches")
        if state["global_batches"] >= max(len(self), 1):
            raise CheckpointMismatchError(
                f"The state says global_batches={state['global_batches']}, of {len(self)} in an epoch. Load what "
                "state_dict returned."
            )
        self._epoch, self._num_given = self._loaded_epoch, _ = state["epoch"], state["global_batches"]

    def _check_last_batch(self) -> None:
        """Raise now, not at the end of the first epoch, if the last global batch is too small."""
        rest = len(self._lengths) % self._global_batch_size
        shape = self._scheduler.shape
        packs = shape.microbatch_multiple * (1 if self._scheduler.is_hybrid else shape.dp_size)
        if 0 < rest < packs and not self._drop_last and self._scheduler.policy.missing_packs == "error":
            raise ConfigError(
                f"the last global batch of an epoch has {rest} of {self._global_batch_size} sequences, the ranks need "
                f'{packs} packs. Set drop_last=True, missing_packs="fill", or another global_batch_size.'
            )

    def _order(self) -> Int64s:
        if not self._shuffle:
            return np.arange(len(self._lengths))
        return permutation(len(self._lengths), seed=self._seed, epoch=self._epoch, purpose=Purpose.PACKS)

    def _fingerprint(self) -> str:
        options = f"{self._global_batch_size},{self._shuffle},{self._drop_last},".encode()
        return hashlib.blake2b(options + self._lengths.tobytes(), digest_size=16).hexdigest()

    def _read(self, ids: Int64s) -> ScheduledBatch:
        """Return this rank's part of the global batch of the sequences `ids`."""
        lengths = self._lengths[ids]
        schedule = self._scheduler.schedule(lengths)
        microbatches: list[Microbatch] = []
        if group_rank(self._groups.tp) == 0:
            dcp_rank = group_rank(self._groups.dp_cp)
            microbatches = packed_metadata(
                schedule,
                dcp_rank,
                original_lengths=lengths,
                padded_lengths=lengths,
                device=communication_device(self._groups),
                is_hybrid=self._scheduler.is_hybrid,
            )
            if stage_has_data(self._groups):
                positions = schedule.samples_of_rank(dcp_rank)
                samples = dict(zip(positions.tolist(), self._fetch(ids[positions]), strict=True))
                microbatches = build_packed_microbatches(samples, microbatches, schedule, dcp_rank)
        return ScheduledBatch(
            create_data_iterator(microbatches, self._groups, self._virtual_pipeline_size),
            schedule.num_microbatches,
            *length_statistics(lengths[schedule.samples]),
        )

    def _fetch(self, ids: Int64s) -> list[dict[str, torch.Tensor]]:
        """Return the fields of the sequences `ids`, each checked against its planned length.

        Raises:
            DataError: a sequence or a field is missing, or not as long as planned.
            ConfigError, ConfigTypeError: a field is not a 1-D tensor, or tokens are fractions.
        """
        get_many = getattr(self._source, "__getitems__", None)
        listed = ids.tolist()
        found = [self._source[index] for index in listed] if get_many is None else list(get_many(listed))
        if len(found) != len(listed):
            raise DataError(
                f"the source gave {len(found)} of {len(listed)} sequences. Its __getitems__ must give one per index."
            )
        sequences = []
        for index, sequence in zip(listed, found, strict=True):
            where, planned = f"sequence {index} of the source", int(self._lengths[index])
            if not isinstance(sequence, Mapping):
                raise ConfigTypeError(f"{where} is {of_type(sequence)}; use a dict of {list(TOKEN_FIELDS)}.")
            if missing := [key for key in TOKEN_FIELDS if key not in sequence]:
                raise DataError(f"{where} has no {missing}; use a dict of {list(TOKEN_FIELDS)}.")
            fields = {key: flatten_field(sequence[key], key, where, dtype) for key, dtype in TOKEN_FIELDS.items()}
            sizes = {key: field.numel() for key, field in fields.items()}
            if set(sizes.values()) != {planned}:
                raise DataError(
                    f"{where} has {sizes} values where {planned} tokens were planned. "
                    "The lengths do not belong to this source; compute them again."
                )
            sequences.append(fields)
        return sequences
