"""Makes tokens and labels of whole rows: chats (with tools) and completions of prompts."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch_dataloader_utils._core.arguments import check_choice, check_column_name
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.samples.named_tokenizer import (
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
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

if TYPE_CHECKING:
    from torch_dataloader_utils.samples.preferences import Preference

# A list of objects; whether it has messages is for the chat template to say.
_JSON_MESSAGES = re.compile(r'\s*\[\s*\{.*"role"', re.DOTALL)

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
        hold_tokenizer(self, given)
        if getattr(self.tokenizer, "chat_template", "of its own") is None:
            raise ConfigError(
                "Chat has a tokenizer without a chat template: set tokenizer.chat_template, or load the tokenizer of a "
                "model for chats. Texts need no template: pass the tokenizer itself to pack_tokens, or Completion(...)."
            )

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
            ValueError: the template renders the messages before an answer in another way than in the whole, or the
                column does not hold messages.
        """
        check_row(self, row)
        messages, tools = parsed(row[self.messages]), None if self.tools is None else parsed(row[self.tools])
        if not messages:
            return {TOKENS: [], LABELS: []}
        _check_messages(messages)
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

    Both are texts, or both are lists of messages (or their JSON text), which the chat template renders together. The
    tokenizer's end of sequence is added to a text. A row is refused if the tokens of the prompt are not the first
    tokens of the whole, as with many prompts that end in a space.

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
        hold_tokenizer(self, (self.prompt, self.completion))

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
        check_row(self, row)
        prompt, completion = row[self.prompt], row[self.completion]
        if prompt is None or completion is None:
            return {TOKENS: [], LABELS: []}
        tokens, count = continue_prompt(self.tokenizer, prompt, completion)
        return {TOKENS: tokens, LABELS: _label(tokens, [(count, len(tokens))], self.labels)}


def continue_prompt(
    tokenizer: Any, prompt: Any, completion: Any, options: Mapping[str, Any] | None = None
) -> tuple[list[int], int]:
    """Return the tokens of a prompt with its completion, and the number of tokens of the prompt.

    Both are texts, or both are lists of messages or their JSON text. options: Arguments of the chat template.

    Raises:
        ValueError: the tokens of the prompt are not the first tokens of the whole, or one part is a text and the other
            is a list of messages.
    """
    prompt, completion = as_messages(prompt), as_messages(completion)
    if isinstance(prompt, str) != isinstance(completion, str):
        raise ValueError(
            f"the prompt is {of_type(prompt)} and its completion is {of_type(completion)}. Let both be texts, or both "
            "be lists of messages"
        )
    if isinstance(prompt, str):
        end = getattr(tokenizer, "eos_token", None) or ""
        completion = completion if completion.endswith(end) else completion + end
        before = tokenizer(prompt, verbose=False)[TOKENS]
        tokens = list(tokenizer(prompt + completion, verbose=False)[TOKENS])
        advice = "Let the prompt end where a token ends: move a last space to the completion"
    else:
        given = options or {}
        tokens = list(render(tokenizer, [*prompt, *completion], **given)[TOKENS])
        before = render(tokenizer, prompt, **{**given, "add_generation_prompt": True})[TOKENS]
        advice = "Pass a chat template that renders a prompt alike with and without its completion"
    return tokens, _after(before, tokens, len(tokens), _refused("the prompt", advice))[0]


def as_messages(part: Any) -> Any:
    """Return a text as it is, and a list of messages, or the JSON text of one, as a list without Arrow's nulls."""
    if isinstance(part, str) and _JSON_MESSAGES.match(part):
        with suppress(ValueError):
            part = json.loads(part)
    return part if isinstance(part, str) else _without_nulls(part)


def hold_tokenizer(made: "Chat | Completion | Preference", given: Sequence[Any]) -> None:
    """Keep an own copy of the tokenizer, and the fingerprint of all that decides tokens and labels."""
    if not hasattr(made.tokenizer, "apply_chat_template"):
        raise ConfigTypeError(
            f"{type(made).__name__} has tokenizer={of_type(made.tokenizer)}: pass a Hugging Face tokenizer, such as "
            'AutoTokenizer.from_pretrained("...").'
        )
    labels = getattr(made, "labels", None)
    if labels is not None:
        check_choice("labels", labels, get_args(Labels))
    digest = tokenizer_digest(made.tokenizer)
    object.__setattr__(made, "tokenizer", own_copy(made.tokenizer))
    parts = json.dumps([type(made).__name__, digest, given, labels], default=str)
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


def parsed(value: Any) -> Any:
    """Return a list of messages or tools: parsed from JSON text, or without the nulls that Arrow adds to structs."""
    if not isinstance(value, str):
        return _without_nulls(value)
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(
            f"a text that begins with {value[:20]!r} is not the JSON of a list ({error}). For plain text pass the "
            "tokenizer itself to pack_tokens, or Completion(...)"
        ) from error


def _check_messages(messages: Any) -> None:
    """Raise ValueError unless these are messages; a template may render other values as nothing."""
    each = messages if isinstance(messages, list) else [messages]
    wrong = next((number for number, message in enumerate(each) if not _is_message(message)), None)
    if wrong is not None or each is not messages:
        found = list(each[wrong or 0]) if isinstance(each[wrong or 0], dict) else of_type(each[wrong or 0])
        raise ValueError(
            f"a conversation is a list of messages with the keys 'role' and 'content', and message {wrong or 0} has "
            f"{found}. Write such a column, or pass a function with the attribute `columns` that renames the keys and "
            "calls Chat"
        )


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and "role" in message


def check_row(made: "Chat | Completion | Preference", row: Mapping[str, Any]) -> None:
    """Raise TypeError if a loader calls `made` with a batch, as its `transform` or `collate_fn`."""
    if isinstance(row, TensorBatch):
        name = type(made).__name__
        batches = "" if not hasattr(made, "batch") else f", or transform={name}(...).batch for padded batches"
        raise TypeError(
            f"{name} takes one row, and this is a batch: pass pack=pack_tokens({made.columns[0]!r}, sequence_length, "
            f"tokenizer={name}(...)){batches}"
        )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        # The content of a message that only calls tools is null, and templates ask for the key.
        return {key: _without_nulls(each) for key, each in value.items() if each is not None or key == "content"}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
