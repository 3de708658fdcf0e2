"""Any tokenizer as a `NamedTokenizer`: one function, with a name for states and a version for kept counts."""

import copy
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch_dataloader_utils._store.process_local import ProcessLocal
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.samples.tokenizers import TokenizerFile, digest_bytes, name_tokenizer, tokenizer_version

TOKENS = "input_ids"
"""Key of the tokens where a tokenizer returns several lists for each text; Hugging Face tokenizers use this key."""

LABELS = "labels"
"""Name of the list of labels; int64, as cross entropy of torch takes it, where other lists are int32."""

NOT_TRAINED = -100
"""Label of a token without loss: the value that cross entropy of torch ignores."""

POSITIONS = "positions"
"""Name of the list of positions, which replaces the field that packing makes."""

BRANCHES = "branches"
"""Name of the list of branches of a pair: 0 in the prompt, 1 in the chosen answer, REJECTED in the rejected one."""

REJECTED = 2
"""Branch of rejected answers, and of padding, so that branches ascend in a document."""

PADS = {LABELS: NOT_TRAINED, BRANCHES: REJECTED}
"""Values of lists for padding, where the value is not 0."""

MASKS = "assistant_masks"
"""Name of the list of masks of the assistant's words; the templates of Hugging Face use this name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedTokenizer:
    """Tokenizer with its name and version.

    call: Function of the values that are not null and the names of outputs wanted beside the tokens.
    columns: Columns of which the values are rows; empty for a tokenizer of the values of one column.
    outputs: Names of lists that the tokenizer always gives beside the tokens.
    needs_whole: Whether tokens of a row are of no use without its other tokens.
    name: Name that states are bound to; None if the tokenizer has no name.
    version: Name under which counts are kept, see `tokenizer_version`.
    keeps_tokens: Whether the version changes whenever the tokens change, so that tokens may be kept too.
    """

    call: "_Plain | _HuggingFace | _PerRow"
    name: str | None
    version: str | None
    columns: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    keeps_tokens: bool = False
    needs_whole: bool = False

    @classmethod
    def of(cls, tokenizer: Any, outputs: Sequence[str] = ()) -> "NamedTokenizer":
        """Return the NamedTokenizer of any `tokenizer` that `pack_tokens` takes.

        outputs: Names of lists wanted beside the tokens.

        Raises:
            ConfigTypeError: `pack_tokens` does not take the tokenizer.
            ConfigError, MissingDependencyError: see TokenizerFile.
            ConfigError: masks of the assistant are wanted, and the chat template does not make masks.
        """
        if isinstance(tokenizer, NamedTokenizer):
            return tokenizer
        if isinstance(tokenizer, str | Path):
            tokenizer = TokenizerFile(str(tokenizer))
        if isinstance(tokenizer, TokenizerFile):
            file = f"{digest_bytes(Path(tokenizer.path).read_bytes())} {tokenizer.add_special_tokens}"
            return cls(call=_Plain(tokenizer), name=file, version=file, keeps_tokens=True)
        if hasattr(tokenizer, "apply_chat_template"):
            return _hugging_face(tokenizer, outputs)
        if not callable(tokenizer):
            raise ConfigTypeError(
                f"tokenizer is {of_type(tokenizer)}: pass a Hugging Face tokenizer, the path of a tokenizer.json, or "
                "a function from a list of texts to their token lists."
            )
        found = name_tokenizer(tokenizer)
        columns = _names(tokenizer, "columns")
        return cls(
            call=_PerRow(tokenizer) if columns else _Plain(tokenizer),
            name=None if found is None else str(found),
            version=tokenizer_version(tokenizer),
            columns=columns,
            outputs=_names(tokenizer, "outputs"),
            # The digest of a module says nothing about what it imports.
            keeps_tokens=getattr(tokenizer, "fingerprint", None) is not None,
            needs_whole=bool(getattr(tokenizer, "needs_whole", False)),
        )


def _names(tokenizer: Any, attribute: str) -> tuple[str, ...]:
    names = getattr(tokenizer, attribute, ())
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigTypeError(f"{attribute}={names!r} of the tokenizer: give a tuple of names.")
    return tuple(names)


@dataclass(frozen=True, slots=True)
class _Plain:
    """Call of a function that takes the values alone."""

    tokenizer: Callable[[list[Any]], Any]

    def __call__(self, values: list[Any], outputs: Sequence[str]) -> Any:  # noqa: ARG002  # see NamedTokenizer.call
        return self.tokenizer(values)


@dataclass(frozen=True, slots=True)
class _PerRow:
    """Call of a function that takes one row, a dict of columns, and gives named lists."""

    tokenizer: Callable[[dict[str, Any]], Any]

    def __call__(self, values: list[Any], outputs: Sequence[str]) -> dict[str, list[Any]]:
        rows = [self.tokenizer(row) for row in values]
        rows = [row if isinstance(row, Mapping) else {TOKENS: row} for row in rows]
        return {name: [row[name] for row in rows] for name in (TOKENS, *outputs) if all(name in row for row in rows)}


@dataclass(frozen=True, slots=True)
class _HuggingFace:
    """Call of a Hugging Face tokenizer for text, and of its chat template for conversations."""

    tokenizer: Any

    def __call__(self, values: list[Any], outputs: Sequence[str]) -> Any:
        if isinstance(values[0], str):
            return self.tokenizer(values, verbose=False)
        return render(self.tokenizer, values, return_assistant_tokens_mask=MASKS in outputs)


# A lock for chat templates: transformers compiles each template text once in a process, and the compiled template holds
# the masks while they are made.
_TEMPLATES: ProcessLocal[Any] = ProcessLocal()


def render(tokenizer: Any, conversations: Sequence[Any], **options: Any) -> Any:
    """Return the lists that the chat template gives for one conversation, or for each of several, by name.

    options: More arguments of `apply_chat_template`.
    """
    with _TEMPLATES.get(threading.Lock):
        return tokenizer.apply_chat_template(conversations, tokenize=True, return_dict=True, **options)


def _of_its_own(template: Any) -> Any:
    """Return an equal chat template (or dict of templates) with another text, so that only we use its compiled form."""
    if isinstance(template, Mapping):
        return {name: _of_its_own(each) for name, each in template.items()}
    # Jinja drops the comment and its line end.
    return f"{{# of the loader #}}\n{template}" if isinstance(template, str) else template


def _hugging_face(tokenizer: Any, outputs: Sequence[str]) -> NamedTokenizer:
    if MASKS in outputs and not has_marks(tokenizer):
        raise ConfigError(
            f"fields has output={MASKS!r}, but the chat template of the tokenizer does not mark the assistant's "
            "words: set tokenizer.chat_template to a template with {% generation %} before the words and "
            "{% endgeneration %} after the words."
        )
    name = tokenizer_digest(tokenizer)
    return NamedTokenizer(call=_HuggingFace(own_copy(tokenizer)), name=name, version=name, keeps_tokens=True)


def has_marks(tokenizer: Any) -> bool:
    """Return whether the chat template marks the assistant's words.

    Without marks, transformers only warns and returns masks of zeros.
    """
    return _marks(str(getattr(tokenizer, "chat_template", None)))


@lru_cache(maxsize=8)  # asked for every row
def _marks(template: str) -> bool:
    return bool(re.search(r"\{%-?\s*generation\b", template))


def own_copy(tokenizer: Any) -> Any:
    """Return a copy of a Hugging Face tokenizer that neither cuts nor pads, with a chat template of its own.

    A copy, because truncation and padding would change documents, and switching them off while another thread uses
    the tokenizer is an error.
    """
    tokenizer = copy.deepcopy(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.chat_template = _of_its_own(getattr(tokenizer, "chat_template", None))
    return tokenizer


# Tokenizers disagree about these texts and conversations; `tokenizer_digest` adds the spellings of special tokens.
_TEXTS = (
    "Hello, world!  In 2024: 1,234.50\t+ 7\n\n \u00a0",
    "naïve Übergröße e\u0301 ﬁ ½ 漢字 かな नमस्ते 🙂👩\u200d🚀 \x00",
)
_ROLES = (("user", "assistant"), ("system", "user", "assistant"), ("user", "assistant", "tool"))


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of all that decides the tokens and of the tokens of sample texts; the same in all processes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    special = getattr(tokenizer, "special_tokens_map", None)
    spelled = list(getattr(tokenizer, "all_special_tokens", ()))
    texts = [*_TEXTS, " ".join(spelled), "".join(f"{token}a" for token in spelled)]
    parts = {
        "fingerprint": name_tokenizer(tokenizer),
        "backend": sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str(),
        "template": getattr(tokenizer, "chat_template", None),
        "special": special,
        "texts": [_given(tokenizer, text, verbose=False) for text in texts],
        "conversations": [_given(_rendered, tokenizer, list(zip(roles, texts, strict=False))) for roles in _ROLES],
    }
    return digest_bytes(json.dumps(parts, sort_keys=True, default=str).encode())


def _rendered(tokenizer: Any, messages: Sequence[tuple[str, str]]) -> Any:
    conversation = [{"role": role, "content": text} for role, text in messages]
    # A template that writes the date would have another digest tomorrow.
    return render(tokenizer, conversation, strftime_now=str)


def _given(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, **options)[TOKENS]
    except Exception as error:  # noqa: BLE001  # a template may refuse a role, or be missing, with any error
        return type(error).__name__
