"""The columns of a Parquet file, shared by all files with the same columns.

Source: pyarrow.parquet.FileMetaData.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import pyarrow as pa

from torch_dataloader_utils._parquet.footer_parts import footer_head
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._store import TAIL_BYTES
from torch_dataloader_utils.read.checks import repeated_names
from torch_dataloader_utils.read.column_chunks import physical_types
from torch_dataloader_utils.read.joined_footer import ARROW_SCHEMA, FileFacts

# Tables with other columns.
_MOST_KNOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileColumns:
    """The columns of a file.

    facts: what other files with these columns have too; None for a large footer, or one without a plain end of columns.
    schema: the file's Arrow schema. repeated: names that several columns have.
    leaves: by top-level column, the numbers of its leaf columns.
    row_bits: by top-level column, the bits of a decoded row (of an offset, if values have no fixed width).
    int96: the top-level columns with timestamps of the type INT96.
    """

    facts: FileFacts | None
    schema: Any
    repeated: frozenset[str]
    leaves: dict[str, tuple[int, ...]]
    row_bits: dict[str, int]
    int96: frozenset[str]

    @classmethod
    def of(cls, metadata: Any, footer: bytes) -> Self:
        """The columns that a parsed footer describes; footer: its bytes."""
        schema = metadata.schema.to_arrow_schema()
        leaves: dict[str, list[int]] = {name: [] for name in schema.names}
        int96 = set()
        for index in range(metadata.num_columns):
            column = metadata.schema.column(index)
            # As pyarrow selects: "a" stands for every leaf below it, and a name may itself hold dots.
            for name in accumulate(column.path.split("."), "{}.{}".format):
                if name in leaves:
                    leaves[name].append(index)
                    if column.physical_type == "INT96":
                        int96.add(name)
        return cls(
            facts=_facts(metadata, footer),
            schema=schema,
            repeated=repeated_names(schema.names),
            leaves={name: tuple(indices) for name, indices in leaves.items()},
            row_bits={each.name: _row_bits(each.type) for each in schema},
            int96=frozenset(int96),
        )

    def leaves_of(self, columns: Iterable[str]) -> tuple[int, ...]:
        """The leaf columns of these, each once, in the file's order."""
        return tuple(sorted({leaf for name in columns for leaf in self.leaves[name]}))

    def are_of(self, metadata: Any, footer: bytes) -> bool:
        """Whether another file has the same columns, described by the same bytes, from the same writer."""
        facts = self.facts
        if facts is None or not footer.startswith(facts.head) or facts.created_by != _created_by(metadata):
            return False
        if facts.arrow_schema == _arrow_schema(metadata):
            return True
        # It also has what pandas writes about the rows, such as the end of the index, which is not compared.
        schema = metadata.schema.to_arrow_schema()
        return bool(schema.with_metadata(self.schema.metadata).equals(self.schema, check_metadata=True))


def _facts(metadata: Any, footer: bytes) -> FileFacts | None:
    head = footer_head(footer) if len(footer) <= TAIL_BYTES else None
    created_by = _created_by(metadata)
    if head is None or created_by is None:
        return None
    return FileFacts(
        head=head,
        paths=[metadata.schema.column(index).path for index in range(metadata.num_columns)],
        types=physical_types(metadata.schema),
        arrow_schema=_arrow_schema(metadata),
        created_by=created_by,
    )


def _arrow_schema(metadata: Any) -> bytes | None:
    found: bytes | None = (metadata.metadata or {}).get(ARROW_SCHEMA)
    return found


def _created_by(metadata: Any) -> str | None:
    try:
        writer: str = metadata.created_by
    except UnicodeDecodeError:
        return None
    return writer


class KnownColumns:
    """The last few columns of small footers, so that files with the same columns share one object.

    For a small file it takes as long to make them as to parse the footer; and only files that share them are decoded
    together. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: Recent[Any, FileColumns] = Recent(_MOST_KNOWN)

    def of(self, metadata: Any, footer: bytes) -> FileColumns:
        """The columns that a parsed footer describes."""
        for known in self._known.values():
            if known.are_of(metadata, footer):
                return known
        columns = FileColumns.of(metadata, footer)
        facts = columns.facts
        if facts is None:
            return columns
        # Two threads with the same columns get those of the one that is first.
        same = columns.schema.remove_metadata().to_string(), facts.head, facts.created_by
        return self._known.keep(same, columns)


def _row_bits(data_type: Any) -> int:
    types = pa.types
    if types.is_primitive(data_type) or types.is_decimal(data_type) or types.is_fixed_size_binary(data_type):
        return int(data_type.bit_width)
    return 32
