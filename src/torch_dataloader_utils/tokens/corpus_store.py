"""Where parts of a corpus are kept, and how they become the corpus: on a local disk or in any store of fsspec.

    <output>.parts/<key>.bin  .idx  .json      a part; whole once it has its receipt (.json), which is written last
    <output>.bin, then <output>.idx            the corpus; it is there once its .idx is

A store has no rename, but gives a small object whole or not at all. So a remote corpus is published by its .idx: an
older one loses its own first, and a .bin without .idx is no corpus.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import fsspec
import numpy as np

from torch_dataloader_utils.errors import CorruptFileError, NoDataError, StoreError
from torch_dataloader_utils.tokens.builder import merge_corpora
from torch_dataloader_utils.tokens.corpus_plan import PART_KEY_LETTERS
from torch_dataloader_utils.tokens.index_format import encode_index
from torch_dataloader_utils.tokens.indexed_dataset import IndexedDataset, bin_path, index_path
from torch_dataloader_utils.tokens.publish import write_atomically
from torch_dataloader_utils.tokens.ranges import FsspecStore, is_remote

_COPY_BYTES = 8 << 20
_PART_ENDINGS = (".bin", ".idx", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReceipt:
    """Written beside a part when it is complete, so that another run can take it as it is."""

    document_count: int
    token_count: int
    null_documents: int
    empty_documents: int


class PartStore(Protocol):
    """The parts of one corpus; picklable, so that tasks write where the caller joins."""

    def exists(self, output: str) -> bool:
        """Whether there is a corpus of this prefix."""

    def prepare(self) -> None:
        """Make the place of the parts."""

    def find(self, key: str) -> PartReceipt | None:
        """The receipt of a part that is whole."""

    def write(self, key: str, build: Callable[[str], PartReceipt]) -> PartReceipt:
        """Keep the part that `build` writes under the local prefix it is called with."""

    def join(self, keys: Sequence[str], output: str) -> None:
        """Publish these parts, in order, as one corpus."""

    def remove(self) -> None:
        """Remove what builds of this corpus have written, and nothing else."""


def open_parts(prefix: str, storage_options: dict[str, Any] | None) -> PartStore:
    """The store of the parts of the corpus `prefix`."""
    if is_remote(prefix):
        return RemoteParts(url=f"{prefix}.parts", storage_options=storage_options)
    return LocalParts(directory=Path(f"{prefix}.parts"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParts:
    """A `PartStore` in a directory that all workers see."""

    directory: Path

    def exists(self, output: str) -> bool:
        """See `PartStore`, as for all methods."""
        return IndexedDataset.exists(output)

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def find(self, key: str) -> PartReceipt | None:
        path = self._receipt(key)
        return PartReceipt(**json.loads(path.read_bytes())) if path.exists() else None

    def write(self, key: str, build: Callable[[str], PartReceipt]) -> PartReceipt:
        receipt = build(str(self.directory / key))
        with write_atomically(self._receipt(key)) as file:
            file.write(json.dumps(asdict(receipt)).encode())
        return receipt

    def join(self, keys: Sequence[str], output: str) -> None:
        merge_corpora([str(self.directory / key) for key in keys], output)

    def remove(self) -> None:
        for path in self.directory.iterdir():
            if len(path.stem) == PART_KEY_LETTERS and path.suffix in _PART_ENDINGS:
                path.unlink()
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _receipt(self, key: str) -> Path:
        return self.directory / f"{key}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteParts:
    """A `PartStore` under a URL: a part is built in a temporary directory of its worker, and uploaded when whole."""

    url: str
    # May hold credentials.
    storage_options: dict[str, Any] | None = None

    def exists(self, output: str) -> bool:
        """See `PartStore`, as for all methods."""
        return IndexedDataset.exists(output, FsspecStore(self.storage_options))

    def prepare(self) -> None:
        filesystem, directory = self._open(self.url)
        with _store_errors(self.url):
            filesystem.makedirs(directory, exist_ok=True)

    def find(self, key: str) -> PartReceipt | None:
        filesystem, path = self._open(f"{self.url}/{key}.json")
        try:
            with _store_errors(self.url):
                return PartReceipt(**json.loads(filesystem.cat_file(path)))
        except NoDataError:
            return None

    def write(self, key: str, build: Callable[[str], PartReceipt]) -> PartReceipt:
        filesystem, path = self._open(f"{self.url}/{key}")
        with tempfile.TemporaryDirectory(prefix="tdu-part-") as directory:
            local = str(Path(directory) / key)
            receipt = build(local)
            with _store_errors(self.url):
                filesystem.put_file(bin_path(local), bin_path(path))
                filesystem.put_file(index_path(local), index_path(path))
                filesystem.pipe_file(f"{path}.json", json.dumps(asdict(receipt)).encode())
        return receipt

    def join(self, keys: Sequence[str], output: str) -> None:
        """Streams the tokens through this process; needs no local disk, and memory for the joined index alone."""
        store = FsspecStore(self.storage_options)
        parts = [IndexedDataset(f"{self.url}/{key}", store=store) for key in keys]
        filesystem, path = self._open(output)
        with _store_errors(output):
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm_file(index_path(path))
            with filesystem.open(bin_path(path), "wb") as sink:
                for part in parts:
                    self._copy(bin_path(part.path_prefix), sink)
            written_bytes = filesystem.info(bin_path(path))["size"]
        wanted_bytes = sum(part.identities[1].size_bytes for part in parts)
        if written_bytes != wanted_bytes:
            raise CorruptFileError(
                f"{bin_path(output)} has {written_bytes} bytes, its parts {wanted_bytes}. Build it again."
            )
        with _store_errors(output):
            filesystem.pipe_file(index_path(path), b"".join(_join_indexes(parts)))

    def remove(self) -> None:
        filesystem, directory = self._open(self.url)
        with _store_errors(self.url):
            for path in filesystem.find(directory):
                name = Path(path)
                if len(name.stem) == PART_KEY_LETTERS and name.suffix in _PART_ENDINGS:
                    filesystem.rm_file(path)

    def _copy(self, url: str, sink: Any) -> None:
        filesystem, path = self._open(url)
        with filesystem.open(path, "rb", block_size=_COPY_BYTES) as source:
            shutil.copyfileobj(source, sink, length=_COPY_BYTES)

    def _open(self, url: str) -> tuple[Any, str]:
        filesystem, path = fsspec.core.url_to_fs(url, **(self.storage_options or {}))
        return filesystem, path

    def __repr__(self) -> str:
        return f"RemoteParts(url={self.url!r})"


@contextlib.contextmanager
def _store_errors(url: str) -> Iterator[None]:
    """Errors of a file system as ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoDataError(f"There is no {error.filename or error} under {url}.") from error
    except OSError as error:
        raise StoreError(f"{url}: {error}. The parts that are done stay; run the same call again.") from error


def _join_indexes(parts: Sequence[IndexedDataset]) -> list[bytes]:
    firsts = np.cumsum([0, *(len(part) for part in parts)])
    documents = [part.document_indices[1:] + first for part, first in zip(parts, firsts[:-1], strict=True)]
    return encode_index(
        dtype=parts[0].dtype,
        sequence_lengths=np.concatenate([part.sequence_lengths for part in parts]),
        document_indices=np.concatenate([np.zeros(1, dtype=np.int64), *documents]),
        sequence_modes=None,
    )
