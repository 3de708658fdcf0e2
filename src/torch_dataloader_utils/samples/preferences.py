"""Makes tokens of preference pairs: padded batches, or packs in which both answers share one prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import takewhile
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torch_dataloader_utils._core.arguments import check_column_name, hold_integers
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.samples.attention import document_ids
from torch_dataloader_utils.samples.conversations import as_messages, check_row, continue_prompt, hold_tokenizer, parsed
from torch_dataloader_utils.samples.named_tokenizer import BRANCHES, LABELS, NOT_TRAINED, POSITIONS, REJECTED, TOKENS
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

_PROMPT, _CHOSEN = 0, 1


class PairTokens(NamedTuple):
    """Tokens of one row: the shared prompt, and each answer without it."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


@dataclass(frozen=True, slots=True)
class Preference:
    """Tokens of preference pairs: a prompt, a chosen and a rejected answer.

    All three are texts, or all are lists of messages (or their JSON text), which the chat template renders. The
    tokenizer's end of sequence is added to texts. A row is refused if the tokens of its prompt are not the first tokens
    of both wholes, and if its answers are equal.

    There are two ways to use the pairs. `transform=Preference(tokenizer).batch` makes padded batches as the DPOTrainer
    of TRL takes them. `pack_tokens("chosen", L, tokenizer=Preference(tokenizer), fill="best_fit", over_long="drop")`
    packs pairs with their prompt once. A pair in a pack is one document of two branches. Each branch begins with a copy
    of the last token of the prompt, which predicts the first token of the answer:

        prompt a b c, chosen d e, rejected f
        tokens      a  b | c  d  e    | c  f
        positions   0  1 | 2  3  4    | 2  3
        branches    0  0 | 1  1  1    | 2  2
        labels      _  _ | d  e  _    | f  _

    `labels` are the next tokens of the answers (-100 elsewhere): models that shift labels do not fit. `branches` are 2
    in padding too. Pass `branch_block_mask` to the attention, and `branch_sums` of the tokens' likelihoods to the loss.

    Args:
        tokenizer: Hugging Face tokenizer.
        prompt: Name of the column of prompts; None if both answers begin with the prompt. The prompt is then what they
            have in common: messages, or tokens of texts.
        chosen: Name of the column of chosen answers.
        rejected: Name of the column of rejected answers.
        tools: Name of a column of tools (lists, or JSON text), which the template gets; None gives no tools.
        template_kwargs: More arguments of the template.
        max_length: Most tokens of the prompt and one answer. Longer answers lose their last tokens. A row is refused
            if its prompt alone has so many. None keeps all tokens.

    Raises:
        ConfigTypeError: the tokenizer is not one of Hugging Face, or a value has the wrong type.
        ConfigError: a name is empty, or two columns have one name.
    """

    tokenizer: Any
    _: KW_ONLY
    prompt: str | None = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"
    tools: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_length: int | None = None
    fingerprint: str = field(init=False, repr=False)

    needs_whole: ClassVar[bool] = True
    """Whether tokens of a row are of no use without its other tokens; packs then keep rows whole."""

    outputs: ClassVar[tuple[str, ...]] = (LABELS, POSITIONS, BRANCHES)
    """Lists beside the tokens."""

    def __post_init__(self) -> None:
        for name in ("prompt", "chosen", "rejected", "tools"):
            check_column_name(f"Preference.{name}", getattr(self, name))
        hold_integers(self, "max_length", least=2)
        if len(set(self.columns)) < len(self.columns):
            raise ConfigError(f"Preference has the columns {list(self.columns)}: name a column for each part, once.")
        options = sorted(self.template_kwargs.items())
        hold_tokenizer(self, (self.prompt, self.chosen, self.rejected, self.tools, options, self.max_length))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the row."""
        named = (self.prompt, self.chosen, self.rejected, self.tools)
        return tuple(name for name in named if name is not None)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, list[int]]:
        """Return tokens, labels, positions and branches of one row; none if a part of the pair is null.

        Raises:
            ValueError: see `tokens_of`.
        """
        check_row(self, row)
        pair = self.tokens_of(row)
        if pair is None:
            return {name: [] for name in (TOKENS, *self.outputs)}
        *before, last = pair.prompt
        made = {
            TOKENS: list(before),
            LABELS: [NOT_TRAINED] * len(before),
            POSITIONS: list(range(len(before))),
            BRANCHES: [_PROMPT] * len(before),
        }
        for branch, answer in ((_CHOSEN, pair.chosen), (REJECTED, pair.rejected)):
            made[TOKENS] += [last, *answer]
            made[LABELS] += [*answer, NOT_TRAINED]
            made[POSITIONS] += range(len(before), len(before) + 1 + len(answer))
            made[BRANCHES] += [branch] * (1 + len(answer))
        return made

    def tokens_of(self, row: Mapping[str, Any]) -> PairTokens | None:
        """Return the tokens of one row; None if a part of the pair is null.

        Raises:
            ValueError: the tokens of the prompt are not the first tokens of a whole, the prompt has no tokens or too
                many, or the answers are equal.
        """
        parts = [None if name is None else row[name] for name in (self.prompt, self.chosen, self.rejected)]
        prompt, *answers = map(as_messages, parts)
        if None in answers or (prompt is None and self.prompt is not None):
            return None
        if answers[0] == answers[1]:
            raise ValueError("the chosen and the rejected answer are equal. Filter such rows out")
        if self.prompt is None:
            count = 0 if isinstance(answers[0], str) else _shared(*answers)
            prompt, answers = answers[0][:count], [answer[count:] for answer in answers]
        tools = None if self.tools is None else parsed(row[self.tools])
        options = {**self.template_kwargs, "tools": tools or None}
        (chosen, count), (rejected, _) = (
            continue_prompt(self.tokenizer, prompt, answer, options) for answer in answers
        )
        if self.prompt is None and isinstance(prompt, str):
            # Common characters may end within a token.
            count = _shared(chosen, rejected)
        if not 0 < count < (self.max_length or count + 1):
            raise ValueError(
                f"the prompt has {count} tokens, and it has to have at least 1 and fewer than max_length="
                f"{self.max_length}. Raise max_length, or filter such rows out"
            )
        return PairTokens(chosen[:count], chosen[count : self.max_length], rejected[count : self.max_length])

    def batch(self, columns: Mapping[str, Any] | pa.RecordBatch) -> TensorBatch:
        """Return the padded batch of R rows, as TRL's DPOTrainer takes it, to pass as `transform=`.

        For S, the tokens of the longest prompt with its answer, there are input_ids, attention_mask and
        completion_mask, int64 [2 * R, S]: the chosen answers, then the rejected answers, each after its prompt.

        columns: Batch with the columns of the pairs. The result keeps other columns, such as ref_chosen_logps.

        Raises:
            ValueError: a column is not in the batch, a part of a pair is null, or see `tokens_of`.
        """
        given = (
            columns if isinstance(columns, Mapping) else dict(zip(columns.schema.names, columns.columns, strict=True))
        )
        if missing := [name for name in self.columns if name not in given]:
            raise ValueError(
                f"the batch has no column {missing[0]!r}, and it has {list(given)}. Name the columns of your data in "
                "Preference; prompt=None is for answers that begin with the prompt"
            )
        parts = zip(*(_listed(given[name]) for name in self.columns), strict=True)
        rows = [dict(zip(self.columns, values, strict=True)) for values in parts]
        pairs = [self.tokens_of(row) for row in rows]
        if None in pairs:
            raise ValueError(
                f"row {pairs.index(None)} of the batch has a null in {list(self.columns)}. Filter nulls out"
            )
        made = [
            (torch.tensor(pair.prompt + pair[branch]), len(pair.prompt))
            for branch in (_CHOSEN, REJECTED)
            for pair in pairs
            if pair is not None
        ]
        tokens = [each for each, _ in made]
        completions = [(torch.arange(len(each)) >= prompt).long() for each, prompt in made]
        others = {name: column for name, column in given.items() if name not in self.columns}
        return TensorBatch(
            {
                TOKENS: pad_sequence(tokens, batch_first=True, padding_value=self._pad_id()),
                "attention_mask": pad_sequence(list(map(torch.ones_like, tokens)), batch_first=True),
                "completion_mask": pad_sequence(completions, batch_first=True),
                **others,
            }
        )

    def _pad_id(self) -> int:
        pad, end = (getattr(self.tokenizer, f"{name}_token_id", None) for name in ("pad", "eos"))
        return int(end or 0) if pad is None else int(pad)


def branch_sums(values: Tensor, cu_seqlens: Ragged, branches: Tensor) -> Tensor:
    """Return the sums of chosen and of rejected answers, [2, pairs], from values of tokens, [B, L].

    Pairs are in the order of the batch. With logarithms of the likelihoods of labels (0 where a label is -100), the
    sums are what DPO compares:

        values 0 0 1 1 0 2 0, branches 0 0 1 1 1 2 2      [[2], [2]]
    """
    ids = document_ids(cu_seqlens, values.shape[1])
    first = torch.cat([torch.ones_like(ids[:, :1]), ids.diff(dim=1)], dim=1) > 0
    # Pairs are counted from 1: 0 is padding before the first pair.
    numbers = (first & (branches < REJECTED)).flatten().cumsum(0).view_as(ids)
    sums = values.new_zeros(2, int(numbers[-1, -1]) + 1)
    return torch.stack(
        [
            total.index_add(0, numbers[branches == branch], values[branches == branch])
            for branch, total in zip((_CHOSEN, REJECTED), sums, strict=True)
        ]
    )[:, 1:]


def _listed(column: Any) -> Any:
    return column.to_pylist() if hasattr(column, "to_pylist") else column


def _shared(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """Return the number of leading messages, or tokens, that both have."""
    return len(list(takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))))
