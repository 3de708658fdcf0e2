"""Advice about files beside the data, such as a README, for the error about a file that does not decode or fit."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._core.paths import codec_of
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.formats import named_format
from torch_dataloader_utils.discover.paths import DataFiles
from torch_dataloader_utils.errors import CorruptFileError, SchemaError, UnsupportedFeatureError


@contextmanager
def other_files_named(files: DataFiles, file_format: FileFormat) -> Iterator[None]:
    """Adds to errors about bad files that some files do not look like data, and a pattern that leaves them out."""
    try:
        yield
    except (CorruptFileError, SchemaError, UnsupportedFeatureError) as error:
        hint = _pattern_hint(files, file_format)
        if not hint:
            raise
        raise type(error)(f"{error} {hint}") from error


def _pattern_hint(files: DataFiles, file_format: FileFormat) -> str:
    """Advice with a pattern for the files whose ending is that of the format; "" if all or none have it.

    d/README.md beside d/0.parquet      ... such as "d/*.parquet"; below d/year=2024, "d/**/*.parquet"
    """
    paths = [entry.path for entry in files.entries]
    fitting = [path for path in paths if named_format(path) is file_format]
    other = next((path for path in paths if named_format(path) is not file_format), None)
    if other is None or not fitting:
        return ""
    pattern = "*" + _ending(fitting[0])
    if files.root:
        below = fitting[0].removeprefix(files.root).strip("/")
        pattern = f"{files.source.rstrip('/')}/{'**/' if '/' in below else ''}{pattern}"
    return f'If {redact(other)} is no data, choose the files by a pattern, such as "{pattern}".'


def _ending(path: str) -> str:
    """The ending of a name with that of its codec: ".jsonl.gz"."""
    stem, _, last = path.rpartition(".")
    return f".{stem.rpartition('.')[2]}.{last}" if codec_of(path) else f".{last}"
