"""Local files that are written: corpora and sequences files, invisible until they are whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_dataloader_utils._core.paths import check_path, redact
from torch_dataloader_utils._store import LocalStore, PendingFile, is_local
from torch_dataloader_utils.errors import ConfigError, LoaderError, StoreError


def local_path(name: str, path: str | Path) -> Path:
    """The local path of a corpus or sequences file; `name` is the name of the argument, for messages.

    Raises:
        ConfigTypeError: no path. ConfigError: the URL of a store.
    """
    text = check_path(name, path)
    if not is_local(text):
        raise ConfigError(
            f"{name}={redact(text)!r} is the URL of a store: give a path on a local disk, or on a file system that "
            "nodes share."
        )
    return Path(LocalStore().local_path(text))


def pending_file(name: str, path: str | Path) -> PendingFile:
    """The file that will appear at `path` once it is whole.

    Raises:
        As `local_path`, and as `PendingFile`; StoreError: it cannot be written.
    """
    target = local_path(name, path)
    with writing(target):
        return PendingFile(target)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block, which writes at `path`, into a StoreError that names the path.

    Raises:
        StoreError: the operating system refused.
    """
    try:
        yield
    except LoaderError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error}). Choose a directory that can.") from error
