"""How documents become samples: `pack_tokens` and the value it gives."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Literal, TypedDict, get_args

from torch_dataloader_utils._core.arguments import check_column_name, hold_flags, hold_integers
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.samples.text import NamedTokenizer

Fill = Literal["greedy", "best_fit"]
OverLong = Literal["cut", "drop", "error"]
Counts = Literal["footers", "read"]
Field = Literal["tokens", "positions", "loss_mask", "cu_seqlens"]

FIELDS: tuple[str, ...] = get_args(Field)

PIECE_FIELDS = ("document_file", "document_row_group", "document_row", "document_start", "document_tokens")
"""Where each document of a sample comes from; see `pack_tokens`."""

# Arrow's fixed-size lists count items in int32, and a sample may have one token more.
_MOST_TOKENS = 2**31 - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PerToken:
    """A column of the data set as one value for each token of a sample: [B, L], with `extra_token` [B, L + 1].

    A list column has to have as many values in a row as the row has tokens; they are cut and joined as these are. The
    value of a column of single numbers or bools is repeated for every token of its document, EOD and padding included.

        tokens 5 6 7 | 8, eod=0, sequence_length=8      5 6 7 0 8 0 _ _
        labels -100 6 7 | 8, PerToken(pad=-100, eod=0)  -100 6 7 0 8 0 -100 -100

    Attributes:
        pad: the value where a sample, or a document, is filled up.
        eod: the value of a list column where `pack_tokens(eod=...)` appends a token; None for that of `pad`.
        column: the column's name; None for that of the field.
        output: instead of a column, the list of this name that the tokenizer gives beside the tokens, such as
            "assistant_masks".

    Raises:
        ConfigTypeError: a value of another type. ConfigError: an empty name, or column and output.
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
                "one of them. Leave one out, or make two fields."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PerDocument:
    """A column of the data set as one value for each document of a sample, in the order of `cu_seqlens`: ragged.

    Value i belongs to the tokens from cu_seqlens[i] to cu_seqlens[i + 1]; the padding at the end has none.

    Attributes:
        column: the column's name; None for that of the field.

    Raises:
        ConfigTypeError: no text. ConfigError: an empty one.
    """

    column: str | None = None

    def __post_init__(self) -> None:
        check_column_name("PerDocument.column", self.column)


Source = str | PerToken | PerDocument | None
"""What a field is made of: a column by name, which its type says how to deliver, or one of the pack's own fields."""


class PackTokensKeywords(TypedDict, total=False):
    """The keyword arguments of `pack_tokens`."""

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
    fields: Sequence[str] | Mapping[str, Source] = FIELDS
    counts: Counts = "footers"
    pad_to_multiple_of: int = 1
    tokenizer: NamedTokenizer | None = None
    shuffle_documents: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise ConfigTypeError(f"column={self.column!r}: pass the name of a list column.")
        hold_integers(self, "sequence_length", least=1)
        if self.sequence_length > _MOST_TOKENS:
            raise ConfigError(f"sequence_length={self.sequence_length}: pass at most {_MOST_TOKENS}.")
        hold_flags(self, "extra_token", "shuffle_documents")
        hold_integers(self, "pad_id", "eod", least=0)
        hold_integers(self, "pad_to_multiple_of", least=1)
        for name, choices in (("fill", Fill), ("over_long", OverLong), ("counts", Counts)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name}={getattr(self, name)!r}: pass one of {', '.join(get_args(choices))}.")
        if self.over_long != "cut" and self.fill == "greedy":
            raise ConfigError(
                f'over_long={self.over_long!r} is for fill="best_fit"; greedy fill cuts documents where a sample ends.'
            )
        self._check_multiple()
        object.__setattr__(self, "fields", _check_fields(self.fields))
        if self.tokenizer is not None:
            object.__setattr__(self, "tokenizer", NamedTokenizer.of(self.tokenizer, self.outputs))
        elif self.outputs:
            raise ConfigError(f"fields has outputs of a tokenizer, {list(self.outputs)}, and there is no tokenizer=.")

    def _check_multiple(self) -> None:
        multiple = self.pad_to_multiple_of
        if self.sequence_length % multiple:
            raise ConfigError(
                f"sequence_length={self.sequence_length} is no multiple of pad_to_multiple_of={multiple}: documents "
                "that are cut, and the padding of a sample, would be none either. Pass one that is."
            )
        if multiple > 1 and self.extra_token and self.fill == "best_fit":
            raise ConfigError(
                "pad_to_multiple_of with extra_token and best_fit: whole documents then end where no multiple does. "
                "Leave extra_token out; the label of a token is the next one of its document."
            )

    @property
    def sources(self) -> dict[str, Source]:
        """What each field of a batch is made of, in order; None for those that are the pack's own."""
        return dict(self.fields) if isinstance(self.fields, Mapping) else dict.fromkeys(self.fields)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the data set that are read: the tokens' first."""
        named = (
            column_of(name, source)
            for name, source in self.sources.items()
            if not is_own(name, source) and not is_output(source)
        )
        return tuple(dict.fromkeys([self.column, *named]))

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the tokenizer gives beside the tokens."""
        given = (each.output for each in self.sources.values() if isinstance(each, PerToken))
        return tuple(dict.fromkeys(output for output in given if output is not None))

    def with_columns(self, columns: Iterable[str]) -> "TokenPacking":
        """The same packing with these columns of the data set beside its fields, unless it has them already.

        Raises:
            ConfigError: a column has the name of a field.
        """
        more = {name: name for name in columns if name not in self.columns}
        if taken := [name for name in more if name in self.sources]:
            raise ConfigError(
                f"columns={taken} with pack=: batches have fields of this name already. Give the column another one, "
                f'with pack_tokens(..., fields={{"my_{taken[0]}": "{taken[0]}", ...}}), or leave that field out.'
            )
        return replace(self, fields=self.sources | more) if more else self

    @property
    def is_stream(self) -> bool:
        """Whether samples are the stored tokens one after the other."""
        return self.fill == "greedy" and not self.shuffle_documents

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample, the extra one included."""
        return self.sequence_length + self.extra_token

    def describe(self) -> str:
        """All that decides which samples there are, as JSON; what inventories and states are bound to."""
        hidden = ("fields", "pad_to_multiple_of", "tokenizer", "shuffle_documents")
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}
        # States of before these were options have none.
        if self.pad_to_multiple_of > 1:
            shown["pad_to_multiple_of"] = self.pad_to_multiple_of
        if self.tokenizer is not None:
            shown["tokenizer"] = self.tokenizer.name
        if self.shuffle_documents:
            shown["shuffle_documents"] = True
        return json.dumps(shown)


def is_own(name: str, source: Source) -> bool:
    """Whether a field is one that packing makes, not a column of the data set."""
    return source is None and name in (*FIELDS, *PIECE_FIELDS)


def is_output(source: Source) -> bool:
    """Whether a field is made of what the tokenizer gives beside the tokens."""
    return isinstance(source, PerToken) and source.output is not None


def column_of(name: str, source: Source) -> str:
    """The column of the data set that a field is made of."""
    if isinstance(source, str):
        return source
    return name if source is None or source.column is None else source.column


def _check_fields(given: Any) -> tuple[str, ...] | dict[str, Source]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigTypeError(f"fields={given!r}: pass a list of {', '.join(FIELDS)} and of columns, or a dict.")
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
) -> TokenPacking:
    """Documents as samples of `sequence_length` tokens: pass it as `create_dataloader(..., pack=...)`.

    Each row of a column of lists, or of text, is a document; empty and null rows give none. A row group is packed by
    itself:

        greedy      documents end to end, cut where a sample is full; the row group's last sample is padded
        best_fit    whole documents side by side while they fit, longest first; each sample is padded

    Args:
        column: a list column of integers; with `tokenizer` one of text or of conversations.
        eod: token appended to every document; None for none.
        extra_token: samples of `sequence_length` + 1 tokens, so that inputs are `tokens[:, :-1]` and labels
            `tokens[:, 1:]`. Greedy samples then overlap by one token.
        pad_id: token that fills up samples.
        over_long: with best_fit, what happens to documents longer than a sample: "cut" (full samples of their own, the
            rest is placed like a document), "drop" or "error".
        fields: what a batch of B samples holds, L = sequence_length. Its own fields:
            tokens [B, L or L + 1], the column's integer type;
            positions [B, L], int32: place in the document, from 0 at each piece of one;
            loss_mask [B, L], bool: whether position t, which predicts token t + 1, counts: that token is in the sample
            and of the same document;
            cu_seqlens, ragged int32: 0, where each next document (or the padding) begins in the sample, L.
            One value for each document of a sample, ragged, if named: document_file, document_row_group, document_row
            (the number of the live row in it), document_start (its token that comes first here), document_tokens (how
            many come, without padding).
            Any other name is a column of the data set: lists for each token, other types for each document. A dict
            says more: {"tokens": None, "labels": PerToken(pad=-100), "weight": PerToken(), "mask": "loss_mask"}.
        counts: "footers" plans greedy samples of Parquet files without reading data; "read" counts by reading once.
        pad_to_multiple_of: fill each document up with `pad_id` to a multiple, which no mask counts: 2 × CP for context
            parallelism as Transformer Engine divides it. Counts by reading once.
        tokenizer: makes int32 tokens of text where it is read: one of Hugging Face (which takes conversations, lists of
            messages, through its chat template), the path of a tokenizer.json, or a picklable function from a list of
            values to their token lists, or to a mapping with these as "input_ids" and further lists. All text is
            tokenized once before the plan, to count; the counts are kept on this host.
        shuffle_documents: permute the documents of a row group by seed and epoch before they are packed, so that they
            share samples with others in each epoch. With best_fit only documents of one length change places.

    Raises:
        ConfigTypeError: a value of another type. ConfigError: one out of range.
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
    )
