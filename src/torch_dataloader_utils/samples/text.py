"""Tokenizes text and conversations while they are read: a reader around the reader of a data set.

A tokenizer becomes a `NamedTokenizer`: one function, with a name for states and a version for kept counts.
"""

import copy
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.documents import Documents, list_offsets, to_plain
from torch_dataloader_utils._core.inventory import Int64s, RowGroupTask
from torch_dataloader_utils._core.skipping import log_left_out
from torch_dataloader_utils._store.process_local import ProcessLocal
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, SchemaError, TransformError, of_type
from torch_dataloader_utils.samples.kept_tokens import KeptTokens
from torch_dataloader_utils.samples.tokenizers import (
    TokenizerFile,
    check_token_lists,
    digest_bytes,
    name_tokenizer,
    tokenizer_version,
)
from torch_dataloader_utils.tables.reader import Reader

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

BAD_ROW = -1
"""Length of a row that the tokenizer refuses."""

# Errors of the machine, not of a row: another host would not skip the same rows.
_NOT_OF_THE_ROW = (MemoryError, OSError, ImportError)


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


def output_column(output: str) -> str:
    """Return the name of the column that holds an output of the tokenizer; messages show it too."""
    return f"{output} of the tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizingReader:
    """Reader that replaces the first column by its tokens, and appends the tokenizer's outputs as columns.

    outputs: Names of lists that the tokenizer returns beside the tokens, each as long as the tokens.
    skips_bad_rows: Whether rows that the tokenizer refuses have no tokens, instead of raising an error.
    kept: Tokens that this host keeps; None to tokenize at every read.
    """

    reader: Reader
    tokenizer: NamedTokenizer
    outputs: tuple[str, ...] = ()
    skips_bad_rows: bool = False
    kept: KeptTokens | None = None

    def read(self, task: RowGroupTask) -> pa.RecordBatch:
        """Return the live rows of one row group; null rows and bad rows have no tokens.

        Raises:
            SchemaError: the tokenizer did not return one flat list of int32 tokens for each text, or not all outputs.
            TransformError: the tokenizer raised an error; the message names the row.
            DataError, StoreError: see Reader.read.
        """
        rows = self.reader.read(task)
        lists, _ = self._tokenized(rows, task)
        names = [*rows.schema.names, *map(output_column, self.outputs)]
        return pa.RecordBatch.from_arrays([lists[0], *rows.columns[1:], *lists[1:]], names=names)

    def list_items(self, task: RowGroupTask, column: str) -> Int64s | None:  # noqa: ARG002  # as Reader.list_items
        """Return None: footers do not count the tokens of a text."""
        return None

    def measure(self, task: RowGroupTask) -> pa.RecordBatch:
        """Return one column: the tokens of each live row, BAD_ROW for a row that the tokenizer refuses.

        Raises:
            See `read`.
        """
        rows = self.reader.read(task)
        lists, bad = self._tokenized(rows, task)
        lengths = np.diff(list_offsets(lists[0]))
        lengths[list(bad)] = BAD_ROW
        for refusal in bad.values():
            log_left_out(refusal)
        return pa.RecordBatch.from_arrays([pa.array(lengths)], names=["tokens"])

    def _tokenized(self, rows: pa.RecordBatch, task: RowGroupTask) -> tuple[list[pa.Array], dict[int, TransformError]]:
        """Return the lists of tokens and of each output, and the error of each bad row by its number.

        Row groups with bad rows are not kept: the reason for each bad row is found again.
        """
        if self.kept is None:
            return self._tokenize(rows, task.where)
        taken = rows.select(list(self.tokenizer.columns) or rows.schema.names[:1])
        key = self.kept.key(taken, str(self.tokenizer.version), self.outputs, task)
        lists = self.kept.get(key, rows.num_rows)
        if lists is not None:
            return lists, {}
        lists, bad = self._tokenize(rows, task.where)
        if not bad:
            self.kept.put(key, lists)
        return lists, bad

    def _tokenize(self, rows: pa.RecordBatch, where: str) -> tuple[list[pa.Array], dict[int, TransformError]]:
        """Return the result of `_tokenized` by calling the tokenizer."""
        values = {row: value for row, value in enumerate(self._values(rows)) if value is not None}
        bad: dict[int, TransformError] = {}
        try:
            documents = self._documents(list(values.values()), where)
        except TransformError:
            alone, bad = self._one_by_one(values, where)
            if not bad:
                raise
            values = {row: values[row] for row in alone}
            documents = [
                check_token_lists([given[output].values for given in alone.values()], len(alone), where)
                for output in range(1 + len(self.outputs))
            ]
        is_there = np.zeros(rows.num_rows, dtype=np.bool_)
        is_there[list(values)] = True
        names = (TOKENS, *self.outputs)
        lists = [_as_lists(each, is_there, output_type(name)) for name, each in zip(names, documents, strict=True)]
        return lists, bad

    def _values(self, rows: pa.RecordBatch) -> list[Any]:
        if self.tokenizer.columns:
            return list(rows.select(list(self.tokenizer.columns)).to_pylist())
        return list(to_plain(rows.column(0)).to_pylist())

    def _documents(self, values: list[Any], where: str) -> list[Documents]:
        """Return the tokens of the values, and each output."""
        try:
            given = self.tokenizer.call(values, self.outputs) if values else {}
        except Exception as error:  # a user's tokenizer may raise anything
            raise TransformError(
                f"The tokenizer raised {type(error).__name__} for {where}: {error}. Correct the row or the tokenizer; "
                'on_error="skip" leaves such rows out.'
            ) from error
        named = given if isinstance(given, Mapping) else {TOKENS: given}
        wanted = (TOKENS, *self.outputs)
        if values and (missing := [name for name in wanted if name not in named]):
            raise SchemaError(
                f"The tokenizer gave {sorted(map(str, named))} for {where}, and not {missing}: let it return token "
                f"lists, or a mapping with {list(wanted)}."
            )
        return [check_token_lists(named.get(name, []), len(values), where) for name in wanted]

    def _one_by_one(
        self, values: dict[int, Any], where: str
    ) -> tuple[dict[int, list[Documents]], dict[int, TransformError]]:
        """Return `_documents` of each row alone, and the errors of the rows that the tokenizer refuses.

        Raises:
            TransformError: bad rows are not skipped, or the error is not about a row.
        """
        good: dict[int, list[Documents]] = {}
        bad: dict[int, TransformError] = {}
        for row, value in values.items():
            try:
                good[row] = self._documents([value], f"{where}, live row {row}")
            except TransformError as refusal:
                if not self.skips_bad_rows or isinstance(refusal.__cause__, _NOT_OF_THE_ROW):
                    raise
                bad[row] = refusal
        return good, bad


def tokenized(
    reader: Reader,
    tokenizer: NamedTokenizer | None,
    outputs: tuple[str, ...] = (),
    *,
    skips_bad_rows: bool = False,
    kept: KeptTokens | None = None,
) -> Reader | TokenizingReader:
    """Return the reader, with its first column tokenized if there is a tokenizer."""
    if tokenizer is None:
        return reader
    return TokenizingReader(
        reader=reader,
        tokenizer=tokenizer,
        outputs=outputs,
        skips_bad_rows=skips_bad_rows,
        kept=kept if tokenizer.keeps_tokens else None,
    )


def output_type(output: str) -> pa.DataType:
    """Return the type of the numbers of an output."""
    return pa.int64() if output == LABELS else pa.int32()


def _as_lists(documents: Documents, is_there: Any, number: pa.DataType) -> pa.Array:
    """Return the documents as lists of numbers that fit int32, with null for the rows that were null."""
    tokens, limits = documents.values, np.iinfo(np.int32)
    if len(tokens) and not limits.min <= tokens.min() <= tokens.max() <= limits.max:
        raise SchemaError(f"The tokenizer gave {tokens.max()} and {tokens.min()}: return tokens that fit int32.")
    lengths = np.zeros(len(is_there), dtype=np.int64)
    lengths[is_there] = documents.lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    mask = pa.array(~is_there)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens, number), mask=mask)
