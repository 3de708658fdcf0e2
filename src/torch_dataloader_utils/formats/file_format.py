"""`Format`: one file format as a value, with the functions that scan and decode it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from torch_dataloader_utils._core.inventory import Int64s
    from torch_dataloader_utils._core.row_group_task import GroupRows
    from torch_dataloader_utils._store import FileEntry, Store
    from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
    from torch_dataloader_utils.formats.parquet.together import NumberGroups
    from torch_dataloader_utils.formats.task_source import TaskSource

    Scan = Callable[[Store, ScanItem, ScanRequest], FileScan]
    ScanTogether = Callable[[Store, Sequence[ScanItem], ScanRequest], Sequence[Callable[[], FileScan]]]
    ScanSidecar = Callable[[Store, FileEntry, str, Sequence[FileEntry], ScanRequest], list[FileScan] | None]
    Decode = Callable[[TaskSource, pa.Schema], pa.RecordBatch]
    DecodeRows = Callable[[TaskSource, pa.Schema, GroupRows], pa.RecordBatch]
    DecodeParts = Callable[[TaskSource, pa.Schema, GroupRows], Iterator[pa.RecordBatch]]
    DecodeTogether = Callable[[Sequence[TaskSource], pa.Schema], NumberGroups | None]
    ReadSchema = Callable[[TaskSource], pa.Schema]
    JoinSchemas = Callable[[Mapping[pa.Schema, str], Sequence[str] | None], pa.Schema]
    ListItems = Callable[[TaskSource, str], Int64s | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Format:
    """File format: the names of its files, a function that scans a file, and a function that decodes a row group.

    A new format needs a number, a name and two functions:

        LINES = Format(number=64, names=("lines",), scan=scan_lines, decode=decode_lines)

    Formats are equal if their numbers are equal. Formats pickle: all functions are functions of modules.

    Attributes:
        number: Number of the format in inventories. This package has 1 to 63; other packages choose from 64 to 255.
        names: Words for `format=` and endings of files. The first word stands in messages.
        scan: Returns the schema and the row groups of one file, from its metadata if it has any.
        decode: Returns the rows of one row group, in the file's types. Wanted columns that the file lacks are left out.
            The caller turns errors of the decoder into a `DataError` with file and row group.
        endings: More endings of files, without the dot.
        first_bytes: Bytes that every file begins with; b"" if there are none, or a file may begin otherwise.
        scan_together: Begins scans of several remote files at once, and returns a function for each file, which returns
            the scan or raises; None if each file is scanned alone.
        decode_rows: Returns some rows of the row group; None if only whole row groups decode.
        decode_parts: Yields some rows of the row group, a few columns at a time; None if all columns come at once.
        decode_together: Decodes several row groups by one call of the compiled decoder, if it can.
        read_schema: Returns a file's schema with its field ids; None if no table has files of the format.
        scan_sidecar: Scans all files of a directory by one file of metadata; None if the format has no such file.
        list_items: Counts the items of a list column by the footer; None if no footer counts items.
        join_schemas: Joins the schemas of all files (each with the path of a file that has it) for the wanted columns
            (None for all); None if all files have the columns of the first file.
        is_text: Whether rows are lines of text. Only a read of the file counts lines.
        has_statistics: Whether `scan` judges row groups by a filter.
        is_columnar: Whether each column decodes without the other columns.
    """

    number: int
    names: tuple[str, ...]
    scan: "Scan"
    decode: "Decode"
    endings: tuple[str, ...] = ()
    first_bytes: bytes = b""
    scan_together: "ScanTogether | None" = None
    decode_rows: "DecodeRows | None" = None
    decode_parts: "DecodeParts | None" = None
    decode_together: "DecodeTogether | None" = None
    read_schema: "ReadSchema | None" = None
    scan_sidecar: "ScanSidecar | None" = None
    list_items: "ListItems | None" = None
    join_schemas: "JoinSchemas | None" = None
    is_text: bool = False
    has_statistics: bool = False
    is_columnar: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and other.number == self.number

    def __hash__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return self.names[0]
