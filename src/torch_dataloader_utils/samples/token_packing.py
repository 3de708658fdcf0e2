"""The options of packing: `pack_tokens` and the frozen value that it returns."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Literal, TypedDict, get_args

from torch_dataloader_utils._core.arguments import (
    check_choice,
    check_column_name,
    check_has_order,
    hold_flags,
    hold_integers,
)
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.samples.named_tokenizer import PADS, NamedTokenizer

Fill = Literal["greedy", "best_fit"]
OverLong = Literal["cut", "truncate", "drop", "error"]
Counts = Literal["footers", "read"]
Field = Literal["tokens", "positions", "loss_mask", "cu_seqlens"]

FIELDS: tuple[str, ...] = get_args(Field)

PIECE_FIELDS = ("document_file", "document_row_group", "document_row", "document_start", "document_tokens")
"""Fields that say where each document of a sample comes from; see `pack_tokens`."""

# Samples of a packing window: its last sample is half empty on average, which is 0.8 % of so many.
_WINDOW_SAMPLES = 64

# Arrow's fixed-size lists count items in int32, and a sample may have one token more.
_MOST_TOKENS = 2**31 - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PerToken:
    """A field with one value for each token of a sample: [B, L], with `extra_token` [B, L + 1].

    Each list of a list column has to be as long as the row's list of tokens; values are cut and joined like tokens. In
    a column of single numbers or bools, the value is repeated for every token of its document, EOD and padding
    included.

        tokens 5 6 7 | 8, eod=0, sequence_length=8      5 6 7 0 8 0 _ _
        labels -100 6 7 | 8, PerToken(pad=-100, eod=0)  -100 6 7 0 8 0 -100 -100

    Attributes:
        pad: Value for the padding of a sample or a document.
        eod: Value of a list column for the token that `pack_tokens(eod=...)` appends; None takes the value of `pad`.
        column: Name of the column; None takes the field's name.
        output: Name of a list that the tokenizer returns beside the tokens, for example "assistant_masks". The field is
            then made of this list instead of a column.

    Raises:
        ConfigTypeError: a value has the wrong type.
        ConfigError: a name is empty, or both column and output are given.
    """

    pad: float = 0
    eod: float | None = None
    column: str | None = None
    output: str | None = None

    def __post_init__(self) -> None:
        check_column_name("PerToken.column", self.column)
        check_column_name("PerToken.output", self.output)
        for name, value in (("pad", self.pad), ("eod", 0 if self.eod is None else self.eod)):
            if not isinstance(value, Real):
                raise ConfigTypeError(f"{name}={value!r} of PerToken: pass a number or a bool.")
        if self.column is not None and self.output is not None:
            raise ConfigError(
                f"PerToken has column={self.column!r} and output={self.output!r} of the tokenizer: a field is made of "
                "one source. Leave one out, or make two fields."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PerDocument:
    """A ragged field with one value for each document of a sample, in the order of `cu_seqlens`.

    Value i belongs to the tokens from cu_seqlens[i] to cu_seqlens[i + 1]. The padding at the end has no value.

    Attributes:
        column: Name of the column; None takes the field's name.

    Raises:
        ConfigTypeError: the name is not a text.
        ConfigError: the name is empty.
    """

    column: str | None = None

    def __post_init__(self) -> None:
        check_column_name("PerDocument.column", self.column)


Source = str | PerToken | PerDocument | None
"""Source of a field: a column (for a name, its type decides between the classes), or None for a field of packing."""


class PackTokensKeywords(TypedDict, total=False):
    """Keyword arguments of `pack_tokens`."""

    eod: int | None
    extra_token: bool
    fill: Fill
    pad_id: int
    over_long: OverLong
    fields: Sequence[str] | Mapping[str, Source]
    counts: Counts
    pad_to_multiple_of: int
    tokenizer: Any
    shuffle_documents: bool
    window_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPacking:
    """Options of packing, to pass as `pack=`. `pack_tokens` makes the value and documents the fields."""

    column: str
    sequence_length: int
    eod: int | None = None
    extra_token: bool = False
    fill: Fill = "greedy"
    pad_id: int = 0
    over_long: OverLong = "cut"
    fields: Sequence[str] | Mapping[str, Source] = FIELDS
    counts: Counts = "footers"
    pad_to_multiple_of: int = 1
    tokenizer: NamedTokenizer | None = None
    shuffle_documents: bool = False
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise ConfigTypeError(f"column={self.column!r}: pass the name of a list column.")
        hold_integers(self, "sequence_length", least=1)
        if self.sequence_length > _MOST_TOKENS:
            raise ConfigError(f"sequence_length={self.sequence_length}: pass at most {_MOST_TOKENS}.")
        hold_flags(self, "extra_token", "shuffle_documents")
        hold_integers(self, "pad_id", "eod", least=0)
        hold_integers(self, "pad_to_multiple_of", "window_tokens", least=1)
        for name, choices in (("fill", Fill), ("over_long", OverLong), ("counts", Counts)):
            check_choice(name, getattr(self, name), get_args(choices))
        if self.over_long != "cut" and self.fill == "greedy":
            raise ConfigError(
                f'over_long={self.over_long!r} is for fill="best_fit"; greedy fill cuts documents where a sample ends.'
            )
        self._check_multiple()
        object.__setattr__(self, "fields", _check_fields(self.fields))
        if self.tokenizer is not None:
            object.__setattr__(self, "tokenizer", NamedTokenizer.of(self.tokenizer, self.outputs))
            self._take_outputs(self.tokenizer)
        elif self.outputs:
            raise ConfigError(f"fields has outputs of a tokenizer, {list(self.outputs)}, but there is no tokenizer=.")

    def _take_outputs(self, tokenizer: NamedTokenizer) -> None:
        """Make fields of the lists that the tokenizer always gives: if they are named, or no field is."""
        if tokenizer.columns and self.column not in tokenizer.columns:
            raise ConfigError(
                f"column={self.column!r} is not read by the tokenizer, which makes samples of "
                f"{list(tokenizer.columns)}: pass one of these names. If the data has other columns, name "
                "them where the tokenizer is made."
            )
        if tokenizer.needs_whole and (self.fill != "best_fit" or self.over_long not in ("drop", "error")):
            raise ConfigError(
                f'fill="{self.fill}" with over_long="{self.over_long}" cuts rows, but a part of a pair is of no use: '
                'pass fill="best_fit" and over_long="drop" or "error".'
            )
        named = [*FIELDS, *tokenizer.outputs] if self.fields == FIELDS else self.sources
        sources = dict(self.sources)
        for name in (name for name in tokenizer.outputs if name in named and sources.get(name) is None):
            sources[name] = PerToken(output=name, pad=PADS.get(name, 0))
        if sources != self.sources:
            object.__setattr__(self, "fields", sources)

    def _check_multiple(self) -> None:
        multiple = self.pad_to_multiple_of
        if self.sequence_length % multiple:
            raise ConfigError(
                f"sequence_length={self.sequence_length} is not a multiple of pad_to_multiple_of={multiple}: cut "
                "documents and the padding of a sample would not be multiples either. Pass a multiple."
            )
        if multiple > 1 and self.extra_token and self.fill == "best_fit":
            raise ConfigError(
                "pad_to_multiple_of with extra_token and best_fit: whole documents would not end at a multiple. "
                "Leave extra_token out; the label of a token is the next token of its document."
            )

    @property
    def sources(self) -> dict[str, Source]:
        """Source of each field of a batch, in order; None for a field that packing makes."""
        return dict(self.fields) if isinstance(self.fields, Mapping) else dict.fromkeys(self.fields)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data set that are read, the column of tokens first."""
        named = (
            column_of(name, source)
            for name, source in self.sources.items()
            if not is_own(name, source) and not is_output(source)
        )
        return tuple(dict.fromkeys([*self.token_columns, *named]))

    @property
    def token_columns(self) -> tuple[str, ...]:
        """Columns of which tokens are made, `column` first."""
        return tuple(dict.fromkeys([self.column, *(() if self.tokenizer is None else self.tokenizer.columns)]))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the lists that the tokenizer has to return beside the tokens."""
        given = (each.output for each in self.sources.values() if isinstance(each, PerToken))
        return tuple(dict.fromkeys(output for output in given if output is not None))

    def with_columns(self, columns: Iterable[str]) -> "TokenPacking":
        """Return the packing with a field for each of these columns, unless it reads the column already.

        Raises:
            ConfigError: a column has the name of a field.
        """
        more = {name: name for name in columns if name not in self.columns}
        if taken := [name for name in more if name in self.sources]:
            raise ConfigError(
                f"columns={taken} with pack=: batches have fields of this name already. Give the column another name, "
                f'with pack_tokens(..., fields={{"my_{taken[0]}": "{taken[0]}", ...}}), or leave that field out.'
            )
        return replace(self, fields=self.sources | more) if more else self

    @property
    def is_stream(self) -> bool:
        """Whether samples are the stored tokens in their stored order."""
        return self.fill == "greedy" and not self.shuffle_documents

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample, the extra token included."""
        return self.sequence_length + self.extra_token

    @property
    def least_window_tokens(self) -> int:
        """Least tokens of a packing window."""
        return _WINDOW_SAMPLES * self.sequence_length if self.window_tokens is None else self.window_tokens

    def describe(self, *, joins: bool = False) -> str:
        """Return the options that decide which samples exist, as JSON; inventories and states are bound to the text.

        joins: Whether a packing window has several row groups. If none has, the window's size decides nothing.
        """
        hidden = ("fields", "pad_to_multiple_of", "tokenizer", "shuffle_documents", "window_tokens")
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}
        # States that are older than these options do not have them.
        if self.pad_to_multiple_of > 1:
            shown["pad_to_multiple_of"] = self.pad_to_multiple_of
        if self.tokenizer is not None:
            shown["tokenizer"] = self.tokenizer.name
        if self.shuffle_documents:
            # Best fit mixed documents of equal length only, in states that say True.
            shown["shuffle_documents"] = True if self.fill == "greedy" else "mixed"
        if joins:
            shown["window_tokens"] = self.least_window_tokens
        return json.dumps(shown)


def is_own(name: str, source: Source) -> bool:
    """Return whether packing makes the field, rather than a column of the data set."""
    return source is None and name in (*FIELDS, *PIECE_FIELDS)


def is_output(source: Source) -> bool:
    """Return whether the field is made of a list that the tokenizer returns beside the tokens."""
    return isinstance(source, PerToken) and source.output is not None


def column_of(name: str, source: Source) -> str:
    """Return the name of the column that a field is made of."""
    if isinstance(source, str):
        return source
    return name if source is None or source.column is None else source.column


def _check_fields(given: Any) -> tuple[str, ...] | dict[str, Source]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigTypeError(f"fields={given!r}: pass a list of {', '.join(FIELDS)} and of columns, or a dict.")
    check_has_order("fields", given)
    names = list(given)
    wrong = [each for each in names if not isinstance(each, str)]
    if isinstance(given, Mapping):
        wrong += [each for each in given.values() if not isinstance(each, str | PerToken | PerDocument | None)]
    if wrong:
        raise ConfigTypeError(
            f"fields has {wrong[0]!r}: pass names, or a dict from a name to None, a column's name, PerToken() or "
            "PerDocument()."
        )
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"fields={names}: name some of {', '.join(FIELDS)} and of the columns, each once.")
    return dict(given) if isinstance(given, Mapping) else tuple(names)


def pack_tokens(
    column: str,
    sequence_length: int,
    *,
    eod: int | None = None,
    extra_token: bool = False,
    fill: Fill = "greedy",
    pad_id: int = 0,
    over_long: OverLong = "cut",
    fields: Sequence[str] | Mapping[str, Source] = FIELDS,
    counts: Counts = "footers",
    pad_to_multiple_of: int = 1,
    tokenizer: Any = None,
    shuffle_documents: bool = False,
    window_tokens: int | None = None,
) -> TokenPacking:
    """Return the options that pack documents into samples of `sequence_length` tokens, to pass as `pack=`.

    Each row of a column of lists, or of text, is a document; empty and null rows are not. Neighbouring row groups of
    enough tokens are a packing window, whose documents are packed together:

        greedy      documents end to end, cut where a sample is full; the window's last sample is padded
        best_fit    whole documents side by side while they fit, longest first; each sample is padded

    Args:
        column: Name of a list column of integers; with `tokenizer`, of a column of text or conversations, or of one of
            the columns that the tokenizer reads.
        sequence_length: Number of tokens of a sample.
        eod: Token that is appended to every document; None appends nothing.
        extra_token: Make samples of `sequence_length` + 1 tokens, so that inputs are `tokens[:, :-1]` and labels are
            `tokens[:, 1:]`. Greedy samples then overlap by one token.
        fill: "greedy" or "best_fit", see above.
        pad_id: Token for the padding.
        over_long: Treatment of documents longer than a sample, with best_fit: "cut" (full samples, and the rest is
            placed like a document), "truncate" (the first tokens, as many as a sample has), "drop" or "error". The plan
            says how many documents and tokens this concerns.
        fields: Names of the fields of a batch. For B samples and L = sequence_length, packing makes
            tokens [B, L or L + 1], the column's integer type;
            positions [B, L], int32: place in the document, from 0 at each piece of a document;
            loss_mask [B, L], bool: whether token t + 1, which position t predicts, is in the sample and of the same
            document;
            cu_seqlens, ragged int32: 0, then the begin of each next document (or of the padding) in the sample, then L.
            Ragged fields with one value for each document of a sample, if named: document_file, document_row_group,
            document_row (number of the live row in the row group), document_start (number of the document's first token
            in this sample), document_tokens (number of its tokens in this sample, without padding).
            Any other name is a column of the data set: lists give a value for each token, other types a value for each
            document. A dict chooses: {"tokens": None, "labels": PerToken(pad=-100), "weight": PerToken(),
            "mask": "loss_mask"}.
        counts: "footers" plans greedy samples of Parquet files without reading data; "read" counts by reading once.
        pad_to_multiple_of: Pad each document with `pad_id` to a multiple of this number of tokens; no mask counts the
            padding. For context parallelism of Transformer Engine pass 2 × CP. Samples are counted by reading once.
        tokenizer: Tokenizer that makes int32 tokens of the text while it is read: a Hugging Face tokenizer (which takes
            conversations, lists of messages, through its chat template), the path of a tokenizer.json, or a picklable
            function from a list of values to their token lists, or to a mapping with the token lists as "input_ids" and
            further lists. `Chat`, `Completion`, and any function with an attribute `columns` (a tuple of names) take
            one row, a dict of these columns, and return such a mapping of flat lists. All text is tokenized once before
            the plan, to count samples; this host keeps the counts.
        shuffle_documents: Mix the documents of a packing window by seed and epoch before they are packed, so that each
            epoch puts other documents together. Best fit then takes up to 1.6 % more samples where mixing needs them.
        window_tokens: Number of tokens that a packing window has at least; None for 64 samples. A window is a number of
            whole row groups, of one file or of several. A worker reads and packs a whole window at once. 1 packs each
            row group by itself.

    Raises:
        ConfigTypeError: a value has the wrong type.
        ConfigError: a value is out of range.
    """
    return TokenPacking(
        column=column,
        sequence_length=sequence_length,
        eod=eod,
        extra_token=extra_token,
        fill=fill,
        pad_id=pad_id,
        over_long=over_long,
        fields=fields,
        counts=counts,
        pad_to_multiple_of=pad_to_multiple_of,
        tokenizer=tokenizer,
        shuffle_documents=shuffle_documents,
        window_tokens=window_tokens,
    )
