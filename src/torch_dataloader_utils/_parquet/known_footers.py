"""What is known of footers that begin and end alike: those of files with the same columns, from the same writer."""

from typing import Any, Generic, NamedTuple, TypeVar

from torch_dataloader_utils._parquet.footer_pattern import FooterKind, FooterNumbers, footer_kind
from torch_dataloader_utils._runtime.recent import Recent

T = TypeVar("T")

# Of larger ones the pattern would take long to make.
_MOST_BYTES = 64 << 10
_MOST_KNOWN = 16


class MatchedFooter(NamedTuple, Generic[T]):
    """A footer that matches a pattern, and what is known of its like; None if it is the first that ends as it does."""

    numbers: FooterNumbers
    known: T | None
    key: Any


class KnownFooters(Generic[T]):
    """Footers of late, by what comes before and after their row groups: columns, and what Arrow and pandas say of them.

    For all threads.
    """

    def __init__(self) -> None:
        self._known: Recent[tuple[FooterKind, bytes, Any], T] = Recent(_MOST_KNOWN)

    def match(self, footer: bytes, what: Any = None) -> MatchedFooter[T] | None:
        """None of a footer whose like has not come often enough; `what`: what it is looked at for, hashable."""
        kind = footer_kind(footer) if len(footer) <= _MOST_BYTES else None
        numbers = None if kind is None else kind.match(footer)
        if kind is None or numbers is None:
            return None
        key = kind, footer[numbers.stop :], what
        return MatchedFooter(numbers, self._known.find(key), key)

    def learn(self, matched: MatchedFooter[T], known: T) -> None:
        """This is known of all footers that begin and end as this one."""
        self._known.keep(matched.key, known)
