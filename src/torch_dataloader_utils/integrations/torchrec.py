"""TorchRec: makes a KeyedJaggedTensor of the sparse features of a batch.

Source: torchrec 1.8, `torchrec.sparse.jagged_tensor.KeyedJaggedTensor`.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from torch_dataloader_utils._core.arguments import check_has_order
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.shape.ragged import Ragged


def to_keyed_jagged_tensor(
    batch: Mapping[str, Any], keys: Sequence[str], *, weights: Sequence[str] | None = None
) -> KeyedJaggedTensor:
    """Return columns of a batch as one KeyedJaggedTensor: all values of the first key, then all values of the next.

        tags [[7, 8], [], [9]], city [3, 4, 3]

        to_keyed_jagged_tensor(batch, ["tags", "city"])
            values    7 8 9 | 3 4 3
            lengths   2 0 1 | 1 1 1

    A row of a list column has as many values as its list, a plain number is one value, and a list of fixed length n is
    n values. Values are copied once, into one tensor on the device of the batch; nothing waits for the device. So move
    the batch first, in one transfer: `to_keyed_jagged_tensor(batch.to(device), keys)`.

    Args:
        batch: TensorBatch, or another mapping of names to `Ragged` and tensors, all with the same number of rows.
        keys: Names of columns of integers, in the order of the result. For text use `encode=` of the loader.
        weights: Names of columns of numbers, one for each key, with a weight for each value of the key. Weights become
            float32, which embedding bags take. For a model that weighs only some keys, make two tensors.

    Returns:
        A tensor with int32 values if all keys are int32, else int64 values. Lengths are int64.

    Raises:
        ConfigError: a column is missing, `keys` is empty or names a column twice, a column of weights has not one
            weight for each value, or columns differ in their number of rows.
        ConfigTypeError: a column is not a tensor of numbers.
    """
    keys = _names("keys", keys)
    if not keys or len(set(keys)) < len(keys):
        raise ConfigError(f"keys={keys}: name at least one column, and each only once.")
    columns = [_jagged(name, _column("keys", batch, name)) for name in keys]
    rows = [len(lengths) for _, lengths in columns]
    if len(set(rows)) > 1:
        raise ConfigError(f"keys={keys} have {rows} rows; take columns of one batch.")
    values = [_integers(name, numbers) for name, (numbers, _) in zip(keys, columns, strict=True)]
    counts = [len(numbers) for numbers in values]
    lengths = [of_key for _, of_key in columns]
    return KeyedJaggedTensor(
        keys=keys,
        values=_joined(values),
        weights=None if weights is None else _joined(_weights(batch, keys, columns, weights)),
        lengths=_joined(lengths),
        stride=rows[0],
        length_per_key=counts,
        offset_per_key=[sum(counts[:number]) for number in range(len(counts) + 1)],
    )


def _names(option: str, names: Sequence[str]) -> list[str]:
    if isinstance(names, str):
        raise ConfigTypeError(f"{option}={names!r} is one text: pass a list of names, [{names!r}].")
    check_has_order(option, names)
    return list(names)


def _column(option: str, batch: Mapping[str, Any], name: str) -> Any:
    if name not in batch:
        raise ConfigError(
            f"{option}= names column {name!r}, which the batch does not have. It has {', '.join(batch)}; correct the "
            "name, or add the column to columns= of the loader."
        )
    return batch[name]


def _jagged(name: str, column: Any) -> tuple[Tensor, Tensor]:
    """Return the values of all rows of a column, and the number of values of each row."""
    if isinstance(column, Ragged) and column.values.dim() == 1:
        return column.values, column.lengths
    if isinstance(column, Tensor) and column.dim() >= 1:
        in_row = prod(column.shape[1:])
        return column.flatten(), torch.full((len(column),), in_row, dtype=torch.int64, device=column.device)
    raise ConfigTypeError(
        f"column {name!r} is {of_type(column)}: pass numbers or lists of numbers. encode= of the loader makes numbers "
        "of text."
    )


def _integers(name: str, values: Tensor) -> Tensor:
    if values.dtype in (torch.int64, torch.int32):
        return values
    if values.dtype in (torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32):
        return values.to(torch.int64)
    raise ConfigTypeError(
        f"column {name!r} holds {values.dtype}, but keys are columns of integers that fit int64. Name floats in "
        "weights=, or give encode= to the loader."
    )


def _weights(
    batch: Mapping[str, Any], keys: Sequence[str], columns: Sequence[tuple[Tensor, Tensor]], weights: Sequence[str]
) -> list[Tensor]:
    """Return the weights of all values of each key, float32."""
    names = _names("weights", weights)
    if len(names) != len(keys):
        raise ConfigError(f"weights={names} for keys={keys}: name one column for each key, in their order.")
    found = []
    for key, (values, lengths), name in zip(keys, columns, names, strict=True):
        numbers, of_row = _jagged(name, _column("weights", batch, name))
        # Lengths are compared on the CPU only: on a device the comparison would wait for the device.
        if numbers.shape != values.shape or (lengths.is_cpu and not torch.equal(of_row, lengths)):
            raise ConfigError(f"column {name!r} has not one weight for each value of {key!r} in every row.")
        found.append(numbers.to(torch.float32))
    return found


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
