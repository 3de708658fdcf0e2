"""A tokenizer from a JSON file of the `tokenizers` package; pickled as its path."""

import operator
import sys
from collections.abc import Sequence
from typing import Any

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, MissingDependencyError, of_type


class TokenizerFile:
    """Calls `encode_batch` of the tokenizer saved at `path`; each process loads it once.

    Truncation and padding that the file asks for are left out: a document is all its tokens and nothing else.

    Raises:
        MissingDependencyError: the `tokenizers` package is not installed.
        ConfigError: that package cannot read the file.
    """

    def __init__(self, path: str, *, adds_special_tokens: bool = False) -> None:
        self.path = str(path)
        self.adds_special_tokens = adds_special_tokens
        self._loaded: Any = None

    @property
    def fingerprint(self) -> str:
        """Changes when the file does."""
        return f"{self.path} {LocalStore().stat(self.path).identity} {self.adds_special_tokens}"

    def __call__(self, texts: list[str]) -> Sequence[Sequence[int]]:
        """The token ids of each text."""
        if self._loaded is None:
            self._loaded = _load(self.path)
        encodings = self._loaded.encode_batch(texts, add_special_tokens=self.adds_special_tokens)
        return [encoding.ids for encoding in encodings]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def __repr__(self) -> str:
        return f"TokenizerFile({self.path!r}, adds_special_tokens={self.adds_special_tokens})"


def _load(path: str) -> Any:
    try:
        from tokenizers import Tokenizer  # optional, and slow to import
    except ImportError as error:
        raise MissingDependencyError("TokenizerFile needs the tokenizers package: pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # it raises no narrower class
        raise ConfigError(
            f"{redact(path)} is no tokenizer.json of the tokenizers package: {error}. Pass one on this machine."
        ) from error
    # The file may hold settings of whoever saved it, by which documents would be cut or padded to the longest one.
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
