"""Write a token corpus from sequences, or merge corpora; `<prefix>.bin` and `<prefix>.idx` appear together."""

import os
import shutil
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_flag, check_integer
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._runtime.publish import sync_directory
from torch_dataloader_utils._store import censored_text, file_stat
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptFileError,
    DataError,
    FileChangedError,
    NoDataError,
    SchemaError,
)
from torch_dataloader_utils.megatron.corpora.corpus_files import bin_path, index_path, local_path, pending_file
from torch_dataloader_utils.megatron.corpora.index_format import (
    DTYPES,
    dtype_code,
    encode_index,
    integer_limits,
    wider_dtype,
)
from torch_dataloader_utils.megatron.corpora.indexed_dataset import IndexedDataset

_MAX_SEQUENCE_TOKENS = 2**31 - 1


class IndexedDatasetBuilder:
    """Writer of one corpus; nothing is visible under the paths of the corpus before `finalize`.

    Sequences are appended in order; a document ends with `end_document` (or `add_document`). Use the builder in a
    `with` block, so that an exception leaves no half-written file behind.

    A call that raises adds nothing, even if the disk is full (OSError), and further calls can add more. If the partly
    written bytes cannot be cut off, the builder is discarded.

    Args:
        bin_path: path of the .bin file; the directory must exist.
        dtype: type of the tokens on disk; see `select_dtype`.
        multimodal: whether to keep a mode per sequence.
    """

    def __init__(self, bin_path: str | Path, dtype: object = np.int32, multimodal: bool = False) -> None:
        self.dtype = DTYPES[dtype_code(dtype)]
        self.multimodal = check_flag("multimodal", multimodal)
        # Arrays of machine integers: a list of Python ints would cost eight times as much for a billion sequences.
        self._lengths, self._documents, self._modes = array("i"), array("q", [0]), array("b")
        self._bin = pending_file("bin_path", bin_path)

    @property
    def sequence_count(self) -> int:
        """Number of sequences added so far."""
        return len(self._lengths)

    @property
    def document_count(self) -> int:
        """Number of documents ended so far."""
        return len(self._documents) - 1

    @property
    def token_count(self) -> int:
        """Number of tokens written so far."""
        self._check_open()
        return self._bin.file.tell() // self.dtype.itemsize

    def add_item(self, tensor: Any, mode: int = 0) -> None:
        """Append one sequence (tensor, array or list of integers) to the open document.

        Raises:
            DataError: a token does not fit the dtype, or the sequence is longer than 2^31 − 1 tokens.
            ConfigError: a mode that is not a whole number from −128 to 127, or the builder has ended.
        """
        tokens = self._convert(tensor)
        with self._all_or_nothing():
            self._write(tokens, np.array([tokens.size]), [mode])

    def add_document(self, tensor: Any, lengths: Sequence[int], modes: Sequence[int] | None = None) -> None:
        """Append one document: all its tokens, and the number of tokens of each of its sequences.

        Raises:
            ConfigError: the lengths do not add up to the tokens or are not whole numbers, or modes do not match.
        """
        tokens, counts = self._convert(tensor), _whole_numbers("lengths", lengths)
        if counts.sum() != tokens.size or (counts < 0).any():
            raise ConfigError(f"The lengths of a document add up to {counts.sum()}, it has {tokens.size} tokens.")
        with self._all_or_nothing():
            self._write(tokens, counts, [0] * len(counts) if modes is None else modes)
            self.end_document()

    def add_documents(self, values: Any, offsets: Any, eod: int | None = None) -> None:
        """Append many documents of one sequence each: document i is values[offsets[i]:offsets[i + 1]].

        `values` and `offsets` are the two buffers of an Arrow list column (or of an awkward array). `eod` is appended
        to each document.

            values 1 2 3 4, offsets 0 3 4, eod 9      documents 1 2 3 9 | 4 9

        Raises:
            ConfigError: offsets do not rise inside the values, or are not whole numbers.
        """
        tokens, bounds = self._convert(values), _whole_numbers("offsets", offsets)
        counts = np.diff(bounds)
        if bounds.size < 1 or bounds[0] < 0 or bounds[-1] > tokens.size or (counts < 0).any():
            raise ConfigError(f"Document offsets must rise from 0 to {tokens.size} at most.")
        tokens = tokens[bounds[0] : bounds[-1]]
        if eod is not None:
            tokens = np.insert(tokens, bounds[1:] - bounds[0], self._convert([eod])[0])
            counts = counts + 1
        first = self.sequence_count
        with self._all_or_nothing():
            self._write(tokens, counts, [0] * len(counts))
            self._documents.frombytes(np.arange(first + 1, first + len(counts) + 1, dtype=np.int64).tobytes())

    def end_document(self) -> None:
        """End the open document."""
        self._check_open()
        self._documents.append(len(self._lengths))

    def add_index(self, path_prefix: str) -> None:
        """Append a whole corpus of the same dtype; its documents keep their boundaries.

        Raises:
            ConfigError: the corpus is not on a local disk.
            SchemaError: the corpus has another dtype, or only one of the two corpora has modes.
            FileChangedError: the corpus was replaced or written to meanwhile.
        """
        source_path = local_path("path_prefix", bin_path(check_path("path_prefix", path_prefix)))
        other = IndexedDataset(path_prefix, multimodal=self.multimodal)
        if other.dtype != self.dtype:
            raise SchemaError(f"{path_prefix} holds {other.dtype.name}, this corpus {self.dtype.name}. Convert one.")
        if other.has_modes and not self.multimodal:
            raise SchemaError(
                f"{path_prefix} has sequence modes, and this corpus keeps none. Pass multimodal=True (--multimodal)."
            )
        with self._all_or_nothing():
            first, start = self.sequence_count, self._bin.file.tell()
            with source_path.open("rb") as source:
                shutil.copyfileobj(source, self._bin.file, length=1 << 22)
                copied = file_stat(os.fstat(source.fileno()))
            if copied != other.identities[1] or self._bin.file.tell() != start + copied.size:
                raise FileChangedError(f"{bin_path(path_prefix)} changed while it was copied. Merge again.")
            self._lengths.frombytes(other.sequence_lengths.tobytes())
            self._documents.frombytes((other.document_indices[1:] + first).tobytes())
            if other.sequence_modes is not None:
                self._modes.frombytes(other.sequence_modes.tobytes())

    def finalize(self, idx_path: str | Path) -> None:
        """Publish the corpus: .bin first, then .idx. A corpus with an .idx file is whole.

        An older corpus of the same name loses its .idx first, so that no reader ever pairs old and new files.

        Raises:
            ConfigError: sequences were added after the last document ended, or the builder has ended before.
            CorruptFileError: the disk does not have as many tokens as were added.
        """
        self._check_open()
        if self._documents[-1] != len(self._lengths):
            raise ConfigError(f"{self._bin.path}: the last document was not ended. Call end_document().")
        self._check_size()
        index = pending_file("idx_path", idx_path)
        try:
            for piece in self._encode():
                index.file.write(piece)
            index.sync()
            self._bin.sync()
            index.path.unlink(missing_ok=True)
            sync_directory(index.path.parent)
            self._bin.publish()
            index.publish()
        finally:
            index.discard()
            self._bin.discard()

    def discard(self) -> None:
        """Discard the corpus; nothing stays on disk. Harmless after `finalize`."""
        self._bin.discard()

    def __enter__(self) -> "IndexedDatasetBuilder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.discard()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If the block fails, remove what it added: tokens without lengths would shift all later tokens."""
        self._check_open()
        end, sequences, documents = self._bin.file.tell(), len(self._lengths), len(self._documents)
        modes = len(self._modes)
        try:
            yield
        except BaseException:
            del self._lengths[sequences:], self._documents[documents:], self._modes[modes:]
            self._cut_back(end)
            raise

    def _cut_back(self, end: int) -> None:
        try:
            if self._bin.file.tell() != end:  # else nothing has to be cut, and seeking would write the buffer
                self._bin.file.seek(end)
                self._bin.file.truncate()
        except OSError:
            self.discard()

    def _check_open(self) -> None:
        if self._bin.file.closed:
            raise ConfigError(f"{self._bin.path} was finalized or discarded before. Make a new builder.")

    def _check_size(self) -> None:
        wanted = int(np.frombuffer(self._lengths, dtype=np.int32).sum(dtype=np.int64)) * self.dtype.itemsize
        found = self._bin.file.seek(0, os.SEEK_END)
        if found != wanted:
            raise CorruptFileError(
                f"{self._bin.path} was built of {wanted} bytes of tokens, and {found} are on the disk. Something else "
                "changed the file: build it again."
            )

    def _encode(self) -> list[bytes]:
        return encode_index(
            dtype=self.dtype,
            sequence_lengths=np.frombuffer(self._lengths, dtype=np.int32),
            document_indices=np.frombuffer(self._documents, dtype=np.int64),
            sequence_modes=np.frombuffer(self._modes, dtype=np.int8) if self.multimodal else None,
        )

    def _convert(self, tokens: Any) -> npt.NDArray[Any]:
        given = np.asarray(tokens).reshape(-1)
        if given.dtype == self.dtype:
            return given
        if given.size == 0:
            return given.astype(self.dtype)
        if given.dtype.kind in "iu":
            self._check_fit(given)
        elif given.dtype.kind != "f" or self.dtype.kind != "f":
            raise SchemaError(f"Tokens of type {given.dtype.name} cannot be written as {self.dtype.name}.")
        with np.errstate(over="ignore"):
            converted = given.astype(self.dtype)
        if given.dtype.kind == "f" and (lost := np.isinf(converted) & np.isfinite(given)).any():
            raise DataError(f"The token {given[lost][0]} does not fit {self.dtype.name}. Pass dtype=np.float64.")
        return converted

    def _check_fit(self, given: npt.NDArray[Any]) -> None:
        # numpy would wrap around or round silently, and tokens too large for the type would become other tokens.
        (lowest, highest), low, high = integer_limits(self.dtype), int(given.min()), int(given.max())
        if low < lowest or high > highest:
            raise DataError(f"Tokens from {low} to {high} do not fit {self.dtype.name}. {wider_dtype(low, high)}")

    def _write(self, tokens: npt.NDArray[Any], counts: npt.NDArray[np.int64], modes: Sequence[int]) -> None:
        if len(modes) != len(counts):
            raise ConfigError(f"{len(counts)} sequences need as many modes, not {len(modes)}.")
        kept_modes = _check_modes(modes) if self.multimodal else b""
        if counts.size and counts.max() > _MAX_SEQUENCE_TOKENS:
            raise DataError(f"A sequence of {counts.max()} tokens is longer than the format's 2^31 - 1. Cut it.")
        self._bin.file.write(np.ascontiguousarray(tokens).data)
        self._lengths.frombytes(counts.astype(np.int32).tobytes())
        self._modes.frombytes(kept_modes)


def _whole_numbers(name: str, given: Any) -> npt.NDArray[np.int64]:
    """Return the numbers as int64. Raise ConfigTypeError for fractions and booleans, which numpy would convert."""
    numbers = np.asarray(given)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise ConfigTypeError(f"The {name} of documents are of type {numbers.dtype.name}: pass whole numbers.")
    return numbers.astype(np.int64)


def _check_modes(modes: Sequence[int]) -> bytes:
    """Return the modes as signed bytes. Raise ConfigError for a mode that does not fit a byte."""
    for mode in modes:
        if not -128 <= check_integer("mode", mode) <= 127:
            raise ConfigError(f"mode={mode} does not fit the byte of a mode: pass one from -128 to 127.")
    return np.asarray(modes, dtype=np.int8).tobytes()


def find_corpora(directory: str | Path) -> list[str]:
    """Return the prefixes of all corpora directly in `directory`, sorted by name: the order for a merge.

    A directory without a corpus is an error: a merge of several directories would silently leave it out.

    Raises:
        ConfigTypeError: not a path. NoDataError: the local directory does not exist, or has no corpus.
        ConfigError: an .idx without its .bin, or a .bin without its .idx; the URL of a store.
    """
    folder = local_path("directory", directory)
    if not folder.is_dir():
        raise NoDataError(f"There is no directory {folder}. Check the spelling, or list its parent directory.")
    indexes = {path.with_suffix("") for path in folder.glob("*.idx")}
    bins = {path.with_suffix("") for path in folder.glob("*.bin")}
    if lonely := indexes ^ bins:
        raise ConfigError(f"{sorted(map(str, lonely))[0]} has only one of its two files. Remove it or build it again.")
    if not indexes:
        raise NoDataError(f"There is no corpus in {folder}, no .idx beside a .bin. Name the directory that has them.")
    return sorted(str(prefix) for prefix in indexes)


def merge_corpora(path_prefixes: Sequence[str], output_prefix: str, *, multimodal: bool = False) -> None:
    """Merge corpora in the given order into one corpus with the dtype of the first.

    Raises:
        ConfigTypeError: not a list of paths.
        ConfigError: nothing to merge, a corpus that is not on a local disk, or an output that is also an input.
        SchemaError: dtypes differ, or modes do: with `multimodal` all corpora must have modes, without it none.
    """
    if isinstance(path_prefixes, str) or not isinstance(path_prefixes, Sequence):
        raise ConfigTypeError(f"path_prefixes={censored_text(repr(path_prefixes))}: pass a list of prefixes.")
    if not path_prefixes:
        raise ConfigError("There is no corpus to merge: path_prefixes is empty. Pass one prefix or more.")
    # Check before any corpus is opened.
    merged = [local_path("path_prefix", path_prefix).resolve() for path_prefix in path_prefixes]
    if local_path("output_prefix", output_prefix).resolve() in merged:
        raise ConfigError(
            f"{output_prefix} is both merged and written, as when a merge of its directory is repeated: its documents "
            "would come again each time. Leave it out of path_prefixes, or write to another prefix."
        )
    dtype = IndexedDataset(path_prefixes[0], multimodal=multimodal).dtype
    with IndexedDatasetBuilder(bin_path(output_prefix), dtype=dtype, multimodal=multimodal) as builder:
        for path_prefix in path_prefixes:
            builder.add_index(path_prefix)
        builder.finalize(index_path(output_prefix))
