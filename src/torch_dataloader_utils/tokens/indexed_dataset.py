"""A token corpus on disk: sequences of tokens in `<prefix>.bin`, described by `<prefix>.idx`."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from torch_dataloader_utils.errors import ConfigError, FileChangedError, UnsupportedFeatureError
from torch_dataloader_utils.tokens.dtypes import TokenDtype
from torch_dataloader_utils.tokens.facts import CorpusFacts
from torch_dataloader_utils.tokens.index_format import (
    HEADER_BYTES,
    IndexHeader,
    TokenIndex,
    check_arrays,
    check_index_size,
    decode_arrays,
    decode_header,
)
from torch_dataloader_utils.tokens.ranges import (
    ByteSource,
    FileIdentity,
    FsspecStore,
    MappedFile,
    PlainFile,
    RangeStore,
    StoredFile,
    is_remote,
    local_path,
)

Tokens = npt.NDArray[Any]
Part = tuple[int, int, int | None]
_Item = TypeVar("_Item")


def index_path(path_prefix: str) -> str:
    """The path of the index of a corpus."""
    return f"{path_prefix}.idx"


def bin_path(path_prefix: str) -> str:
    """The path of the tokens of a corpus."""
    return f"{path_prefix}.bin"


class IndexedDataset(Dataset[Any]):
    """Random access to the sequences of a corpus, as arrays of its dtype.

    Item i is sequence i, or (sequence, mode) when `multimodal`. A local corpus is mapped (`mmap=True`) or read in
    place, and its index is checked in full when it is opened. A remote one costs two look-ups and 34 bytes to open;
    its index is fetched and checked when it is first needed, and its tokens are read by ranges. With `facts` nothing
    is opened before the first access.

    Views of a mapped corpus are read-only and stay valid when the data set is gone. Pickling keeps the path and the
    identity of the files, and opens them again on the other side.

    Args:
        path_prefix: path or URL without ".idx" and ".bin".
        multimodal: give the mode of each sequence as well.
        mmap: map a local .bin; otherwise read it in place. Remote corpora are never mapped.
        store: where ranges of remote files come from; fsspec without options by default.
        facts: counts and identity known from elsewhere, see `read_sequences`.
        trust_index: skip the full check of the arrays. Each access is still checked.

    Raises:
        NoDataError: a file is missing.
        CorruptFileError: the index is truncated or does not describe the .bin.
    """

    def __init__(
        self,
        path_prefix: str,
        multimodal: bool = False,
        mmap: bool = True,
        *,
        store: RangeStore | None = None,
        facts: CorpusFacts | None = None,
        trust_index: bool = False,
    ) -> None:
        self.path_prefix = str(path_prefix)
        self.multimodal = multimodal
        self.mmap = mmap
        self._store = store
        self._facts = facts
        self._trusts_index = trust_index
        self._opened: _OpenCorpus | None = None
        if facts is None:
            self._open()

    @staticmethod
    def exists(path_prefix: str, store: RangeStore | None = None) -> bool:
        """Whether both files of the corpus are there."""
        paths = (index_path(str(path_prefix)), bin_path(str(path_prefix)))
        if not is_remote(str(path_prefix)):
            return all(local_path(path).is_file() for path in paths)
        try:
            return all((store or FsspecStore()).identify(path) for path in paths)
        except FileNotFoundError:
            return False

    def _open(self) -> "_OpenCorpus":
        if self._opened is None:
            opened = _OpenCorpus(self.path_prefix, self.multimodal, self.mmap, self._store, self._trusts_index)
            if self._facts is not None:
                self._facts.check(opened.header, opened.identities, path_prefix=self.path_prefix)
            self._opened = opened
        return self._opened

    @property
    def index(self) -> TokenIndex:
        """The checked arrays of the .idx file."""
        return self._open().index

    @property
    def header(self) -> IndexHeader:
        """The header of the .idx file; needs none of its arrays."""
        return self._open().header

    @property
    def dtype(self) -> TokenDtype:
        """The type of the tokens."""
        return self.header.dtype

    @property
    def identities(self) -> tuple[FileIdentity, FileIdentity]:
        """Identity of .idx and .bin, as they were when the corpus was opened (or as `facts` says)."""
        if self._facts is not None and self._facts.identities is not None:
            return self._facts.identities
        return self._open().identities

    @property
    def token_count(self) -> int:
        """Tokens of the whole corpus; needs no index."""
        if self._facts is not None and self._facts.token_count is not None:
            return self._facts.token_count
        opened = self._open()
        return opened.identities[1].size_bytes // opened.header.dtype.itemsize

    @property
    def sequence_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sequence, int32 [S]."""
        return self.index.sequence_lengths

    @property
    def document_indices(self) -> npt.NDArray[np.int64]:
        """Document boundaries as sequence indices, int64 [documents + 1]."""
        return self.index.document_indices

    @property
    def sequence_modes(self) -> npt.NDArray[np.int8] | None:
        """Mode of each sequence, int8 [S], or None for a corpus opened without modes."""
        return self.index.sequence_modes if self.multimodal else None

    def __len__(self) -> int:
        if self._facts is not None:
            return self._facts.sequence_count
        return self._open().header.sequence_count

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Any: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Sequence `index`, or the list of sequences of a slice with step 1 (one read).

        Multimodal corpora give (sequence, mode) or (sequences, modes).
        """
        if isinstance(index, slice):
            return self._get_slice(index)
        index = self._check_index(index)
        tokens = self.get_parts([(index, 0, None)])[0]
        return self._with_modes(tokens, index)

    def _get_slice(self, wanted: slice) -> Any:
        start, stop, step = wanted.indices(len(self))
        if step != 1:
            raise UnsupportedFeatureError(f"Slices of a token corpus are contiguous; step {step} was asked for.")
        stop = max(start, stop)
        lengths = self.sequence_lengths[start:stop]
        bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        tokens: Tokens = np.empty(0, dtype=self.dtype)
        if start < stop:
            first_byte = int(self.index.sequence_pointers[start])
            tokens = self._open().read([(first_byte, first_byte + int(bounds[-1]) * self.dtype.itemsize)])[0]
        sequences = [tokens[low:high] for low, high in itertools.pairwise(bounds)]
        return self._with_modes(sequences, slice(start, stop))

    def get(self, index: int, offset: int = 0, length: int | None = None) -> Any:
        """`length` tokens of sequence `index` from `offset` on; all the rest when `length` is None.

        Raises:
            IndexError: no such sequence.
            ConfigError: the part does not lie inside the sequence.
        """
        index = self._check_index(index)
        return self._with_modes(self.get_parts([(index, offset, length)])[0], index)

    def get_parts(self, parts: Sequence[Part]) -> list[Tokens]:
        """The tokens of each (sequence, offset, length), read together; length None means the rest.

        sequence 0 = 5 6 7: (0, 1, None) gives 6 7; (0, 3, None) is empty; (0, 4, None) is an error.
        """
        opened, index = self._open(), self.index
        itemsize = opened.header.dtype.itemsize
        spans: list[tuple[int, int]] = []
        for sequence, offset, length in parts:
            total = int(index.sequence_lengths[sequence])
            stop = total if length is None else offset + length
            if not 0 <= offset <= stop <= total:
                raise ConfigError(
                    f"{self.path_prefix}: sequence {sequence} has {total} tokens; [{offset}, {stop}) were asked for."
                )
            pointer = int(index.sequence_pointers[sequence])
            spans.append((pointer + offset * itemsize, pointer + stop * itemsize))
        return opened.read(spans)

    def _check_index(self, index: int) -> int:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"{self.path_prefix} has {count} sequences; {index} was asked for.")
        return int(index) + count if index < 0 else int(index)

    def _with_modes(self, tokens: _Item, where: int | slice) -> _Item | tuple[_Item, Any]:
        modes = self.sequence_modes
        return tokens if modes is None else (tokens, modes[where])

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_opened"] = None
        state["identities"] = self._opened.identities if self._opened is not None else None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        seen = state.pop("identities")
        self.__dict__.update(state)
        if seen is not None and self._open().identities != seen:
            raise FileChangedError(
                f"{self.path_prefix} changed since the data set was made: {seen} then, {self._open().identities} now. "
                f"Make the data set again."
            )


class _OpenCorpus:
    """The open files of one corpus in one process."""

    def __init__(
        self, path_prefix: str, multimodal: bool, mmap: bool, store: RangeStore | None, trusts_index: bool
    ) -> None:
        self._index_file = _open_source(index_path(path_prefix), store, mmap=True)
        self._bin_file = _open_source(bin_path(path_prefix), store, mmap=mmap)
        self.identities = (self._index_file.identity, self._bin_file.identity)
        index_bytes = self.identities[0].size_bytes
        path = self._index_file.path
        start = self._index_file.read([(0, min(HEADER_BYTES, index_bytes))])[0]
        self.header: IndexHeader = decode_header(start, path=path)
        has_modes = check_index_size(self.header, index_bytes=index_bytes, multimodal=multimodal, path=path)
        self._array_count = 4 if has_modes and multimodal else 3
        self._trusts_index = trusts_index
        self._index: TokenIndex | None = None
        if isinstance(self._index_file, MappedFile):
            self._index = self._load_index()

    @property
    def index(self) -> TokenIndex:
        if self._index is None:
            self._index = self._load_index()
        return self._index

    def _load_index(self) -> TokenIndex:
        buffers = self._index_file.read(self.header.spans[: self._array_count])
        index = decode_arrays(self.header, buffers, with_modes=self._array_count == 4)
        if not self._trusts_index:
            check_arrays(index, bin_bytes=self.identities[1].size_bytes, path=self._index_file.path)
        return index

    def read(self, spans: Sequence[tuple[int, int]]) -> list[Tokens]:
        return [np.frombuffer(buffer, dtype=self.header.dtype) for buffer in self._bin_file.read(spans)]


def _open_source(path: str, store: RangeStore | None, *, mmap: bool) -> ByteSource:
    if is_remote(path):
        return StoredFile(path, store or FsspecStore())
    return MappedFile(path) if mmap else PlainFile(path)
