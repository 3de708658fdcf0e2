"""Turn the items of one global batch into packed microbatches: read, gather, schedule, move, pack, share."""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch

from torch_dataloader_utils.errors import ConfigError, DataError
from torch_dataloader_utils.megatron.schedules.global_lengths import (
    GlobalBatch,
    announce_failure,
    get_batch_and_global_seqlens,
)
from torch_dataloader_utils.megatron.schedules.groups import (
    Group,
    PackingGroups,
    broadcast_scalars,
    broadcast_tensor,
    check_groups,
    communication_device,
    exchange,
    first_rank,
    group_rank,
    group_size,
    maxima,
)
from torch_dataloader_utils.megatron.schedules.microbatches import (
    DataIterator,
    Microbatch,
    build_packed_microbatches,
    create_data_iterator,
    packed_metadata,
)
from torch_dataloader_utils.megatron.schedules.plan.inputs import PackingShape
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s, Schedule
from torch_dataloader_utils.megatron.schedules.samples import TOKEN_FIELDS, Item


def reroute_samples_to_dcp_ranks(
    batch: GlobalBatch, schedule: Schedule, groups: PackingGroups
) -> dict[int, dict[str, torch.Tensor]]:
    """Return the sequences that this rank computes, by global id; a collective call of the data × context ranks.

    Context-parallel ranks of one data-parallel rank have read the same sequences. So rank (d, c) gets all sequences
    from the ranks (·, c): one all-to-all per field inside the data-parallel group. Runs are in ascending order
    of id, on both sides.
    """
    device = communication_device(groups)
    cp_size, cp_rank = group_size(groups.cp), group_rank(groups.cp)
    dp_rank = group_rank(groups.dp)
    first, last = batch.offsets[dp_rank], batch.offsets[dp_rank + 1]
    wanted = schedule.samples_of_rank(group_rank(groups.dp_cp))
    sent = []
    for peer in range(group_size(groups.dp)):
        ids = schedule.samples_of_rank(peer * cp_size + cp_rank)
        sent.append(ids[(first <= ids) & (ids < last)])
    send_counts = [int(batch.padded_lengths[ids].sum()) for ids in sent]
    receive_counts = _tokens_by_source(wanted, batch)
    sizes = batch.padded_lengths[wanted].tolist()
    samples: dict[int, dict[str, torch.Tensor]] = {sample: {} for sample in wanted.tolist()}
    for field, dtype in TOKEN_FIELDS.items():
        own = [batch.local.fields[int(sample - first)][field] for ids in sent for sample in ids.tolist()]
        flat = torch.cat(own).to(device) if own else torch.empty(0, dtype=dtype, device=device)
        received = exchange(flat, send_counts=send_counts, receive_counts=receive_counts, group=groups.dp)
        for sample, values in zip(wanted.tolist(), torch.split(received, sizes), strict=True):
            samples[sample][field] = values
    return samples


def _tokens_by_source(wanted: Int64s, batch: GlobalBatch) -> list[int]:
    """Return for each data-parallel rank the number of tokens of the sequences `wanted` that this rank has read."""
    tokens = np.concatenate([[0], np.cumsum(batch.padded_lengths[wanted])])
    counts: list[int] = np.diff(tokens[np.searchsorted(wanted, batch.offsets)]).tolist()
    return counts


class StageBatch(NamedTuple):
    """Microbatches of one stage, and Σ length and Σ length² of the whole global batch."""

    microbatches: list[Microbatch]
    seqlen_sum: int
    seqlen_squared_sum: int


def broadcast_to_pp_group(own: StageBatch | None, groups: PackingGroups) -> StageBatch:
    """Return the batch of this stage; a collective call of the pipeline group (on tensor rank 0).

    The first and the last stage pass their own batch and get it back. Middle stages pass None and get the statistics
    and the metadata of the first stage, everything but the `TOKEN_FIELDS`. Metadata is sent as one int64 tensor:
    number of microbatches, Σ length, Σ length², then for each microbatch the size of `cu_seqlens`, `max_seqlen`,
    `local_cp_size` (0 without), `cu_seqlens`, `cu_seqlens_padded`.

    Raises:
        ConfigError: the first stage has no batch.
    """
    is_source = group_rank(groups.pp) == 0
    if is_source and own is None:
        raise ConfigError("the first pipeline stage has no batch to share; give it a data iterator.")
    if own is not None and group_size(groups.pp) <= 2:
        return own
    device = communication_device(groups)
    encoded = torch.empty(0, dtype=torch.int64) if own is None else _encode(own)
    (count,) = broadcast_scalars([encoded.numel()], groups.pp, device)
    shared = encoded.to(device) if is_source else torch.empty(int(count), dtype=torch.int64, device=device)
    broadcast_tensor(shared, first_rank(groups.pp), groups.pp)
    return _decode(shared.cpu(), device) if own is None else own


def digest_of(batch: StageBatch) -> int:
    """Return a digest of 56 bits (never negative), equal on stages that scheduled sequences of the same lengths."""
    return int.from_bytes(hashlib.blake2b(_encode(batch).numpy().tobytes(), digest_size=7).digest())


def _encode(batch: StageBatch) -> torch.Tensor:
    parts = [torch.tensor([len(batch.microbatches), batch.seqlen_sum, batch.seqlen_squared_sum])]
    for facts in batch.microbatches:
        local_cp_size = int(facts["local_cp_size"]) if "local_cp_size" in facts else 0
        header = [facts["cu_seqlens"].numel(), int(facts["max_seqlen"]), local_cp_size]
        parts += [torch.tensor(header), facts["cu_seqlens"].cpu(), facts["cu_seqlens_padded"].cpu()]
    return torch.cat([part.to(torch.int64) for part in parts])


def _decode(encoded: torch.Tensor, device: torch.device) -> StageBatch:
    num_microbatches, seqlen_sum, seqlen_squared_sum = encoded[:3].tolist()
    numbers = encoded[3:].to(torch.int32)
    microbatches = []
    for _ in range(num_microbatches):
        size, max_seqlen, local_cp_size = numbers[:3].tolist()
        bounds = numbers[3 : 3 + 2 * size].to(device)
        numbers = numbers[3 + 2 * size :]
        facts = {
            "cu_seqlens": bounds[:size],
            "cu_seqlens_padded": bounds[size:],
            "max_seqlen": torch.tensor(max_seqlen, dtype=torch.int32, device=device),
        }
        if local_cp_size:
            facts["local_cp_size"] = torch.tensor(local_cp_size, dtype=torch.int32, device=device)
        microbatches.append(facts)
    return StageBatch(microbatches, seqlen_sum, seqlen_squared_sum)


ItemIterator = Iterator[Item] | None | list[Iterator[Item] | None]

# The highest outcome wins when processes differ.
_READY, _ENDED, _DIFFERENT, _FAILED = 0, 1, 2, 3
_NO_DIGEST = -(1 << 62)


class ScheduledBatch(NamedTuple):
    """Global batch ready to train on, in the order in which Megatron's training loop unpacks the values.

    Attributes:
        data_iterator: iterator of `num_microbatches` packed microbatches; None on tensor ranks above 0, a list with
            virtual stages.
        num_microbatches: number of microbatches.
        seqlen_sum: Σ length over the padded lengths of all sequences of the global batch, to count floating-point
            operations.
        seqlen_squared_sum: Σ length² over the same lengths.
    """

    data_iterator: DataIterator
    num_microbatches: int
    seqlen_sum: int
    seqlen_squared_sum: int


class Scheduling(Protocol):
    """Part of a scheduler that the runtime needs."""

    @property
    def shape(self) -> PackingShape:
        """Ranks to schedule for."""

    @property
    def is_hybrid(self) -> bool:
        """Whether packs differ in the number of their ranks."""

    def schedule(self, lengths: Int64s) -> Schedule:
        """Return the schedule of a global batch of padded lengths."""


def run_global_batch(
    scheduler: Scheduling,
    data_iterator: ItemIterator,
    num_microbatches: int,
    groups: PackingGroups,
    virtual_pipeline_size: int | None,
) -> ScheduledBatch:
    """Read `num_microbatches` items per data-parallel rank and return them scheduled; a collective call.

    Tensor rank 0 of the first and last pipeline stage has an iterator, all other processes have None. If one process
    fails, all processes raise: no process waits for a peer that is gone.

    Raises:
        StopIteration: all iterators had ended; on every rank.
        ConfigError: the global batch does not fit the schedule, or iterators are in the wrong places.
        DataError: another process failed, or pipeline stages have read different data.
    """
    check_groups(groups, shape=scheduler.shape)
    own: StageBatch | None = None
    status = _READY
    try:
        iterator = _announced_iterator(data_iterator, groups, virtual_pipeline_size)
        if iterator is not None:
            own = _schedule_own(scheduler, iterator, num_microbatches, groups)
    except StopIteration:
        status = _ENDED
    except Exception:
        # Any exception: the peers in the other groups are about to wait for this process.
        _worst_status(_FAILED, None, groups)
        raise
    worst = _worst_status(status, own, groups)
    if worst == _ENDED:
        raise StopIteration
    if worst == _DIFFERENT:
        raise DataError(
            "first and last pipeline stage have read sequences of different lengths. "
            "Give both the same data in the same order."
        )
    if worst == _FAILED:
        raise DataError("another process could not schedule this global batch; its own error says why.")
    return _share(own, groups, virtual_pipeline_size)


def stage_has_data(groups: PackingGroups) -> bool:
    """Return whether this process reads data: tensor rank 0 of the first and of the last pipeline stage."""
    return group_rank(groups.tp) == 0 and group_rank(groups.pp) in (0, group_size(groups.pp) - 1)


def length_statistics(lengths: Int64s) -> tuple[int, int]:
    """Return Σ length and Σ length², exact."""
    return int(lengths.sum()), int((lengths * lengths).sum())


def _announced_iterator(
    data_iterator: ItemIterator, groups: PackingGroups, virtual_pipeline_size: int | None
) -> Iterator[Item] | None:
    """Return `_own_iterator`. If this rank has data and fails, announce the failure to ranks that expect lengths."""
    try:
        return _own_iterator(data_iterator, groups, virtual_pipeline_size)
    except ConfigError:
        if stage_has_data(groups):
            announce_failure(groups)
        raise


def _own_iterator(
    data_iterator: ItemIterator, groups: PackingGroups, virtual_pipeline_size: int | None
) -> Iterator[Item] | None:
    """Return the iterator that this process reads; with virtual stages the first that is not None."""
    if isinstance(data_iterator, list):
        if len(data_iterator) != (virtual_pipeline_size or 1):
            raise ConfigError(
                f"{len(data_iterator)} data iterators for {virtual_pipeline_size or 1} virtual pipeline stages; "
                "pass a list with one entry per stage, or one iterator."
            )
        data_iterator = next((each for each in data_iterator if each is not None), None)
    if (data_iterator is not None) != stage_has_data(groups):
        raise ConfigError(
            f"tensor rank {group_rank(groups.tp)} of pipeline stage {group_rank(groups.pp)} has "
            f"{'no' if data_iterator is None else 'a'} data iterator; tensor rank 0 of the first and last stage "
            "have one, all others None. Pass what wrap_data_iterator gave on this rank."
        )
    return data_iterator


def _schedule_own(
    scheduler: Scheduling, data_iterator: Iterator[Item], num_microbatches: int, groups: PackingGroups
) -> StageBatch:
    """Return the packed microbatches of this process: read, gather lengths, schedule, move, pack."""
    batch = get_batch_and_global_seqlens(data_iterator, num_microbatches, groups)
    schedule = _agreed_schedule(scheduler, batch.padded_lengths, groups)
    samples = reroute_samples_to_dcp_ranks(batch, schedule, groups)
    dcp_rank = group_rank(groups.dp_cp)
    metadata = packed_metadata(
        schedule,
        dcp_rank,
        original_lengths=batch.original_lengths,
        padded_lengths=batch.padded_lengths,
        device=communication_device(groups),
        is_hybrid=scheduler.is_hybrid,
    )
    microbatches = build_packed_microbatches(samples, metadata, schedule, dcp_rank)
    return StageBatch(microbatches, *length_statistics(batch.padded_lengths[schedule.samples]))


def _agreed_schedule(scheduler: Scheduling, lengths: Int64s, groups: PackingGroups) -> Schedule:
    """Return the schedule after all data × context parallel ranks have made the same schedule; a collective call.

    The schedule decides which tokens a rank sends to which rank. Ranks with different schedules would wait for tokens
    that no rank sends, or use memory that was never written as tokens.

    Raises:
        ConfigError: the ranks have made different schedules.
        DataError: another rank could not make a schedule.
    """
    device = communication_device(groups)
    try:
        schedule = scheduler.schedule(lengths)
    except Exception:
        # Any exception: the other ranks are about to wait for this rank.
        _agree(_FAILED, None, groups.dp_cp, device)
        raise
    worst = _agree(_READY, schedule.digest(), groups.dp_cp, device)
    if worst == _DIFFERENT:
        raise ConfigError(
            "ranks have made different schedules of the same lengths. Give all ranks the same scheduler and options; "
            "get_groups_and_subsamples has to be a pure function (no randomness, no rank, no order of sets)."
        )
    if worst == _FAILED:
        raise DataError("another rank could not schedule this global batch; its own error says why.")
    return schedule


def _worst_status(status: int, own: StageBatch | None, groups: PackingGroups) -> int:
    """Return the worst status of all processes of the job, or `_DIFFERENT` if pipeline stages read other lengths."""
    device = communication_device(groups)
    status = _agree(status, None, groups.dp_cp, device)
    status = _agree(status, None if own is None else digest_of(own), groups.pp, device)
    return _agree(status, None, groups.tp, device)


def _agree(status: int, digest: int | None, group: Group, device: torch.device) -> int:
    """Return the worst status in a group: at least `_DIFFERENT` if two processes have different digests."""
    digests = [_NO_DIGEST, _NO_DIGEST] if digest is None else [digest, -digest]
    status, most, least = maxima([status, *digests], group, device)
    is_different = most != -least and most != _NO_DIGEST
    return max(status, _DIFFERENT) if is_different else status


def _share(own: StageBatch | None, groups: PackingGroups, virtual_pipeline_size: int | None) -> ScheduledBatch:
    """Send metadata to the middle stages, and counts and statistics to the tensor ranks."""
    batch = StageBatch([], 0, 0)
    if group_rank(groups.tp) == 0:
        batch = broadcast_to_pp_group(own, groups)
    counts = [len(batch.microbatches), batch.seqlen_sum, batch.seqlen_squared_sum]
    num_microbatches, *statistics = broadcast_scalars(counts, groups.tp, communication_device(groups))
    return ScheduledBatch(
        create_data_iterator(batch.microbatches, groups, virtual_pipeline_size),
        int(num_microbatches),
        *map(int, statistics),
    )
