"""Tokenizers: the token lists of a column of text, checked; one from a file; and names to find finished parts by."""

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._arrow.documents import Documents
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    MissingDependencyError,
    SchemaError,
    of_type,
)

# Takes the texts of one batch; gives per text one flat list, or array, of whole numbers.
Tokenizer = Callable[[list[str]], Sequence[Sequence[int]]]


def tokenize(column: pa.Array, tokenizer: Tokenizer, where: str) -> Documents:
    """The token lists of a text column without nulls.

    Raises:
        SchemaError: another type of column, or the tokenizer did not give one flat list of integers per text.
    """
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise SchemaError(f"{where} has the type {column.type}; a tokenizer needs text.")
    texts = column.to_pylist()
    lists = tokenizer(texts) if texts else []
    if isinstance(lists, Mapping):
        raise SchemaError(
            f"The tokenizer gave a mapping with {sorted(map(str, lists))} for the texts of {where}, not their token "
            'lists. For one of Hugging Face pass a function that returns tokenizer(texts)["input_ids"].'
        )
    return check_token_lists(lists, len(texts), where)


def check_token_lists(lists: Any, num_texts: int, where: str) -> Documents:
    """What a tokenizer gave for so many texts.

    Raises:
        SchemaError: not one flat list of integers a text.
    """
    if not hasattr(lists, "__len__") or len(lists) != num_texts:
        given = f"{len(lists)} token lists" if hasattr(lists, "__len__") else of_type(lists)
        raise SchemaError(f"The tokenizer gave {given} for the {num_texts} texts of {where}; give one list a text.")
    lists_of_tokens = [_check_tokens(tokens, text, where) for text, tokens in enumerate(lists)]
    offsets = np.zeros(len(lists_of_tokens) + 1, dtype=np.int64)
    np.cumsum([tokens.size for tokens in lists_of_tokens], out=offsets[1:])
    return Documents(values=np.concatenate([np.empty(0, dtype=np.int64), *lists_of_tokens]), offsets=offsets)


def _check_tokens(tokens: Any, text: int, where: str) -> npt.NDArray[np.int64]:
    """The tokens of text number `text` as an array; nothing is rounded, parsed or flattened."""
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError) as error:  # lists of several lengths, a tensor on a GPU
        raise SchemaError(_describe_tokens(type(tokens).__name__, text, where)) from error
    # numpy makes an empty list one of floats.
    is_integer = array.size == 0 or array.dtype.kind in "iu"
    if array.ndim != 1 or not is_integer:
        raise SchemaError(_describe_tokens(f"{array.dtype} array of shape {array.shape}", text, where))
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 1 << 63:
        raise SchemaError(_describe_tokens(f"token {array.max()}, which is beyond int64,", text, where))
    return array.astype(np.int64, copy=False)


def _describe_tokens(given: str, text: int, where: str) -> str:
    return (
        f"The tokenizer gave a {given} for text {text} (of those that are not null) of {where}. Let it give one flat "
        "list of whole numbers a text."
    )


class TokenizerFile:
    """Calls `encode_batch` of the tokenizer saved at `path`; each process loads it once, this one now.

    Truncation and padding that the file asks for are left out: a document is all its tokens and nothing else.

    Raises:
        MissingDependencyError: the `tokenizers` package is not installed.
        ConfigError: that package cannot read the file.
    """

    def __init__(self, path: str, *, add_special_tokens: bool = False) -> None:
        self.path = str(path)
        self.add_special_tokens = add_special_tokens
        self._loaded: Any = _load(self.path)

    @property
    def fingerprint(self) -> str:
        """Changes when the file does."""
        return f"{self.path} {LocalStore().stat(self.path).identity} {self.add_special_tokens}"

    def __call__(self, texts: list[str]) -> Sequence[Sequence[int]]:
        """The token ids of each text."""
        if self._loaded is None:
            self._loaded = _load(self.path)
        encodings = self._loaded.encode_batch(texts, add_special_tokens=self.add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def __repr__(self) -> str:
        return f"TokenizerFile({self.path!r}, add_special_tokens={self.add_special_tokens})"


def _load(path: str) -> Any:
    try:
        from tokenizers import Tokenizer  # optional, and slow to import
    except ImportError as error:
        raise MissingDependencyError("TokenizerFile needs the tokenizers package: pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # it raises no narrower class
        raise ConfigError(
            f"{redact(path)} is not a tokenizer.json of the tokenizers package: {error}. Pass one on this machine."
        ) from error
    # The file may hold settings from when it was saved, by which documents would be cut, or padded to the longest one.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def name_tokenizer(tokenizer: Any) -> str | int | None:
    """Its `fingerprint`, else the name under which its module has it; None if it has neither.

        def tokenize(texts): ...              "my_module.tokenize"
        lambda texts: ...                     None, and so are closures, partials, bound methods and instances:
                                              others have the same name

    Raises:
        ConfigTypeError: a fingerprint that is neither text nor a number.
    """
    fingerprint = getattr(tokenizer, "fingerprint", None)
    if isinstance(fingerprint, str | int):
        return fingerprint
    if fingerprint is not None:
        raise ConfigTypeError(
            f"The fingerprint of the tokenizer is {of_type(fingerprint)}: give an attribute or a property that "
            "is a text, such as the model's name and revision."
        )
    module, name = getattr(tokenizer, "__module__", None), getattr(tokenizer, "__qualname__", None)
    if module not in sys.modules or not isinstance(name, str):
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except AttributeError:
        return None
    return f"{module}.{name}" if found is tokenizer else None


def tokenizer_version(tokenizer: Any) -> str | None:
    """What results of the tokenizer are kept under: its `fingerprint`, else its name and its module's file.

    An edit of the file, where most of what a function calls is, makes it another one. None as for `name_tokenizer`, and
    for functions without a file, as those of a notebook.

    Raises:
        ConfigTypeError: see name_tokenizer.
    """
    name = name_tokenizer(tokenizer)
    if name is None or getattr(tokenizer, "fingerprint", None) is not None:
        return None if name is None else str(name)
    try:
        content = Path(sys.modules[tokenizer.__module__].__file__ or "").read_bytes()
    except (AttributeError, OSError):
        return None
    return f"{name} {digest_bytes(content)}"


def digest_bytes(content: bytes) -> str:
    """32 hex digits that only equal contents have."""
    return blake2b(content, digest_size=16).hexdigest()
