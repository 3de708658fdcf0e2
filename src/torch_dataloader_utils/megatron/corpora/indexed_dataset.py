"""Read the sequences of a token corpus at random: tokens in `<prefix>.bin`, described by `<prefix>.idx`."""

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from torch_dataloader_utils._core.arguments import check_flag
from torch_dataloader_utils._store import Credentials, RemoteOptions, Secret, StoreAccess, open_store, redact
from torch_dataloader_utils.errors import ConfigError, FileChangedError, NoDataError, UnsupportedFeatureError
from torch_dataloader_utils.megatron.corpora.corpus_files import (
    Identities,
    OpenCorpus,
    Tokens,
    bin_path,
    check_prefix,
    index_path,
)
from torch_dataloader_utils.megatron.corpora.index_format import CorpusFacts, IndexHeader, TokenDtype, TokenIndex

Part = tuple[int, int, int | None]
_Item = TypeVar("_Item")


class IndexedDataset(Dataset[Any]):
    """Random access to the sequences of a corpus, as arrays of the corpus's dtype.

    Item i is sequence i, or (sequence, mode) with `multimodal`. A local corpus is mapped (`mmap=True`) or read in
    place, and its index is checked in full when the corpus is opened. Opening a remote corpus costs two look-ups and
    34 bytes; the index is fetched and checked on first use, and tokens are read by ranges. Every range is of the
    opened version. With `facts` nothing is opened before the first access.

    Views of a mapped corpus are read-only and stay valid when the data set is gone. torch does not know read-only
    memory: copy a view before you write to a tensor of this view, or the process ends with SIGSEGV. A .bin file that is
    cut or overwritten in place while it is mapped gives zeros, other tokens or SIGBUS; `mmap=False` checks the length.

    Pickling keeps the path and the identity of the files. After unpickling, a local corpus that was open is opened and
    compared at once, and a remote corpus on first access, without another look-up.

    Args:
        path_prefix: path or URL without ".idx" and ".bin".
        multimodal: whether items have the mode of the sequence as well.
        mmap: whether a local .bin is mapped. Otherwise it is read in place. Remote corpora are never mapped.
        storage_options: options of the storage client; never shown.
        credentials: function that returns storage options with credentials, called again when the credentials expire.
            The function travels to worker processes; its results do not.
        remote: how remote files are read: RemoteOptions(backend, retry, coalesce, connections).
        facts: counts and identity of the corpus, known from elsewhere; see `read_sequences`.
        trust_index: whether to skip the full check of the arrays. Each access is still checked.

    Raises:
        ConfigTypeError: not a path, or a text for a flag. ConfigError: a web URL with a query.
        NoDataError: a file is missing.
        CorruptFileError: the index is truncated or does not describe the .bin.
        FileChangedError: a file differs from the file opened before (on every read of a remote corpus).
        StoreError: the storage failed.
    """

    def __init__(
        self,
        path_prefix: str,
        multimodal: bool = False,
        mmap: bool = True,
        *,
        storage_options: Mapping[str, Any] | Secret | StoreAccess | None = None,
        credentials: Credentials | None = None,
        remote: RemoteOptions | None = None,
        facts: CorpusFacts | None = None,
        trust_index: bool = False,
    ) -> None:
        self.path_prefix = check_prefix("path_prefix", path_prefix)
        self.multimodal = check_flag("multimodal", multimodal)
        self.mmap = check_flag("mmap", mmap)
        self._access = StoreAccess.of(storage_options, credentials, remote)
        self._facts = facts
        # Size and identity of the files, if known, so that no other files are ever read.
        self._known: Identities | None = None if facts is None else facts.identities
        self._trusts_index = check_flag("trust_index", trust_index)
        self._opened: OpenCorpus | None = None
        if facts is None:
            self._open()

    @staticmethod
    def exists(
        path_prefix: str,
        *,
        storage_options: Mapping[str, Any] | Secret | StoreAccess | None = None,
        credentials: Credentials | None = None,
        remote: RemoteOptions | None = None,
    ) -> bool:
        """Return whether both files of the corpus exist.

        Raises:
            ConfigTypeError, ConfigError: not a prefix. StoreError: the storage failed.
        """
        prefix = check_prefix("path_prefix", path_prefix)
        paths = (index_path(prefix), bin_path(prefix))
        store = open_store(paths[0], StoreAccess.of(storage_options, credentials, remote))
        if store.is_local:
            return all(Path(store.local_path(path)).is_file() for path in paths)
        try:
            for path in paths:
                store.stat(path)
        except NoDataError:
            return False
        return True

    def _open(self) -> "OpenCorpus":
        if self._opened is None:
            opened = self._open_files()
            if self._facts is not None:
                self._facts.check(opened.header, opened.identities, path_prefix=self.path_prefix)
            if self._known not in (None, opened.identities):
                raise FileChangedError(
                    f"{redact(self.path_prefix)} changed since the data set was made: {self._known} then, "
                    f"{opened.identities} now. Make the data set again."
                )
            self._opened, self._known = opened, opened.identities
        return self._opened

    def _open_files(self) -> OpenCorpus:
        try:
            return OpenCorpus(
                self.path_prefix,
                self._access,
                multimodal=self.multimodal,
                maps_bin=self.mmap,
                trusts_index=self._trusts_index,
                known=self._known,
            )
        except FileChangedError as error:
            if self._facts is None:
                raise
            raise FileChangedError(
                f"{error} The sequences file describes another version: write the sequences file again."
            ) from error

    @property
    def index(self) -> TokenIndex:
        """Checked arrays of the .idx file."""
        return self._open().index

    @property
    def header(self) -> IndexHeader:
        """Header of the .idx file; reads no array."""
        return self._open().header

    @property
    def dtype(self) -> TokenDtype:
        """Type of the tokens."""
        return self.header.dtype

    @property
    def identities(self) -> Identities:
        """Size and identity of .idx and .bin when the corpus was opened, or as in `facts`."""
        return self._open().identities if self._known is None else self._known

    @property
    def token_count(self) -> int:
        """Number of tokens of the whole corpus; reads no array."""
        if self._facts is not None and self._facts.token_count is not None:
            return self._facts.token_count
        opened = self._open()
        return opened.identities[1].size // opened.header.dtype.itemsize

    @property
    def sequence_lengths(self) -> npt.NDArray[np.int32]:
        """Number of tokens of each sequence, int32 [S]."""
        return self.index.sequence_lengths

    @property
    def document_indices(self) -> npt.NDArray[np.int64]:
        """Document boundaries as sequence indices, int64 [documents + 1]."""
        return self.index.document_indices

    @property
    def sequence_modes(self) -> npt.NDArray[np.int8] | None:
        """Mode of each sequence, int8 [S], or None without `multimodal`."""
        return self.index.sequence_modes if self.multimodal else None

    @property
    def has_modes(self) -> bool:
        """Whether the .idx file has sequence modes, with or without `multimodal`."""
        opened = self._open()
        return opened.has_modes and opened.header.sequence_count > 0

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
        """Return sequence `index`, or the list of sequences of a slice with step 1 (one read).

        With `multimodal` return (sequence, mode) or (sequences, modes).
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
        """Return `length` tokens of sequence `index` from `offset` on; all the rest if `length` is None.

        Raises:
            IndexError: the sequence does not exist. TypeError: `index` is not a whole number.
            ConfigError: the part does not lie inside the sequence.
        """
        index = self._check_index(index)
        return self._with_modes(self.get_parts([(index, offset, length)])[0], index)

    def get_parts(self, parts: Sequence[Part]) -> list[Tokens]:
        """Return the tokens of each (sequence, offset, length), read together; length None means the rest.

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
                    f"{redact(self.path_prefix)}: sequence {sequence} has {total} tokens; "
                    f"[{offset}, {stop}) were asked for."
                )
            pointer = int(index.sequence_pointers[sequence])
            spans.append((pointer + offset * itemsize, pointer + stop * itemsize))
        return opened.read(spans)

    def _check_index(self, index: int) -> int:
        index, count = operator.index(index), len(self)
        if not -count <= index < count:
            raise IndexError(f"{redact(self.path_prefix)} has {count} sequences; {index} was asked for.")
        return index + count if index < 0 else index

    def _with_modes(self, tokens: _Item, where: int | slice) -> _Item | tuple[_Item, Any]:
        modes = self.sequence_modes
        return tokens if modes is None else (tokens, modes[where])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "was_open": self._opened is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        was_open = state.pop("was_open")
        self.__dict__.update(state)
        # Thousands of remote corpora would cost thousands of requests before the first sample of a worker.
        if was_open and open_store(self.path_prefix).is_local:
            self._open()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {redact(self.path_prefix)}>"
