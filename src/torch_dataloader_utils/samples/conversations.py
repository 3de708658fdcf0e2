"""Makes tokens and labels of whole rows: chats (with tools) and completions of prompts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

from torch_dataloader_utils._core.arguments import check_choice, check_column_name
from torch_dataloader_utils.errors import ConfigTypeError, of_type
from torch_dataloader_utils.samples.text import (
    LABELS,
    MASKS,
    NOT_TRAINED,
    TOKENS,
    has_marks,
    own_copy,
    render,
    tokenizer_digest,
)
from torch_dataloader_utils.samples.tokenizers import digest_bytes

TrainOn = Literal["assistant", "all", "last"]
Labels = Literal["aligned", "shifted"]


@dataclass(frozen=True, slots=True)
class Chat:
    """Tokens and labels of conversations, to pass as `pack_tokens(tokenizer=...)`.

    A conversation is a list of messages, or the JSON text of a list. Nulls inside of structs are left out, because
    Arrow writes nulls for keys that only other messages have. The chat template of the tokenizer renders each row.

    A template may mark the assistant's words with {% generation %}. Without marks, the tokens of a message are found by
    prefixes: they are what the template adds to the messages before and the generation prompt. A row is refused if its
    prefixes alone have other tokens than in the whole.

    Args:
        tokenizer: Hugging Face tokenizer with a chat template.
        messages: Name of the column of conversations.
        tools: Name of a column of tools (lists, or JSON text), which the template gets; None gives no tools.
        template_kwargs: More arguments of the template, such as {"enable_thinking": False}.
        train_on: "assistant" trains every message of the assistant, "last" the last one, "all" every token.
        labels: "aligned" gives label t for token t, for models of Hugging Face, which shift labels. "shifted" gives the
            token after t as label t, for torchtitan and Megatron.

    Raises:
        ConfigTypeError: the tokenizer is not one of Hugging Face, or a value has the wrong type.
        ConfigError: a value is not among the choices.
    """

    tokenizer: Any
    _: KW_ONLY
    messages: str = "messages"
    tools: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    train_on: TrainOn = "assistant"
    labels: Labels = "aligned"
    fingerprint: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_column_name("Chat.messages", self.messages)
        check_column_name("Chat.tools", self.tools)
        check_choice("train_on", self.train_on, get_args(TrainOn))
        given = (self.messages, self.tools, sorted(self.template_kwargs.items()), self.train_on)
        _hold_tokenizer(self, given)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the row."""
        return (self.messages,) if self.tools is None else (self.messages, self.tools)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Lists beside the tokens."""
        return (LABELS,)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, list[int]]:
        """Return tokens and labels of one row; none for a conversation that is null or empty.

        Raises:
            ValueError: the template renders the messages before an answer in another way than in the whole.
        """
        messages, tools = _parsed(row[self.messages]), None if self.tools is None else _parsed(row[self.tools])
        if not messages:
            return {TOKENS: [], LABELS: []}
        options = {**self.template_kwargs, "tools": tools or None}
        if self.train_on != "all" and has_marks(self.tokenizer):
            rendered = render(self.tokenizer, messages, **{**options, "return_assistant_tokens_mask": True})
            tokens, spans = list(rendered[TOKENS]), _runs(rendered[MASKS])
            spans = spans[-1:] if self.train_on == "last" else spans
        else:
            tokens = list(render(self.tokenizer, messages, **options)[TOKENS])
            spans = [(0, len(tokens))] if self.train_on == "all" else self._answers(messages, tokens, options)
        return {TOKENS: tokens, LABELS: _label(tokens, spans, self.labels)}

    def _answers(self, messages: list[Any], tokens: list[int], options: dict[str, Any]) -> list[tuple[int, int]]:
        turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        if self.train_on == "last":
            turns = turns[-1:]
        return [_answer(self.tokenizer, messages, turn, tokens, options) for turn in turns]


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens and labels of prompts and completions, to pass as `pack_tokens(tokenizer=...)`. Prompts are not trained.

    Both are texts, or both are lists of messages, which the chat template renders together. The tokenizer's end of
    sequence is added to a text. A row is refused if the tokens of the prompt are not the first tokens of the whole, as
    with many prompts that end in a space.

    Args:
        tokenizer: Hugging Face tokenizer.
        prompt: Name of the column of prompts.
        completion: Name of the column of completions.
        labels: See `Chat`.

    Raises:
        ConfigTypeError: the tokenizer is not one of Hugging Face, or a value has the wrong type.
        ConfigError: a value is not among the choices.
    """

    tokenizer: Any
    _: KW_ONLY
    prompt: str = "prompt"
    completion: str = "completion"
    labels: Labels = "aligned"
    fingerprint: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_column_name("Completion.prompt", self.prompt)
        check_column_name("Completion.completion", self.completion)
        _hold_tokenizer(self, (self.prompt, self.completion))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the row."""
        return self.prompt, self.completion

    @property
    def outputs(self) -> tuple[str, ...]:
        """Lists beside the tokens."""
        return (LABELS,)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, list[int]]:
        """Return tokens and labels of one row; none if prompt or completion is null.

        Raises:
            ValueError: the tokens of the prompt are not the first tokens of the whole.
        """
        prompt, completion = row[self.prompt], row[self.completion]
        if prompt is None or completion is None:
            return {TOKENS: [], LABELS: []}
        if isinstance(prompt, str):
            end = getattr(self.tokenizer, "eos_token", None) or ""
            completion = completion if completion.endswith(end) else completion + end
            before = self.tokenizer(prompt, verbose=False)[TOKENS]
            tokens = list(self.tokenizer(prompt + completion, verbose=False)[TOKENS])
            advice = "Let the prompt end where a token ends: move a last space to the completion"
        else:
            messages = [*_parsed(prompt), *_parsed(completion)]
            tokens = list(render(self.tokenizer, messages)[TOKENS])
            before = render(self.tokenizer, _parsed(prompt), add_generation_prompt=True)[TOKENS]
            advice = "Pass a chat template that renders a prompt alike with and without its completion"
        span = _after(before, tokens, len(tokens), _refused("the prompt", advice))
        return {TOKENS: tokens, LABELS: _label(tokens, [span], self.labels)}


def _hold_tokenizer(made: "Chat | Completion", given: Sequence[Any]) -> None:
    """Keep an own copy of the tokenizer, and the fingerprint of all that decides tokens and labels."""
    if not hasattr(made.tokenizer, "apply_chat_template"):
        raise ConfigTypeError(
            f"{type(made).__name__} has tokenizer={of_type(made.tokenizer)}: pass a Hugging Face tokenizer, such as "
            'AutoTokenizer.from_pretrained("...").'
        )
    check_choice("labels", made.labels, get_args(Labels))
    digest = tokenizer_digest(made.tokenizer)
    object.__setattr__(made, "tokenizer", own_copy(made.tokenizer))
    parts = json.dumps([type(made).__name__, digest, given, made.labels], default=str)
    object.__setattr__(made, "fingerprint", digest_bytes(parts.encode()))


def _answer(
    tokenizer: Any, messages: list[Any], turn: int, tokens: list[int], options: Mapping[str, Any]
) -> tuple[int, int]:
    """Return the tokens [start, stop) that message `turn` adds to the messages before it and the generation prompt."""
    refused = _refused(
        f"messages before and up to message {turn}",
        "Mark the assistant's words in the chat template with {% generation %}, or choose another train_on",
    )
    before = render(tokenizer, messages[:turn], **{**options, "add_generation_prompt": True})[TOKENS]
    whole = turn + 1 == len(messages)
    upto = tokens if whole else list(render(tokenizer, messages[: turn + 1], **options)[TOKENS])
    if tokens[: len(upto)] != upto:
        raise refused
    return _after(before, tokens, len(upto), refused)


def _after(before: Sequence[int], tokens: list[int], stop: int, refused: ValueError) -> tuple[int, int]:
    if tokens[: len(before)] != list(before) or len(before) > stop:
        raise refused
    return len(before), stop


def _refused(what: str, advice: str) -> ValueError:
    return ValueError(
        f"{what} alone and in the whole row have other tokens, so the part to train on is not known. {advice}"
    )


def _runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs [start, stop) of ones: 0 1 1 0 1 gives (1, 3) (4, 5)."""
    padded = [0, *mask, 0]
    borders = [at for at in range(len(mask) + 1) if padded[at] != padded[at + 1]]
    return list(zip(borders[::2], borders[1::2], strict=True))


def _label(tokens: list[int], spans: Sequence[tuple[int, int]], labels: Labels) -> list[int]:
    """Return the label of each token, which is NOT_TRAINED outside of the spans.

    So is the first token: in a pack, a model that shifts labels would predict it from the document before.
    """
    aligned = [NOT_TRAINED] * len(tokens)
    for start, stop in spans:
        aligned[max(1, start) : stop] = tokens[max(1, start) : stop]
    return aligned if labels == "aligned" else [*aligned[1:], NOT_TRAINED]


def _parsed(value: Any) -> Any:
    """Return a list of messages or tools: parsed from JSON text, or without the nulls that Arrow adds to structs."""
    return json.loads(value) if isinstance(value, str) else _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        # The content of a message that only calls tools is null, and templates ask for the key.
        return {key: _without_nulls(each) for key, each in value.items() if each is not None or key == "content"}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
