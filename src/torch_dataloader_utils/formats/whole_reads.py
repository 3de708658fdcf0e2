"""Results of reading a whole file, kept on this host: rows and keys of text, and the digest of the bytes.

A result is kept for one version of a file. The version of a local file includes the time of its last change (ctime), so
a file that was overwritten and given its old time back has another version.
"""

from hashlib import blake2b

from torch_dataloader_utils._store import Buffer, FileStat, Store
from torch_dataloader_utils._store.identity import names_no_version
from torch_dataloader_utils.cache.kept_values import KeptValues

# To read a smaller local file again takes no longer than a tick of the file system's clock.
_SMALLEST_LOCAL_BYTES = 8 << 20

PIECE_BYTES = 4 << 20
KEPT_DIGEST = "blake2b of 4 MiB pieces"


class ContentDigest:
    """Digest of all bytes of a file: a digest of its size and of the digest of each piece of 4 MiB.

    Pieces may be read in parallel. `feed` takes the bytes in file order instead, cut anywhere.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._of_pieces = blake2b(str(size).encode(), digest_size=16)
        self._piece, self._piece_left = blake2b(digest_size=16), min(size, PIECE_BYTES)

    def feed(self, data: Buffer) -> None:
        """Add the next bytes."""
        rest = memoryview(data)
        while rest:
            part, rest = rest[: self._piece_left], rest[self._piece_left :]
            self._piece.update(part)
            self._piece_left -= len(part)
            if not self._piece_left:
                self.add_piece(self._piece.digest())
                self._piece, self._piece_left = blake2b(digest_size=16), min(self._left, PIECE_BYTES)

    def add_piece(self, digest: bytes) -> None:
        """Add the next piece by its own digest; see `piece_digest`."""
        self._of_pieces.update(digest)
        self._left -= min(self._left, PIECE_BYTES)

    def result(self) -> str | None:
        """Return 32 hex digits; None if bytes are missing."""
        return None if self._left else self._of_pieces.hexdigest()


def piece_digest(data: Buffer) -> bytes:
    """Return the digest of a piece."""
    return blake2b(data, digest_size=16).digest()


def kept_results(store: Store, path: str, stat: FileStat) -> KeptValues:
    """Return the results that this host keeps for this version of the file: none for a small local file."""
    is_kept = not names_no_version(stat.identity) and (not store.is_local or stat.size >= _SMALLEST_LOCAL_BYTES)
    return store.values(path, stat.pin) if is_kept else KeptValues()
