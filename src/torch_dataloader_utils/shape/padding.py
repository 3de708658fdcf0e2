"""Pad ragged columns to dense tensors with masks: `PadRagged`, a collate function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import torch

from torch_dataloader_utils._core.arguments import check_choice, check_column_names, hold_flags, hold_integers
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.shape.ragged import Ragged, longest_row, value_mask
from torch_dataloader_utils.shape.specs import MASK_SUFFIX
from torch_dataloader_utils.shape.tensor_batch import TensorBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PadRagged:
    """Collate function that pads the ragged columns of a batch: `collate_fn=PadRagged()`. Picklable, for all workers.

    Column `tokens` becomes a tensor [rows, length, ...], with a mask `tokens_mask`: bool [rows, length], True at
    values. The length is the length of the longest row of the batch, rounded up to `pad_to_multiple_of`.

        [[7, 8], [], [9]], multiple of 4      7 8 0 0      1 1 0 0
                                              0 0 0 0      0 0 0 0
                                              9 0 0 0      1 0 0 0

    Attributes:
        columns: names of ragged columns; None for all ragged columns.
        padding_value: number that fills short rows, or a number for each column by name (0 for other columns).
        side: side of the padding, "right" or "left".
        pad_to_multiple_of: lengths are rounded up to a multiple of this number: tensor cores prefer multiples of 8 or
            64, and compiled models prefer few different shapes.
        with_masks: true to add masks.
    """

    columns: Sequence[str] | None = None
    padding_value: float | Mapping[str, float] = 0
    side: str = "right"
    pad_to_multiple_of: int = 1
    with_masks: bool = True

    def __post_init__(self) -> None:
        check_choice("side", self.side, ("right", "left"))
        object.__setattr__(self, "columns", check_column_names("columns", self.columns))
        hold_integers(self, "pad_to_multiple_of", least=1)
        hold_flags(self, "with_masks")
        given = self.padding_value
        if not all(isinstance(value, Real) for value in (given.values() if isinstance(given, Mapping) else [given])):
            raise ConfigTypeError(
                f'padding_value={given!r}: pass a number, or one by column, such as {{"tokens": -1}}.'
            )

    def __call__(self, batch: TensorBatch) -> TensorBatch:
        """Return the batch with dense columns. Columns that are not ragged stay as they are.

        Raises:
            ConfigError: a column (also of padding_value) does not exist or is not ragged, the name of a mask is taken,
                or a column cannot hold its padding value.
        """
        if not isinstance(batch, TensorBatch):
            raise ConfigError(f'PadRagged pads batches of output_format="torch", not {type(batch).__name__}.')
        chosen = self._chosen(batch)
        padded = TensorBatch(num_rows=batch.num_rows)
        for name, column in batch.items():
            if name not in chosen:
                padded[name] = column
                continue
            rows = batch.ragged(name)
            width = self._width(rows)
            padded[name] = self._pad(name, rows, width)
            if self.with_masks:
                if name + MASK_SUFFIX in batch:
                    raise ConfigError(
                        f"PadRagged: the batch already has {name + MASK_SUFFIX!r}. Rename the column, give nulls of "
                        f"{name!r} a fill value instead of a mask, or pass with_masks=False."
                    )
                padded[name + MASK_SUFFIX] = value_mask(rows.offsets, width, self.side)
        return padded

    def _chosen(self, batch: TensorBatch) -> set[str]:
        ragged = {name for name, column in batch.items() if isinstance(column, Ragged)}
        for name in (*(self.columns or ()), *(self.padding_value if isinstance(self.padding_value, Mapping) else ())):
            if name not in ragged:
                raise ConfigError(
                    f"PadRagged: {name!r} is not a ragged column of the batch; ragged columns are {sorted(ragged)}."
                )
        if self.columns is None:
            return ragged
        return set(self.columns)

    def _width(self, column: Ragged) -> int:
        return -(-longest_row(column.offsets) // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def _pad(self, name: str, column: Ragged, width: int) -> torch.Tensor:
        value = self.padding_value.get(name, 0) if isinstance(self.padding_value, Mapping) else self.padding_value
        return column.to_padded(value, max_length=width, side=self.side)
