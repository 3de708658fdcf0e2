"""Many strings as two buffers: a million paths cost their bytes, not a million Python objects; and counts in words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


def counted(number: int, unit: str) -> str:
    """A number with its unit: "1 file", "1,200 files"."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StringColumn:
    """An immutable column of UTF-8 strings; pickles as buffers.

    `data` holds the bytes of all strings, uint8; string i is data[offsets[i]:offsets[i + 1]], offsets int64 of
    shape [n + 1].
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringColumn":
        """The column of these strings, in order."""
        encoded = [text.encode() for text in strings]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        return cls(data=np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets=offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def take(self, indices: npt.NDArray[np.int64]) -> "StringColumn":
        """The strings at `indices`, in that order."""
        return StringColumn.of(self[int(index)] for index in indices)
