"""A file object over fetched ranges of a file, for decoders."""

from bisect import bisect_right
from collections.abc import Sequence

from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils.errors import InternalError


class SparseFile:
    """Read-only file object over fetched ranges; pyarrow reads a Parquet row group or an ORC stripe from it.

    Not thread-safe: it has a position, like any file. A read inside one range is a view; a read across neighbouring
    ranges is a copy. `size` is the size of the whole file. Reading a byte that was not fetched raises
    InternalError: the caller fetched too little, or did not ask whether the file `covers` the byte.

        SparseFile([(4, 3)], [b"abc"], size=20); seek(5); read(2)      b"bc"
    """

    def __init__(self, spans: Sequence[Span], data: Sequence[Buffer], size: int) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._views: list[memoryview] = []
        reached = 0
        for index in sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1])):
            start, length = spans[index]
            if start + length > reached:  # otherwise it lies inside an earlier range
                self._starts.append(start)
                self._stops.append(start + length)
                self._views.append(memoryview(data[index]))
                reached = start + length
        self._size = size
        self._position = 0
        self.closed = False

    def size(self) -> int:
        """Return the number of bytes of the whole file."""
        return self._size

    def tell(self) -> int:
        """Return the position, in bytes from the start of the file."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position: from the start (0), from here (1) or from the end (2)."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, length: int = -1) -> memoryview:
        """Return the next `length` bytes (all remaining bytes for -1), fewer only at the end of the file."""
        left = max(0, self._size - self._position)
        length = left if length < 0 else min(length, left)
        view = self._view(self._position, length)
        self._position += length
        return view

    def covers(self, start: int, length: int) -> bool:
        """Return whether all of these bytes were fetched, so that reading them cannot fail."""
        stop = min(start + length, self._size)
        while start < stop:
            index = bisect_right(self._starts, start) - 1
            if index < 0 or self._stops[index] <= start:
                return False
            start = self._stops[index]
        return True

    def close(self) -> None:
        """Drop the ranges."""
        self.closed = True
        self._starts, self._stops, self._views = [], [], []

    def _view(self, start: int, length: int) -> memoryview:
        part = self._part(start, length)
        if len(part) == length:
            return part
        parts, have = [part], len(part)
        while have < length:
            parts.append(self._part(start + have, length - have))
            have += len(parts[-1])
        return memoryview(b"".join(parts))

    def _part(self, start: int, length: int) -> memoryview:
        if length == 0:
            return memoryview(b"")
        index = bisect_right(self._starts, start) - 1
        inside = start - self._starts[index] if index >= 0 else 0
        part = self._views[index][inside : inside + length] if index >= 0 else memoryview(b"")
        if not part:
            raise InternalError(
                f"bytes {start} to {start + length} of {self._size} were not fetched; please report this."
            )
        return part
