"""Calls tokenizers and checks their token lists, loads tokenizer files, and names tokenizers for kept results."""

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
from torch_dataloader_utils._arrow.schema import is_utf8
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, MissingDependencyError, SchemaError, of_type

# A function of the texts of one batch. It returns one flat list, or array, of whole numbers for each text.
Tokenizer = Callable[[list[str]], Sequence[Sequence[int]]]


def tokenize(column: pa.Array, tokenizer: Tokenizer, where: str) -> Documents:
    """Return the token lists of a text column without nulls.

    where: Name of the column, for messages.

    Raises:
        SchemaError: the column is not text, or the tokenizer did not return one flat list of integers for each text.
    """
    if not is_utf8(column.type):
        raise SchemaError(f"{where} has the type {column.type}; a tokenizer needs text.")
    texts = column.to_pylist()
    lists = tokenizer(texts) if texts else []
    if isinstance(lists, Mapping):
        raise SchemaError(
            f"The tokenizer gave a mapping with {sorted(map(str, lists))} for the texts of {where}, not their token "
            'lists. For a Hugging Face tokenizer pass a function that returns tokenizer(texts)["input_ids"].'
        )
    return check_token_lists(lists, len(texts), where)


def check_token_lists(lists: Any, num_texts: int, where: str) -> Documents:
    """Return what a tokenizer gave for `num_texts` texts as documents.

    Raises:
        SchemaError: `lists` is not one flat list of integers for each text.
    """
    if not hasattr(lists, "__len__") or len(lists) != num_texts:
        given = f"{len(lists)} token lists" if hasattr(lists, "__len__") else of_type(lists)
        raise SchemaError(
            f"The tokenizer gave {given} for the {num_texts} texts of {where}. Let it return one list for each text."
        )
    lists_of_tokens = [_check_tokens(tokens, text, where) for text, tokens in enumerate(lists)]
    offsets = np.zeros(len(lists_of_tokens) + 1, dtype=np.int64)
    np.cumsum([tokens.size for tokens in lists_of_tokens], out=offsets[1:])
    return Documents(values=np.concatenate([np.empty(0, dtype=np.int64), *lists_of_tokens]), offsets=offsets)


def _check_tokens(tokens: Any, text: int, where: str) -> npt.NDArray[np.int64]:
    """Return the tokens of text number `text` as an array; nothing is rounded, parsed or flattened."""
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError) as error:  # lists of different lengths, or a tensor on a GPU
        raise SchemaError(_describe_tokens(type(tokens).__name__, text, where)) from error
    # numpy gives an empty list the type of floats.
    is_integer = array.size == 0 or array.dtype.kind in "iu"
    if array.ndim != 1 or not is_integer:
        raise SchemaError(_describe_tokens(f"{array.dtype} array of shape {array.shape}", text, where))
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 1 << 63:
        raise SchemaError(_describe_tokens(f"token {array.max()}, which is beyond int64,", text, where))
    return array.astype(np.int64, copy=False)


def _describe_tokens(given: str, text: int, where: str) -> str:
    return (
        f"The tokenizer gave a {given} for text {text} (counted without nulls) of {where}. Let it return one flat "
        "list of whole numbers for each text."
    )


class TokenizerFile:
    """Tokenizer of the file at `path` (a tokenizer.json), loaded once in each process and at once in this process.

    Truncation and padding that the file asks for are switched off: a document is all its tokens and nothing else.

    Raises:
        MissingDependencyError: the `tokenizers` package is not installed.
        ConfigError: the `tokenizers` package cannot read the file.
    """

    def __init__(self, path: str, *, add_special_tokens: bool = False) -> None:
        self.path = str(path)
        self.add_special_tokens = add_special_tokens
        self._loaded: Any = _load(self.path)

    @property
    def fingerprint(self) -> str:
        """Text that changes when the file changes."""
        return f"{self.path} {LocalStore().stat(self.path).identity} {self.add_special_tokens}"

    def __call__(self, texts: list[str]) -> Sequence[Sequence[int]]:
        """Return the token ids of each text."""
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
    except Exception as error:  # from_file raises nothing narrower
        raise ConfigError(
            f"{redact(path)} is not a tokenizer.json of the tokenizers package: {error}. Pass the path of a file that "
            'Tokenizer.save wrote, on this machine, or a tokenizer: AutoTokenizer.from_pretrained("...").'
        ) from error
    # The file may hold settings that cut documents, or pad them to the longest document.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def name_tokenizer(tokenizer: Any) -> str | int | None:
    """Return the tokenizer's `fingerprint`, else its name in its module, else None.

        def tokenize(texts): ...              "my_module.tokenize"
        lambda texts: ...                     None; also for closures, partials, bound methods and instances, because
                                              other objects have the same name

    Raises:
        ConfigTypeError: the fingerprint is neither a text nor a number.
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
    """Return the name under which a tokenizer's results are kept: its `fingerprint`, or its name and module's digest.

    The digest of the module's file changes with every edit, because most of what a function calls is in its file.
    Returns None where `name_tokenizer` does, and for functions without a file, for example in a notebook.

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
    """Return a digest of the content, 32 hex digits."""
    return blake2b(content, digest_size=16).hexdigest()
