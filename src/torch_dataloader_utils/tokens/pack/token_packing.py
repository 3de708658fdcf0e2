"""How documents become samples: `pack_tokens` and the value it gives."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypedDict, get_args

from torch_dataloader_utils._core.arguments import hold_flags, hold_integers
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

Fill = Literal["greedy", "best_fit"]
OverLong = Literal["cut", "drop", "error"]
Counts = Literal["footers", "read"]
Field = Literal["tokens", "positions", "loss_mask", "cu_seqlens"]

FIELDS: tuple[str, ...] = get_args(Field)

# Arrow's fixed-size lists count items in int32, and a sample may have one token more.
_MOST_TOKENS = 2**31 - 2


class PackTokensKeywords(TypedDict, total=False):
    """The keyword arguments of `pack_tokens`."""

    eod: int | None
    extra_token: bool
    fill: Fill
    pad_id: int
    over_long: OverLong
    fields: Sequence[str]
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPacking:
    """How documents become samples; `pack_tokens` gives it and says more. Pass it as `pack=`."""

    column: str
    sequence_length: int
    eod: int | None = None
    extra_token: bool = False
    fill: Fill = "greedy"
    pad_id: int = 0
    over_long: OverLong = "cut"
    fields: tuple[str, ...] = FIELDS
    counts: Counts = "footers"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise ConfigTypeError(f"column={self.column!r}: pass the name of a list column.")
        hold_integers(self, "sequence_length", least=1)
        if self.sequence_length > _MOST_TOKENS:
            raise ConfigError(f"sequence_length={self.sequence_length}: pass at most {_MOST_TOKENS}.")
        hold_flags(self, "extra_token")
        hold_integers(self, "pad_id", "eod", least=0)
        for name, choices in (("fill", Fill), ("over_long", OverLong), ("counts", Counts)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name}={getattr(self, name)!r}: pass one of {', '.join(get_args(choices))}.")
        if self.over_long != "cut" and self.fill == "greedy":
            raise ConfigError(
                f'over_long={self.over_long!r} is for fill="best_fit"; greedy fill cuts documents where a sample ends.'
            )
        unknown = [name for name in self.fields if name not in FIELDS]
        if unknown or not self.fields or len(set(self.fields)) < len(self.fields):
            raise ConfigError(f"fields={self.fields!r}: name some of {', '.join(FIELDS)}, each once.")

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample, the extra one included."""
        return self.sequence_length + self.extra_token

    def describe(self) -> str:
        """All that decides which samples there are, as JSON; what inventories and states are bound to."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self) if f.name != "fields"})


def pack_tokens(
    column: str,
    sequence_length: int,
    *,
    eod: int | None = None,
    extra_token: bool = False,
    fill: Fill = "greedy",
    pad_id: int = 0,
    over_long: OverLong = "cut",
    fields: Sequence[str] = FIELDS,
    counts: Counts = "footers",
) -> TokenPacking:
    """Documents of a list column as samples of `sequence_length` tokens: pass it as `create_dataloader(..., pack=...)`.

    Each row of the column is a document; empty and null rows are none. A row group is packed on its own:

        greedy      documents end to end, cut where a sample is full; the row group's last sample is padded
        best_fit    whole documents side by side while they fit, longest first; each sample is padded

    Args:
        column: a list column of integers.
        eod: token appended to every document; None for none.
        extra_token: samples of `sequence_length` + 1 tokens, so that inputs are `tokens[:, :-1]` and labels
            `tokens[:, 1:]`. Greedy samples then overlap by one token.
        pad_id: token that fills up samples.
        over_long: with best_fit, what happens to documents longer than a sample: "cut" (full samples of their own, the
            rest is placed like a document), "drop" or "error".
        fields: columns of a batch of B samples, L = sequence_length:
            tokens [B, L or L + 1], the column's integer type;
            positions [B, L], int32: place in the document, from 0 at each piece of one;
            loss_mask [B, L], bool: whether position t, which predicts token t + 1, counts: that token is in the sample
            and of the same document;
            cu_seqlens, ragged int32: 0, where each next document (or the padding) begins in the sample, L.
        counts: "footers" plans greedy samples of Parquet files without reading data; "read" counts by reading once.

    Raises:
        ConfigTypeError: a value of another type. ConfigError: one out of range.
    """
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise ConfigTypeError(f"fields={fields!r}: pass a list of {', '.join(FIELDS)}.")
    return TokenPacking(
        column=column,
        sequence_length=sequence_length,
        eod=eod,
        extra_token=extra_token,
        fill=fill,
        pad_id=pad_id,
        over_long=over_long,
        fields=tuple(fields),
        counts=counts,
    )
