"""Name, open, read and write the two files of a corpus, `<prefix>.idx` and `<prefix>.bin`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.paths import check_path, redact
from torch_dataloader_utils._runtime.publish import PendingFile
from torch_dataloader_utils._store import FileStat, LocalStore, StoreAccess, is_local, open_store
from torch_dataloader_utils.errors import ConfigError, FileChangedError, LoaderError, NoDataError, StoreError
from torch_dataloader_utils.megatron.corpora.index_format import (
    HEADER_BYTES,
    IndexHeader,
    TokenIndex,
    check_arrays,
    check_index_size,
    decode_arrays,
    decode_header,
)
from torch_dataloader_utils.megatron.corpora.ranges import ByteRange, ByteSource, StoredFile, open_source

Tokens = npt.NDArray[Any]

# Size and identity of .idx and .bin.
Identities = tuple[FileStat, FileStat]


def check_prefix(name: str, path_prefix: Any) -> str:
    """Return the prefix of a corpus as text. `name` is the name of the argument, for messages.

    Raises:
        ConfigTypeError: not a path. ConfigError: a web URL with a query, since no ending can follow a query.
    """
    prefix = check_path(name, path_prefix)
    if any(part.lower().startswith(("http://", "https://")) and "?" in part for part in prefix.split("::")):
        raise ConfigError(
            f"{name}={redact(prefix)!r} has a query, such as a signature, but .idx and .bin are appended to a prefix. "
            'Pass it without the query, and pass headers in storage_options: {"headers": {"Authorization": ...}}.'
        )
    return prefix


def index_path(path_prefix: str) -> str:
    """Return the path of the .idx file of a corpus."""
    return f"{path_prefix}.idx"


def bin_path(path_prefix: str) -> str:
    """Return the path of the .bin file of a corpus."""
    return f"{path_prefix}.bin"


class OpenCorpus:
    """The open files of one corpus in one process.

    The header is read at once; index and tokens are read on first use. The index of a local corpus is read at once too.

    Args:
        path_prefix: path or URL without ".idx" and ".bin".
        access: how to read remote files.
        multimodal: whether to read the mode of each sequence.
        maps_bin: whether to map a local .bin file. Otherwise the file is read in place.
        trusts_index: whether to skip the check of the index arrays.
        known: size and identity of both files, if known. Then remote files are not looked up, and every read must
            find these identities.

    Raises:
        NoDataError: a file is missing. CorruptFileError: the index is truncated, or is not an index.
        FileChangedError: the corpus was replaced while it was opened.
    """

    def __init__(
        self,
        path_prefix: str,
        access: StoreAccess,
        *,
        multimodal: bool,
        maps_bin: bool,
        trusts_index: bool,
        known: Identities | None,
    ) -> None:
        index_stat, bin_stat = (None, None) if known is None else known
        try:
            self._index_file: ByteSource = open_source(index_path(path_prefix), access, stat=index_stat)
            self._bin_file: ByteSource = open_source(bin_path(path_prefix), access, maps=maps_bin, stat=bin_stat)
            self._check_pair(access)
        except NoDataError as error:
            raise NoDataError(f"{error} A corpus is named by its prefix, without .bin or .idx.") from error
        self.identities = (self._index_file.stat, self._bin_file.stat)
        index_bytes = self.identities[0].size
        self._path = redact(self._index_file.path)
        start = self._index_file.read([(0, min(HEADER_BYTES, index_bytes))])[0]
        self.header: IndexHeader = decode_header(start, path=self._path)
        self.has_modes = check_index_size(self.header, index_bytes=index_bytes, multimodal=multimodal, path=self._path)
        self._array_count = 4 if self.has_modes and multimodal else 3
        self._trusts_index = trusts_index
        self._index: TokenIndex | None = None
        if not isinstance(self._index_file, StoredFile):
            self._index = self._load_index()

    def _check_pair(self, access: StoreAccess) -> None:
        """Raise FileChangedError if the .idx file was replaced: publishing a corpus first removes the old .idx.

        A remote .idx needs no check: every read is of the version that was looked up before the .bin file.
        """
        if isinstance(self._index_file, StoredFile):
            return
        path = self._index_file.path
        if open_store(path, access).stat(path) != self._index_file.stat:
            raise FileChangedError(f"{path} was replaced while the corpus was opened. Open it again.")

    @property
    def index(self) -> TokenIndex:
        """Arrays of the .idx file."""
        if self._index is None:
            self._index = self._load_index()
        return self._index

    def _load_index(self) -> TokenIndex:
        buffers = self._index_file.read(self.header.spans[: self._array_count])
        index = decode_arrays(self.header, buffers, with_modes=self._array_count == 4)
        if not self._trusts_index:
            check_arrays(index, bin_bytes=self.identities[1].size, path=self._path)
        return index

    def read(self, ranges: Sequence[ByteRange]) -> list[Tokens]:
        """Return the tokens of each byte range of .bin. All ranges are fetched together."""
        return [np.frombuffer(buffer, dtype=self.header.dtype) for buffer in self._bin_file.read(ranges)]


def local_path(name: str, path: str | Path) -> Path:
    """Return the local path of a corpus or sequences file. `name` is the name of the argument, for messages.

    Raises:
        ConfigTypeError: not a path. ConfigError: the URL of a store.
    """
    text = check_path(name, path)
    if not is_local(text):
        raise ConfigError(
            f"{name}={redact(text)!r} is the URL of a store: give a path on a local disk, or on a shared file system."
        )
    return Path(LocalStore().local_path(text))


def pending_file(name: str, path: str | Path) -> PendingFile:
    """Return a file to write that appears at `path` only when it is whole.

    Raises:
        StoreError: the file cannot be written. The errors of `local_path` and `PendingFile`.
    """
    target = local_path(name, path)
    with writing(target):
        return PendingFile(target)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block, which writes at `path`, into a StoreError that names the path."""
    try:
        yield
    except LoaderError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error}). Choose a directory that can.") from error
