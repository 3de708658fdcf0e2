"""Columns of whole numbers as one short text, for logs that have to stay small.

    packed([[8, 6, 8, 6, 8], [0, 0, 0, 0, 0]])      "<nOE"

An arithmetic code (range asymmetric numeral system, Duda 2013, arXiv:1311.2540): all numbers together become one large
integer. A number that is expected f times in t multiplies the integer by t / f, so it costs log2(t / f) bits. Each
column begins with its largest number. The shorter of two codes follows:

    even        every number up to the largest is expected equally often
    learned     a number is expected as often as it came so far; a new number is announced, then coded evenly

The integer is written in base 85 (RFC 1924), which has no character that JSON escapes.
"""

from base64 import b85decode, b85encode
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

Slot = tuple[int, int, int]
"""(start, size, total): the places [start, start + size) of [0, total) stand for a number."""

_MOST_BITS = 64
# Announces a number that has not come before.
_NEW = -1


def packed(columns: Iterable[Sequence[int]]) -> str:
    """Return the text of columns of numbers in [0, 2^64). The text does not hold the lengths of the columns."""
    number = _coded([slot for column in columns if column for slot in _column_slots(column)])
    return b85encode(number.to_bytes(-(-number.bit_length() // 8))).decode()


class PackedColumns:
    """Reader of the columns of a text, one column after the other.

    Raises:
        ValueError: the text is not in base 85.
    """

    def __init__(self, text: str) -> None:
        self._number = int.from_bytes(b85decode(text))

    @property
    def is_read(self) -> bool:
        """Whether all columns are read: a text that `packed` returned ends with its last column."""
        return self._number == 0

    def column(self, length: int) -> list[int]:
        """Return the next column, of `length` numbers."""
        if length == 0:
            return []
        bits = self._even(_MOST_BITS + 1)
        top = (1 << bits - 1) + self._even(1 << bits - 1) if bits else 0
        if not self._even(2):
            return [self._even(top + 1) for _ in range(length)]
        counts = {_NEW: 1}
        return [self._learned(counts, top) for _ in range(length)]

    def _even(self, total: int) -> int:
        self._number, value = divmod(self._number, total)
        return value

    def _learned(self, counts: dict[int, int], top: int) -> int:
        stops = list(accumulate(counts.values()))
        rest, place = divmod(self._number, stops[-1])
        index = bisect_right(stops, place)
        symbol = list(counts)[index]
        size = counts[symbol]
        self._number = rest * size + place - (stops[index] - size)
        value = self._even(top + 1) if symbol == _NEW else symbol
        _learn(counts, symbol, value)
        return value


def _coded(slots: Sequence[Slot]) -> int:
    """Return the integer that gives these slots when it is read, in their order."""
    number = 0
    for start, size, total in reversed(slots):
        number = number // size * total + start + number % size
    return number


def _column_slots(column: Sequence[int]) -> list[Slot]:
    top = max(column)
    bits = top.bit_length()
    head = [(bits, 1, _MOST_BITS + 1), *([(top - (1 << bits - 1), 1, 1 << bits - 1)] if bits else [])]
    even, learned = [(value, 1, top + 1) for value in column], _learned_slots(column, top)
    if _coded(even) <= _coded(learned):
        return [*head, (0, 1, 2), *even]
    return [*head, (1, 1, 2), *learned]


def _learned_slots(column: Sequence[int], top: int) -> list[Slot]:
    slots: list[Slot] = []
    counts = {_NEW: 1}
    for value in column:
        symbol = value if value in counts else _NEW
        sizes = list(counts.values())
        slots.append((sum(sizes[: list(counts).index(symbol)]), counts[symbol], sum(sizes)))
        if symbol == _NEW:
            slots.append((value, 1, top + 1))
        _learn(counts, symbol, value)
    return slots


def _learn(counts: dict[int, int], symbol: int, value: int) -> None:
    """Count a number. symbol: The number itself, or _NEW."""
    counts[symbol] += 1
    if symbol == _NEW:
        counts[value] = 1
