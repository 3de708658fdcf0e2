"""Bytes of a file: a span names a range of them, a buffer holds them."""

Span = tuple[int, int]
"""A range of bytes of a file: (offset, length)."""

Buffer = bytes | memoryview
