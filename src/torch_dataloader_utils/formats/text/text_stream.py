"""A stored text file as a stream of its text, decompressed."""

import io

import pyarrow as pa

from torch_dataloader_utils._core.paths import codec_of
from torch_dataloader_utils._store import FileEntry, Store
from torch_dataloader_utils.formats.whole_reads import ContentDigest


def text_stream(store: Store, entry: FileEntry, content: ContentDigest | None = None) -> pa.NativeFile:
    """Return the text, decompressed; `content` gets the stored bytes."""
    file = pa.PythonFile(_SequentialFile(store, entry, content), mode="r")
    codec = codec_of(entry.path)
    return file if codec is None else pa.CompressedInputStream(file, codec)


class TextWithEnd:
    """Text followed by more bytes."""

    def __init__(self, text: pa.NativeFile, more: bytes) -> None:
        self._text = text
        self._more = io.BytesIO(more)
        self.closed = False

    def read(self, length: int) -> bytes:
        """Return the next bytes, empty at the end."""
        return self._text.read(length) or self._more.read(length)

    def close(self) -> None:
        """Close the text."""
        self._text.close()
        self.closed = True


class _SequentialFile:
    """Stored file that is read from its start to its end, in pieces of the asked lengths."""

    def __init__(self, store: Store, entry: FileEntry, content: ContentDigest | None) -> None:
        self._store = store
        self._entry = entry
        self._content = content
        self._position = 0
        self.closed = False

    def read(self, length: int = -1) -> bytes | memoryview:
        """Return the next bytes, empty at the end."""
        left = self._entry.stat.size - self._position
        length = left if length < 0 else min(length, left)
        if length == 0:
            return b""
        (data,) = self._store.ranges(self._entry.path, [(self._position, length)], self._entry.stat.identity)
        if self._content is not None:
            self._content.feed(data)
        self._position += length
        return data

    def tell(self) -> int:
        """Return the position in the stored file."""
        return self._position

    def close(self) -> None:
        """Mark the file as closed. No resource is held."""
        self.closed = True
