"""`LineCounter`: counts the rows of a text and cuts the text into blocks of whole lines, piece by piece."""

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s

_NEWLINE = 10
_RETURN = 13
_LAST_SPACE = 32


class LineCounter:
    """Counter of the rows and blocks of a text, which is fed piece by piece in file order.

    A row is a line that is not blank. A block ends at the first line end after `block_bytes`. The last line needs no
    line end. blank: Bytes that a blank line may have beside its line end. has_quotes, has_lone_returns: Whether the
    text has quotes, or returns that are not before a newline. With either, a CSV parser may find other rows.

        b'{"a":1}\\n\\n{"a":2}', any block size      one block of 2 rows, offset 0, length 16
    """

    def __init__(self, *, start: int, block_bytes: int, blank: bytes) -> None:
        self.has_quotes = False
        self.has_lone_returns = False
        self._blank = blank + b"\n"
        self._block_bytes = block_bytes
        self._position = self._block_start = start
        self._block_rows = 0
        self._ends_with_return = False
        self._open_line = b""  # the first byte of the unfinished line that is not blank
        self._blocks: list[tuple[int, int, int]] = []

    def feed(self, piece: bytes) -> None:
        """Count the next piece of the file."""
        text = np.frombuffer(piece, dtype=np.uint8)
        self.has_quotes = self.has_quotes or b'"' in piece
        if self._ends_with_return or b"\r" in piece:
            self._look_for_returns(text)
        stops = np.flatnonzero(text == _NEWLINE) + 1
        if len(stops) == 0:
            self._extend_open_line(piece)
        else:
            is_row = self._rows(piece, text, stops)
            self._close_blocks(stops + self._position, np.cumsum(is_row))
            self._open_line = b""
            self._extend_open_line(piece[int(stops[-1]) :])
        self._position += len(text)

    def _look_for_returns(self, text: npt.NDArray[np.uint8]) -> None:
        if self._ends_with_return and len(text):
            self.has_lone_returns = self.has_lone_returns or bool(text[0] != _NEWLINE)
            self._ends_with_return = False
        returns = np.flatnonzero(text == _RETURN)
        if len(returns) and returns[-1] == len(text) - 1:
            self._ends_with_return, returns = True, returns[:-1]
        self.has_lone_returns = self.has_lone_returns or bool((text[returns + 1] != _NEWLINE).any())

    def blocks(self) -> Int64s:
        """Close the last block and return all blocks, int64 [blocks, 3]: rows, offset, length."""
        if self._position > self._block_start:
            rows = self._block_rows + bool(self._open_line)
            self._blocks.append((rows, self._block_start, self._position - self._block_start))
            self._block_start, self._block_rows = self._position, 0
        return np.array(self._blocks, dtype=np.int64).reshape(-1, 3)

    def _rows(self, piece: bytes, text: npt.NDArray[np.uint8], stops: Int64s) -> npt.NDArray[np.bool_]:
        starts = np.concatenate([[0], stops[:-1]])
        is_row = np.ones(len(stops), dtype=bool)
        # Only lines that begin with a control character or space can be blank.
        for index in np.flatnonzero(text[starts] <= _LAST_SPACE).tolist():
            is_row[index] = bool(piece[int(starts[index]) : int(stops[index])].strip(self._blank))
        is_row[0] |= bool(self._open_line)
        return is_row

    def _extend_open_line(self, rest: bytes) -> None:
        if not self._open_line:
            self._open_line = rest.strip(self._blank)[:1]

    def _close_blocks(self, stops: Int64s, rows_before: Int64s) -> None:
        counted = 0
        while True:
            index = int(np.searchsorted(stops, self._block_start + self._block_bytes))
            if index == len(stops):
                break
            rows = int(rows_before[index])
            self._blocks.append(
                (self._block_rows + rows - counted, self._block_start, int(stops[index]) - self._block_start)
            )
            self._block_start, self._block_rows, counted = int(stops[index]), 0, rows
        self._block_rows += int(rows_before[-1]) - counted
