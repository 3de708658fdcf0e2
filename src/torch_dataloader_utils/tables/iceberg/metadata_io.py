"""pyiceberg catalogs that give metadata through `table_metadata`. Imported only where pyiceberg is installed."""

import gzip
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, load_file_io

from torch_dataloader_utils.tables.iceberg.table_metadata import GZIP, acceptable, acceptable_answer

if TYPE_CHECKING:
    from pyiceberg.io import InputStream, OutputFile

_OWN_IO = "torch-dataloader-utils.py-io-impl"


def accept_metadata_of(catalog: Any) -> None:
    """Make a pyiceberg catalog give metadata that came through `table_metadata`.

    Catalogs read the metadata file through a plug-in for files, and REST catalogs send it. A catalog that does neither
    in pyiceberg's way gives metadata as pyiceberg parses it.
    """
    properties = getattr(catalog, "properties", None)
    if isinstance(properties, Mapping):
        own = {_OWN_IO: properties[PY_IO_IMPL]} if PY_IO_IMPL in properties else {}
        catalog.properties = {**properties, **own, PY_IO_IMPL: f"{__name__}.{MetadataIO.__name__}"}
    # A private name of pyiceberg 0.12, which has no other way to the answers of a REST catalog.
    hooks = getattr(getattr(catalog, "_session", None), "hooks", None)
    if isinstance(hooks, dict):
        hooks.setdefault("response", []).append(_accept_response)


def _accept_response(response: Any, *_: Any, **__: Any) -> None:
    # `requests` calls this hook with each answer, and has no public way to set the answer's content.
    if response.ok:
        response._content = acceptable_answer(response.content)


class MetadataIO(FileIO):
    """Reader of metadata files for a catalog, through the plug-in that would have read them."""

    def new_input(self, location: str) -> InputFile:
        """Return the file with acceptable metadata."""
        kept = {name: value for name, value in self.properties.items() if name not in (PY_IO_IMPL, _OWN_IO)}
        own = self.properties.get(_OWN_IO)
        return _MetadataFile(load_file_io({**kept, PY_IO_IMPL: own} if own else kept, location).new_input(location))

    def new_output(self, location: str) -> "OutputFile":
        """Raise NotImplementedError: nothing is written."""
        raise NotImplementedError(location)

    def delete(self, location: Any) -> None:
        """Raise NotImplementedError: nothing is deleted."""
        raise NotImplementedError(location)


class _MetadataFile(InputFile):
    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> "InputStream":
        with self._file.open(seekable=seekable) as stream:
            data = stream.read()
        if data[:2] == GZIP:  # pyiceberg unpacks by the name of the file
            return io.BytesIO(gzip.compress(acceptable(gzip.decompress(data)), compresslevel=1))
        return io.BytesIO(acceptable(data))
