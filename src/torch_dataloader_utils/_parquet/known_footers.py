"""Keeps what is known of footers with the same beginning and end: files with the same columns from one writer."""

from typing import Any, Generic, NamedTuple, TypeVar

from torch_dataloader_utils._parquet.footer_pattern import FooterKind, FooterNumbers, footer_kind
from torch_dataloader_utils._runtime.recent import Recent

T = TypeVar("T")

# For larger footers it takes too long to make a pattern.
_MOST_BYTES = 64 << 10
_MOST_KNOWN = 16


class MatchedFooter(NamedTuple, Generic[T]):
    """A footer that matches a pattern. known: what was learnt of others like it; None if nothing was yet."""

    numbers: FooterNumbers
    known: T | None
    key: Any


class KnownFooters(Generic[T]):
    """Recent footers by the bytes before and after their row groups, which hold the columns. Thread-safe."""

    def __init__(self) -> None:
        self._known: Recent[tuple[FooterKind, bytes, Any], T] = Recent(_MOST_KNOWN)

    def match(self, footer: bytes, what: Any = None) -> MatchedFooter[T] | None:
        """The match of a footer; None if too few like it came before. what: hashable, such as the projection."""
        kind = footer_kind(footer) if len(footer) <= _MOST_BYTES else None
        numbers = None if kind is None else kind.match(footer)
        if kind is None or numbers is None:
            return None
        key = kind, footer[numbers.stop :], what
        return MatchedFooter(numbers, self._known.find(key), key)

    def learn(self, matched: MatchedFooter[T], known: T) -> None:
        """Keep this for all footers with the same beginning and end."""
        self._known.keep(matched.key, known)
