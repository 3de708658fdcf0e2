"""Read samples (one sequence each, as 1-D tensors) from a data iterator, and check each sample once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import pad

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s

Tensors = Mapping[str, torch.Tensor]
Item = Tensors | Sequence[Tensors]

TOKEN_FIELDS: dict[str, torch.dtype] = {
    "tokens": torch.int64,
    "labels": torch.int64,
    "loss_mask": torch.float32,
    "position_ids": torch.int64,
}
"""Fields of a sample, one value per token, and the dtype in which each field is sent."""

_LENGTH_FIELDS = ("original_seq_len", "padded_seq_len")
REQUIRED_KEYS = (*TOKEN_FIELDS, *_LENGTH_FIELDS)
_PACKED_KEYS = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Sequences of one process.

    Attributes:
        fields: `TOKEN_FIELDS` of each sequence, each a tensor of shape [padded length].
        lengths: int64 [n, 2]: number of tokens of each sequence without and with padding.
        num_items: number of items read, with or without a sequence; 0 if the iterator had ended.
    """

    fields: list[dict[str, torch.Tensor]]
    lengths: Int64s
    num_items: int


def read_samples(data_iterator: Iterator[Item], num_items: int) -> Samples:
    """Read the sequences of the next `num_items` items, or of fewer items if the iterator ends.

    An item is one sequence (a dict with `REQUIRED_KEYS`), a list of sequences, or a packed row: a dict with
    `TOKEN_FIELDS` and `cu_seqlens` (and `cu_seqlens_padded` if sequences are padded). A packed row is split into its
    sequences. A leading batch dimension of 1 is removed.

    Raises:
        ConfigError: a missing key, an unknown key, a field that is not as long as `padded_seq_len`, or `cu_seqlens`
            that do not divide the row.
        ConfigTypeError: an item that is not a dict, or a field that is not a tensor.
    """
    samples: list[dict[str, torch.Tensor]] = []
    num_read = 0
    for index in range(check_integer("num_microbatches", num_items, least=1)):
        try:
            item = next(data_iterator)
        except StopIteration:
            break
        num_read += 1
        where = f"item {index} of the data iterator"
        for sample in [item] if isinstance(item, Mapping) or not isinstance(item, Iterable) else item:
            if not isinstance(sample, Mapping):
                raise ConfigTypeError(f"{where} has {of_type(sample)}; use a sample (a dict), or a list of samples.")
            samples.extend(_unpacked(sample, where) if "cu_seqlens" in sample else [_checked(sample, where)])
    lengths = [[int(sample.pop(key)) for key in _LENGTH_FIELDS] for sample in samples]
    for sample, (original, padded) in zip(samples, lengths, strict=True):
        _check_field_lengths(sample, original, padded)
    return Samples(
        fields=samples,
        lengths=np.array(lengths, dtype=np.int64).reshape(-1, len(_LENGTH_FIELDS)),
        num_items=num_read,
    )


def pad_sample(sample: Tensors, *, multiple: int = 1) -> dict[str, torch.Tensor]:
    """Return a sample with `REQUIRED_KEYS`: `TOKEN_FIELDS` padded with zeros to a multiple, and the two lengths.

    Padding has loss mask 0. Context parallelism over n ranks needs multiples of 2 × n; the runtime pads to this
    multiple itself, so `multiple` matters only if the model needs more padding (sequence parallelism, FP8).

    Raises:
        ConfigError: `multiple` is not a whole number from 1.
    """
    multiple = check_integer("multiple", multiple, least=1)
    original = sample["tokens"].numel()
    padded = -(-original // multiple) * multiple
    return {
        **{field: pad(sample[field].reshape(-1), (0, padded - original)) for field in TOKEN_FIELDS},
        "original_seq_len": torch.tensor([original]),
        "padded_seq_len": torch.tensor([padded]),
    }


def _checked(sample: Tensors, where: str) -> dict[str, torch.Tensor]:
    """Return the six keys of a sample, with fields as 1-D tensors in the dtype of `TOKEN_FIELDS`.

    Any other key would not reach the model, so it is an error rather than a silent loss.
    """
    missing = [key for key in REQUIRED_KEYS if key not in sample]
    unknown = [key for key in sample if key not in REQUIRED_KEYS]
    if missing or unknown:
        raise ConfigError(
            f"{where} misses {missing} and has unknown keys {unknown}; a sample has exactly {list(REQUIRED_KEYS)}. "
            "pad_sample adds the lengths."
        )
    return {key: flatten_field(sample[key], key, where, TOKEN_FIELDS.get(key, torch.int64)) for key in REQUIRED_KEYS}


def _unpacked(row: Tensors, where: str) -> list[dict[str, torch.Tensor]]:
    """Return the sequences of a packed row, without sequences of length 0."""
    unknown = [key for key in row if key not in TOKEN_FIELDS and key not in _PACKED_KEYS]
    if unknown:
        raise ConfigError(
            f"{where} has unknown keys {unknown}; a packed row has {[*TOKEN_FIELDS, *_PACKED_KEYS]}. Leave them out."
        )
    fields = {key: flatten_field(row[key], key, where, dtype) for key, dtype in TOKEN_FIELDS.items() if key in row}
    missing = [key for key in TOKEN_FIELDS if key not in fields]
    if missing:
        raise ConfigError(f"{where} misses {missing}; give {list(TOKEN_FIELDS)} and cu_seqlens.")
    borders = {
        key: flatten_field(row[key], key, where, torch.int64)
        for key in ("cu_seqlens", "cu_seqlens_padded")
        if key in row
    }
    bounds = borders.get("cu_seqlens_padded", borders["cu_seqlens"]).tolist()
    originals = borders["cu_seqlens"].diff().tolist()
    _check_bounds(bounds, len(originals), fields, where)
    return [
        {
            **{key: field[start:stop] for key, field in fields.items()},
            "original_seq_len": torch.tensor([original]),
            "padded_seq_len": torch.tensor([stop - start]),
        }
        for (start, stop), original in zip(pairwise(bounds), originals, strict=True)
        if stop > start
    ]


def _check_bounds(bounds: list[int], num_sequences: int, fields: dict[str, torch.Tensor], where: str) -> None:
    """Raise unless every token of a packed row is in one sequence, or is padding after the last sequence."""
    sizes = {key: field.numel() for key, field in fields.items()}
    if len(set(sizes.values())) > 1:
        raise ConfigError(
            f"{where} has {sizes} values; all fields of a packed row are equally long. Cut or pad them "
            "where the row is made."
        )
    loss_mask = fields["loss_mask"]
    is_rising = bounds[:1] == [0] and bounds == sorted(bounds) and bounds[-1] <= len(loss_mask)
    if not is_rising or len(bounds) != num_sequences + 1 or loss_mask[bounds[-1] :].any():
        raise ConfigError(
            f"{where} has {len(loss_mask)} tokens and {num_sequences} sequences, whose {len(bounds)} borders run from "
            f"{bounds[:4]} to {bounds[-1:]}. cu_seqlens (and cu_seqlens_padded, with as many entries) begin with 0, "
            "never fall, and end at the end of the row; only tokens with loss mask 0 may follow."
        )


def flatten_field(value: object, key: str, where: str, dtype: torch.dtype) -> torch.Tensor:
    """Return a field as a 1-D tensor of `dtype`.

    Raises:
        ConfigError: neither [tokens] nor [1, tokens]. ConfigTypeError: not a tensor, or fractions as tokens.
    """
    if not isinstance(value, torch.Tensor):
        raise ConfigTypeError(f"{key} of {where} is {of_type(value)}; use a torch.Tensor.")
    if value.is_floating_point() and not dtype.is_floating_point:
        raise ConfigTypeError(f"{key} of {where} has dtype {value.dtype}; use whole numbers, best {dtype}.")
    if value.numel() != max(value.shape, default=1):
        raise ConfigError(f"{key} of {where} has shape {list(value.shape)}; use [tokens] or [1, tokens].")
    return value.reshape(-1).to(dtype)


def _check_field_lengths(sample: dict[str, torch.Tensor], original: int, padded: int) -> None:
    if not 0 <= original <= padded:
        raise ConfigError(
            f"original_seq_len is {original} in a sample with padded_seq_len {padded}; it counts the tokens before the "
            "padding. pad_sample sets both."
        )
    for key in TOKEN_FIELDS:
        if sample[key].numel() != padded:
            raise ConfigError(
                f"{key} has {sample[key].numel()} values in a sample with padded_seq_len {padded}; "
                "all fields of a sample are as long as padded_seq_len. pad_sample pads them."
            )
