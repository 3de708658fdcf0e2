"""Inputs and results of the scan of one file. All values pickle, so scans may run in other processes."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.arguments import hold_flags, hold_integers
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.option_values import FileIdentity
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._store import FileEntry
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.formats.file_format import Format

Int96Unit = Literal["ns", "us"]
Missing = Literal["error", "null"]


def check_missing(name: str, value: Any) -> Missing:
    """Return the value of an option `missing`: the treatment of columns that some files lack.

    Raises:
        ConfigError: neither "error" nor "null".
    """
    if value not in ("error", "null"):
        raise ConfigError(f'{name}={value!r}: pass "error" or "null".')
    return value  # type: ignore[no-any-return]  # checked above


class Verdict(IntEnum):
    """Rows of a group that pass the filter, as far as metadata prove it: none, perhaps some, all."""

    OUT = 0
    MAYBE = 1
    IN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """Options that cut text files into row groups.

    Attributes:
        block_bytes: Size of a block. A block is a row group, and ends at the first line end after so many bytes.
        csv_has_no_quoted_newlines: Whether CSV files are split at line ends even if they hold quotes.
    """

    block_bytes: int = 64 << 20
    csv_has_no_quoted_newlines: bool = False

    def __post_init__(self) -> None:
        hold_integers(self, "block_bytes", least=1)
        hold_flags(self, "csv_has_no_quoted_newlines")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """Part of a scan that is the same for every file.

    Attributes:
        format: Format of the files.
        columns: Names of the projection; None for all columns.
        row_filter: Expression, not bound to a schema yet.
        filter_columns: Names that the filter uses.
        count_rows: Whether rows of text are counted.
        text: Cut of text files into row groups.
        schema: Columns of all files; None until they are known. Users may give it for text, which carries no schema.
        missing: "null" accepts files that lack some columns, or have them in narrower types.
        on_error: "skip" gives a BadFile for a file whose metadata does not decode.
        int96_unit: Unit of INT96 timestamps in Parquet.
        identity: "content" keeps the digest of a text that is read whole.
    """

    format: Format
    columns: tuple[str, ...] | None = None
    row_filter: pc.Expression | None = None
    filter_columns: tuple[str, ...] = ()
    count_rows: bool = True
    text: TextOptions = TextOptions()
    schema: pa.Schema | None = None
    missing: Missing = "error"
    on_error: OnError = "raise"
    int96_unit: Int96Unit = "ns"
    identity: FileIdentity = "strict"

    @property
    def finds_keys(self) -> bool:
        """Whether the data set has the keys of all files, as for JSON lines without a schema."""
        return self.format.join_schemas is not None and self.schema is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanItem:
    """One file to scan: its listing entry, and its partition values as (field, Python value)."""

    entry: FileEntry
    partition: tuple[tuple[pa.Field, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileScan:
    """Metadata of one file: its own schema, and its row groups in file order.

    Attributes:
        size: Size of the file in bytes.
        identity: Identity of the file that was scanned; see `FileStat`.
        schema: Columns of the file.
        groups: int64 [row groups, 4]: physical rows (UNKNOWN where not counted), bytes of the projected columns, byte
            offset and byte length, as in `GroupTable`.
        verdict: One `Verdict` for each row group; None if no filter was judged.
        nulls: int64 [fields of `flat_schema`]: nulls in the row groups that the filter keeps whole, as metadata count
            them (0 without a count); None for formats without counts.
        is_blank: Whether the file is a text without a line: it has no rows, and its columns are not known.
    """

    size: int
    identity: str
    schema: pa.Schema
    groups: Int64s
    verdict: Int64s | None = None
    nulls: Int64s | None = None
    is_blank: bool = False

    @property
    def kept_rows(self) -> int:
        """Number of rows in row groups that the filter keeps whole, as far as they are counted."""
        rows = self.groups[:, 0] if self.verdict is None else self.groups[self.verdict == Verdict.IN, 0]
        return int(rows[rows > 0].sum())


def kept_nulls(nulls: Int64s, verdict: Int64s | None) -> Int64s:
    """Return each column's nulls in the row groups that the filter keeps whole; nulls: int64 [row groups, columns]."""
    total: Int64s = (nulls if verdict is None else nulls[verdict == Verdict.IN]).sum(axis=0)
    return total
