"""Keep the parts of a corpus and join them to the corpus, on a local disk or in any store of fsspec.

    <output>.parts/<key>.bin  .idx  .json      a part; its receipt (.json) is written last
    <output>.bin, then <output>.idx            the corpus; it exists once its .idx exists

A store has no rename, but gives a small object whole or not at all. So the .idx publishes a remote corpus: an older
.idx is deleted first, and a .bin without .idx is not a corpus.
"""

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np

from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils._runtime.publish import write_atomically
from torch_dataloader_utils._store import Buffer, FileEntry, FsspecStore, StoreAccess, open_store, request_threads
from torch_dataloader_utils.errors import FileChangedError, NoDataError, StoreError
from torch_dataloader_utils.megatron.corpora.builder import merge_corpora
from torch_dataloader_utils.megatron.corpora.corpus_build.parts import PART_KEY_LETTERS
from torch_dataloader_utils.megatron.corpora.corpus_files import bin_path, index_path, local_path, writing
from torch_dataloader_utils.megatron.corpora.index_format import encode_index
from torch_dataloader_utils.megatron.corpora.indexed_dataset import IndexedDataset
from torch_dataloader_utils.megatron.corpora.ranges import ByteSource, PlainFile, open_source

_PART_ENDINGS = (".bin", ".idx", ".json")

# Requests at once, for objects so small that the request is their whole cost.
_THREADS = 16
_in_threads = partial(map_watched, threads=_THREADS, name="tdu-parts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReceipt:
    """Counts of a part, written beside the part when it is complete, so that another run can reuse the part."""

    document_count: int
    token_count: int
    null_documents: int
    empty_documents: int


class PartStore(Protocol):
    """Store of the parts of one corpus; picklable, so that tasks in other processes write to the same place."""

    def exists(self, output: str) -> bool:
        """Return whether a corpus of this prefix exists."""

    def prepare(self) -> None:
        """Make the directory of the parts."""

    def find(self, keys: Sequence[str]) -> dict[str, PartReceipt]:
        """Return receipts for the parts that are complete: all three files exist, and the receipt is undamaged."""

    def write(self, key: str, build: Callable[[str], PartReceipt]) -> PartReceipt:
        """Call `build` with a local prefix, and keep the part that `build` writes under this prefix."""

    def join(self, keys: Sequence[str], output: str) -> None:
        """Publish parts, in order, as one corpus."""

    def remove(self) -> None:
        """Remove the files that builds of this corpus have written, and nothing else."""

    def remove_joined(self, outputs: Sequence[str]) -> None:
        """Remove the parts of a build that was killed after it had published these corpora.

        If a part is newer than any of the corpora, nothing is removed: the part is of a later build, which may still
        need it.
        """

    def remove_if_empty(self) -> None:
        """Remove the directory of the parts if it has no part; a worker that still writes makes it again."""


def open_parts(prefix: str, access: StoreAccess) -> PartStore:
    """Return the store of the parts of the corpus `prefix`."""
    store = open_store(prefix, access)
    if isinstance(store, FsspecStore):
        return RemoteParts(url=f"{prefix}.parts", store=store)
    return LocalParts(directory=Path(f"{store.local_path(prefix)}.parts"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParts:
    """`PartStore` in a local directory that all workers see."""

    directory: Path

    def exists(self, output: str) -> bool:
        return IndexedDataset.exists(output)

    def prepare(self) -> None:
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)

    def find(self, keys: Sequence[str]) -> dict[str, PartReceipt]:
        whole = [key for key in keys if all((self.directory / f"{key}{ending}").exists() for ending in _PART_ENDINGS)]
        return _known((key, self._read_receipt(key)) for key in whole)

    def write(self, key: str, build: Callable[[str], PartReceipt]) -> PartReceipt:
        self.prepare()
        receipt = build(str(self.directory / key))
        with write_atomically(self._receipt(key)) as file:
            file.write(_encode(receipt))
        return receipt

    def join(self, keys: Sequence[str], output: str) -> None:
        try:
            merge_corpora([str(self.directory / key) for key in keys], output)
        except (FileNotFoundError, FileChangedError) as error:
            raise FileChangedError(
                f"Parts of {output} were removed or written anew while they were joined. Another process builds this "
                "corpus, or workers of a killed build still do. Build it in one process, such as rank 0 of several "
                "ranks. Once no other process builds it, run the same call again."
            ) from error

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # another build of this corpus has removed the directory
            ours = [path for path in self.directory.iterdir() if _is_part(path.name)]
            for path in sorted(ours, key=lambda path: path.suffix != ".json"):  # first: a part with a receipt is whole
                path.unlink(missing_ok=True)
        self.remove_if_empty()

    def remove_joined(self, outputs: Sequence[str]) -> None:
        published_ns = min(local_path("output", index_path(output)).stat().st_mtime_ns for output in outputs)
        if all(path.stat().st_mtime_ns <= published_ns for path in self.directory.iterdir()):
            self.remove()

    def remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _receipt(self, key: str) -> Path:
        return self.directory / f"{key}.json"

    def _read_receipt(self, key: str) -> PartReceipt | None:
        """Return a receipt; None if another build removes the parts at this moment, so that the part is missing."""
        try:
            return _decode(self._receipt(key).read_bytes())
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteParts:
    """`PartStore` under a URL: a worker builds a part in a temporary directory and uploads the complete part.

    Failed requests are sent again if a retry can help, one block of tokens at a time.
    """

    url: str
    store: FsspecStore

    def exists(self, output: str) -> bool:
        return IndexedDataset.exists(output, storage_options=self.store.access)

    def prepare(self) -> None:
        self.store.make_directory(self.url)

    def find(self, keys: Sequence[str]) -> dict[str, PartReceipt]:
        entries = {PurePosixPath(entry.path).name: entry for entry in self._list()}
        whole = [key for key in keys if all(f"{key}{ending}" in entries for ending in _PART_ENDINGS)]
        receipts = _in_threads(self._read_receipt, [entries[f"{key}.json"] for key in whole])
        return _known(zip(whole, receipts, strict=True))

    def write(self, key: str, build: Callable[[str], PartReceipt]) -> PartReceipt:
        with tempfile.TemporaryDirectory(prefix="tdu-part-") as directory:
            local = str(Path(directory) / key)
            receipt = build(local)
            with _with_advice_to_go_on():
                self._upload(PlainFile(bin_path(local)), f"{self.url}/{key}.bin")
                self._upload(PlainFile(index_path(local)), f"{self.url}/{key}.idx")
                self._put(f"{self.url}/{key}.json", _encode(receipt))
        return receipt

    def join(self, keys: Sequence[str], output: str) -> None:
        """Join the parts in this process, some blocks of tokens at a time; memory is needed for the joined index."""
        with _with_advice_to_go_on():
            parts = _in_threads(self._open_part, keys)
            self.store.delete(index_path(output))
            joined = JoinedFile(
                [open_source(bin_path(part.path_prefix), self.store.access, stat=part.identities[1]) for part in parts]
            )
            self.store.write(bin_path(output), joined.size, joined.read)
            self._put(index_path(output), b"".join(_join_indexes(parts)))

    def remove(self) -> None:
        paths = [entry.path for entry in self._list() if _is_part(PurePosixPath(entry.path).name)]
        receipts = [path for path in paths if path.endswith(".json")]
        # Waits for running requests, after an error too: a late delete could remove a file that another call wrote.
        with request_threads(_THREADS, "tdu-parts") as pool:
            # Receipts first: a part with a receipt is whole.
            for some in (receipts, sorted(set(paths).difference(receipts))):
                list(pool.map(self.store.delete, some))

    def remove_joined(self, outputs: Sequence[str]) -> None:
        # A store without times of writing removes nothing: every part then counts as newer than every corpus.
        written_ns = max((entry.stat.modified_ns or math.inf for entry in self._list()), default=math.inf)
        if written_ns <= min(self.store.stat(index_path(output)).modified_ns or 0 for output in outputs):
            self.remove()

    def remove_if_empty(self) -> None:
        """Do nothing: a directory of a store is only a common prefix of objects."""

    def _list(self) -> tuple[FileEntry, ...]:
        try:
            return self.store.list_files(self.url).entries
        except NoDataError:
            return ()

    def _read_receipt(self, entry: FileEntry) -> PartReceipt | None:
        return _decode(bytes(self.store.tail(entry.path, entry.stat.size, entry.stat).data))

    def _open_part(self, key: str) -> IndexedDataset:
        part = IndexedDataset(f"{self.url}/{key}", storage_options=self.store.access)
        _ = part.index  # fetched here, in parallel with the indices of other parts
        return part

    def _upload(self, source: ByteSource, url: str) -> None:
        self.store.write(url, source.stat.size, lambda start, length: source.read([(start, start + length)])[0])

    def _put(self, url: str, data: bytes) -> None:
        self.store.write(url, len(data), lambda start, length: data[start : start + length])


class JoinedFile:
    """Several files, one after the other, read by ranges as one file."""

    def __init__(self, files: Sequence[ByteSource]) -> None:
        self._files = files
        self._starts = np.cumsum([0, *(file.stat.size for file in files)], dtype=np.int64)

    @property
    def size(self) -> int:
        """Number of bytes of all files."""
        return int(self._starts[-1])

    def read(self, start: int, length: int) -> bytes:
        """Return the bytes [start, start + length), which may lie in several files.

        files of 4, 0 and 3 bytes, start 3, length 2      [3, 4) of the first and [0, 1) of the last
        """
        pieces: list[Buffer] = []
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for file, begin in zip(self._files[first:], self._starts[first:-1].tolist(), strict=True):
            if begin >= start + length:
                break
            low, high = max(0, start - begin), min(file.stat.size, start + length - begin)
            pieces += file.read([(low, high)]) if low < high else ()
        return b"".join(pieces)


def _encode(receipt: PartReceipt) -> bytes:
    return json.dumps(asdict(receipt)).encode()


def _decode(data: bytes) -> PartReceipt | None:
    """Decode a receipt; None for a damaged receipt, so that its part counts as missing."""
    try:
        receipt = PartReceipt(**json.loads(data))
    except (ValueError, TypeError):
        return None
    return receipt if all(type(count) is int and count >= 0 for count in asdict(receipt).values()) else None


def _known(receipts: Iterable[tuple[str, PartReceipt | None]]) -> dict[str, PartReceipt]:
    return {key: receipt for key, receipt in receipts if receipt is not None}


def _is_part(name: str) -> bool:
    """Return whether a file name is the name of a part, so that the file is ours to remove."""
    path = PurePosixPath(name)
    return len(path.stem) == PART_KEY_LETTERS and path.suffix in _PART_ENDINGS


@contextlib.contextmanager
def _with_advice_to_go_on() -> Iterator[None]:
    """Add advice to every failure of the store: the same call goes on with the finished parts."""
    try:
        yield
    except (StoreError, NoDataError, FileChangedError) as error:
        raise type(error)(f"{error} The parts that are done stay; run the same call again.") from error


def _join_indexes(parts: Sequence[IndexedDataset]) -> list[bytes]:
    firsts = np.cumsum([0, *(len(part) for part in parts)])
    documents = [part.document_indices[1:] + first for part, first in zip(parts, firsts[:-1], strict=True)]
    return encode_index(
        dtype=parts[0].dtype,
        sequence_lengths=np.concatenate([part.sequence_lengths for part in parts]),
        document_indices=np.concatenate([np.zeros(1, dtype=np.int64), *documents]),
        sequence_modes=None,
    )
