"""The inventory: every data file and row group of a data set, frozen at one moment, as arrays.

A million row groups are a few arrays (56 bytes a group), never a million objects. A row group has two counts of rows:
physical rows are the rows that the file stores; live rows are the rows that a reader delivers, after deletes and,
where the row filter was counted, after the filter. A count is UNKNOWN until somebody counts.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from hashlib import blake2b
from platform import node
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils._core.option_values import Holdout
from torch_dataloader_utils._core.permute import EpochKey
from torch_dataloader_utils._core.row_group_task import RowGroupTask, SequencePlace, pinned
from torch_dataloader_utils._core.table_snapshot import TableSnapshot
from torch_dataloader_utils._runtime.notebook import html_of
from torch_dataloader_utils.errors import ConfigTypeError, of_type, plural

UNKNOWN = -1

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


class FileFormat(IntEnum):
    """Numbers of this package's formats, as inventories hold them. Formats of other packages have numbers 64 to 255."""

    PARQUET = 1
    ORC = 2
    CSV = 3
    JSON = 4
    ARROW = 5
    TSV = 6
    CSV_SEMICOLON = 7
    CSV_PIPE = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StringColumn:
    """Immutable column of UTF-8 strings, pickled as buffers: a million paths are not a million objects.

    `data` holds the bytes of all strings, uint8; string i is data[offsets[i]:offsets[i + 1]], offsets int64 of
    shape [n + 1].
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringColumn":
        """Return the column of these strings, in order."""
        encoded = [text.encode() for text in strings]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        return cls(data=np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets=offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def take(self, indices: npt.NDArray[np.int64]) -> "StringColumn":
        """Return the strings at `indices`, in that order."""
        return StringColumn.of(self[int(index)] for index in indices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartitionColumn:
    """One partition column: file i holds `values[codes[i]]` (a Python value of the schema's type, or None)."""

    name: str
    values: tuple[object, ...]
    codes: Int32s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileTable:
    """Data files, in the order of their paths. All columns have one entry a file.

    paths: Absolute local paths or URLs, without credentials.
    sizes: Bytes. identities: etag, or "size-mtime_ns" where the store has no etag; plans are pinned to identities.
    formats: Numbers of formats, uint8 (see `formats/registry`).
    extras: () or one frozen picklable value (or None) a file, meant for the read stage (deletes, field ids). Plans do
        not depend on extras, and the fingerprint leaves them out: the facts that decide extras (a snapshot, its
        deletes) belong into `Inventory.snapshot`.
    changed_ns: Time of the last change (st_ctime) of each local file, int64; None where not known. Valid for one job on
        one host: not saved, not fingerprinted, and lost when a table is unpickled on another host, where copies of the
        files have other times.
    contents: Digest of all bytes of each file (see discover/content.py); None: files are known by path and identity.
        The fingerprint then has contents and the parts of paths below `root`, so that copies elsewhere have the same
        fingerprint.
    """

    paths: StringColumn
    sizes: Int64s
    identities: StringColumn
    formats: npt.NDArray[np.uint8]
    partitions: tuple[PartitionColumn, ...] = ()
    extras: tuple[Any, ...] = ()
    changed_ns: Int64s | None = None
    contents: StringColumn | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def root(self) -> str:
        """Directory that holds all files, with a slash at its end; "" if the files share no directory."""
        ends = [self.paths[0], self.paths[len(self) - 1]] if len(self) else [""]  # paths are sorted
        return ends[0][: os.path.commonprefix(ends).rfind("/") + 1]  # noqa: RUF071  # of URLs as well

    def known_by(self) -> tuple[StringColumn, StringColumn]:
        """Return the two columns that tell files apart: paths and identities, or names below `root` and contents."""
        if self.contents is None:
            return self.paths, self.identities
        start = len(self.root)
        return StringColumn.of(path[start:] for path in self.paths), self.contents

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (node(), {name: getattr(self, name) for name in self.__slots__})

    def pin(self, file: int) -> str:
        """Return the identity that reads of a file are pinned to; see `pinned`."""
        return pinned(self.identities[file], None if self.changed_ns is None else int(self.changed_ns[file]))

    def take(self, indices: Int64s) -> "FileTable":
        """Return the files at `indices`, in that order."""
        return FileTable(
            paths=self.paths.take(indices),
            sizes=self.sizes[indices],
            identities=self.identities.take(indices),
            formats=self.formats[indices],
            partitions=tuple(replace(column, codes=column.codes[indices]) for column in self.partitions),
            extras=tuple(self.extras[int(i)] for i in indices) if self.extras else (),
            changed_ns=None if self.changed_ns is None else self.changed_ns[indices],
            contents=None if self.contents is None else self.contents.take(indices),
        )


def _unpickled(host: str, columns: dict[str, Any]) -> FileTable:
    return FileTable(**columns if host == node() else {**columns, "changed_ns": None})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTable:
    """Row groups, sorted by (file, ordinal): a Parquet row group, an ORC stripe, a block of text lines.

    file: Index into the FileTable, int32. ordinal: Position in the file, int32.
    first_row: Physical row of the file at which the group starts, int64 (UNKNOWN if not counted).
    physical_rows, live_rows: int64, UNKNOWN (-1) where not counted.
    projected_bytes: Uncompressed bytes of the projected columns (an estimate for text), the planning weight.
    byte_offset, byte_length: Place of the group in the file, stored bytes.
    """

    file: Int32s
    ordinal: Int32s
    first_row: Int64s
    physical_rows: Int64s
    live_rows: Int64s
    projected_bytes: Int64s
    byte_offset: Int64s
    byte_length: Int64s

    def __len__(self) -> int:
        return len(self.file)

    def take(self, indices: Int64s) -> "GroupTable":
        """Return the groups at `indices`, in that order; `file` still points into the whole file table."""
        return GroupTable(**{name: getattr(self, name)[indices] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceTable:
    """Facts of each row group where `live_rows` counts sequences; int64 of shape [row groups].

    options: Text of the options that decide which sequences exist.
    rows: Live rows. Every row group has some, and some have no sequence that begins in them.
    lead: Rows of the row group's first run that lie in earlier row groups.
    halo: Rows of the following row groups that sequences of the row group have.
    """

    options: str
    rows: Int64s
    lead: Int64s
    halo: Int64s

    def take(self, indices: Int64s) -> "SequenceTable":
        """Return the facts of the row groups at `indices`."""
        return replace(self, rows=self.rows[indices], lead=self.lead[indices], halo=self.halo[indices])

    def place(self, group: int) -> SequencePlace:
        """Return the facts of one row group."""
        return SequencePlace(int(self.rows[group]), int(self.lead[group]), int(self.halo[group]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Inventory:
    """Files and row groups of a data set, frozen; the first argument of every plan.

    Attributes:
        schema: Full Arrow schema (partition columns last), as IPC bytes, so that this module needs no Arrow.
        source: Path or table that was scanned, for messages.
        row_filter: Text of the filter that `live_rows` already accounts for, "" for no filter.
        projection: Columns that `projected_bytes` counts, None for all.
        snapshot: Version of the table, None for plain files; the same files may have other deletes in another version.
        notes: Lines of text about the findings of the scan; plans show them.
        left_out: Lines of text about columns of the files that batches lack; () if the data set names its columns.
        nulls: Number of nulls of each column that metadata count in rows that are surely delivered, a lower bound. Not
            in the fingerprint.
        tokenizer: Name of the tokenizer that counted the samples, "" for none.
        holdout: Part of the rows that `live_rows` counts; None: all rows.
        window_tokens: Least tokens of a packing window; 0 where rows are not samples. The first row group of a window
            counts all samples of the window, and the next ones, which are read with it, count none.
        sequences: Where sequences are, if `live_rows` counts the sequences that begin in each row group; else None.
    """

    files: FileTable
    groups: GroupTable
    schema: bytes
    source: str
    row_filter: str = ""
    projection: tuple[str, ...] | None = None
    snapshot: TableSnapshot | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    nulls: Mapping[str, int] = field(default_factory=dict)
    tokenizer: str = ""
    holdout: Holdout | None = None
    window_tokens: int = 0
    sequences: SequenceTable | None = None

    @property
    def num_files(self) -> int:
        """Number of data files."""
        return len(self.files)

    @property
    def num_groups(self) -> int:
        """Number of row groups."""
        return len(self.groups)

    @property
    def rows_are_known(self) -> bool:
        """Whether every row group has an exact count of live rows, so that plans are exact."""
        return bool((self.groups.live_rows >= 0).all())

    @property
    def num_rows(self) -> int:
        """Number of live rows of the data set, or UNKNOWN while any group is uncounted."""
        return int(self.groups.live_rows.sum()) if self.rows_are_known else UNKNOWN

    def __str__(self) -> str:
        rows = plural(self.num_rows, "row") if self.rows_are_known else "rows not counted"
        filtered = ", filtered" if self.row_filter else ""
        part = f", {self.holdout}" if self.holdout else ""
        held = f"{plural(self.num_files, 'file')}, {plural(self.num_groups, 'row group')}"
        return f"{self.source}: {held}, {rows}{filtered}{part}"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the counts, and the notes of the scan."""
        facts: list[tuple[str, object]] = [
            ("files", f"{self.num_files:,}"),
            ("row groups", f"{self.num_groups:,}"),
            ("rows", f"{self.num_rows:,}" if self.rows_are_known else "not counted"),
            ("bytes", format_bytes(int(self.files.sizes.sum()))),
        ]
        optional = [("filter", self.row_filter), ("snapshot", self.snapshot), *(("note", note) for note in self.notes)]
        return html_of(f"Inventory of {self.source}", [*facts, *(each for each in optional if each[1])])

    def __repr__(self) -> str:
        return f"<Inventory of {self}>"

    def with_members(self, groups: Int64s) -> Int64s:
        """Return these row groups (ascending) and all others that are read with them, ascending."""
        counts = self.num_members(groups)
        if counts is None:
            return groups
        border = np.zeros(self.num_groups + 1, dtype=np.int64)
        np.add.at(border, groups, 1)
        np.add.at(border, groups + counts, -1)
        return np.flatnonzero(np.cumsum(border[:-1]))

    def num_members(self, groups: Int64s) -> Int64s | None:
        """Return the number of row groups that are read for each of these, itself included; None: one row group each.

        The others follow it: row groups of its packing window, or row groups with rows of its sequences.
        """
        if self.sequences is not None:
            ends = np.cumsum(self.sequences.rows)
            last: Int64s = ends.searchsorted(ends[groups] + self.sequences.halo[groups])
            return last - groups + 1
        if not self.window_tokens:
            return None
        heads = np.flatnonzero(self.groups.live_rows > 0)
        counts: Int64s = np.diff(heads, append=self.num_groups)[heads.searchsorted(groups)]
        return counts

    def task(self, group: int, epoch_key: EpochKey | None = None) -> RowGroupTask:
        """Return the reading task of one row group, with the others that are read with it."""
        if self.sequences is not None:
            return self._sequence_task(self.sequences, group, epoch_key)
        task, following = self._task(group, epoch_key), group + 1
        members = []
        while self.window_tokens and following < self.num_groups and self.groups.live_rows[following] == 0:
            members.append(self._task(following, None))
            following += 1
        return replace(task, packed_with=tuple(members)) if members else task

    def _sequence_task(self, table: SequenceTable, group: int, epoch_key: EpochKey | None) -> RowGroupTask:
        place, members, following = table.place(group), [], group + 1
        wanted = place.halo
        while wanted > 0:
            rows = int(table.rows[following])
            members.append(replace(self._task(following, None), live_rows=rows))
            wanted, following = wanted - rows, following + 1
        return replace(self._task(group, epoch_key), packed_with=tuple(members), sequence=place)

    def _task(self, group: int, epoch_key: EpochKey | None) -> RowGroupTask:
        groups, files = self.groups, self.files
        file = int(groups.file[group])
        return RowGroupTask(
            path=files.paths[file],
            file_size=int(files.sizes[file]),
            identity=files.pin(file),
            file_format=int(files.formats[file]),
            ordinal=int(groups.ordinal[group]),
            first_row=int(groups.first_row[group]),
            physical_rows=int(groups.physical_rows[group]),
            live_rows=int(groups.live_rows[group]),
            byte_offset=int(groups.byte_offset[group]),
            byte_length=int(groups.byte_length[group]),
            partition_values=tuple((c.name, c.values[int(c.codes[file])]) for c in files.partitions),
            extra=files.extras[file] if files.extras else None,
            epoch_key=epoch_key,
            table="" if self.snapshot is None else self.source,
        )

    def take_groups(self, indices: Int64s) -> "Inventory":
        """Return the inventory of these row groups (ascending) and of their files, re-indexed."""
        groups = self.groups.take(indices)
        used, file = np.unique(groups.file, return_inverse=True)
        return replace(
            self,
            files=self.files.take(used.astype(np.int64)),
            groups=replace(groups, file=file.astype(np.int32)),
            nulls={},
            sequences=None if self.sequences is None else self.sequences.take(indices),
        )

    def fingerprint(self) -> str:
        """Return a blake2b digest (128 bits, hex) of everything that decides which rows exist and in which order.

        The digest covers paths, sizes, identities (or names and contents), partition values, row group structure,
        schema, snapshot, row filter and holdout. It leaves out weights (`projected_bytes`), which may differ between
        projections of the same data.
        """
        digest = blake2b(digest_size=16)
        files, groups = self.files, self.groups
        for column in files.known_by():
            digest.update(column.offsets.tobytes())
            digest.update(column.data.tobytes())
        for array in (files.sizes, groups.file, groups.ordinal, groups.physical_rows, groups.live_rows):
            digest.update(np.ascontiguousarray(array).tobytes())
        for partition in files.partitions:
            digest.update(repr((partition.name, partition.values)).encode())
            digest.update(partition.codes.tobytes())
        digest.update(self.schema)
        digest.update(self.row_filter.encode())
        digest.update(str(self.snapshot or "").encode())
        digest.update(str(self.holdout or "").encode())
        digest.update(b"" if self.sequences is None else self.sequences.options.encode())
        return digest.hexdigest()


def check_inventory(name: str, inventory: object) -> Inventory:
    """Return the argument of a caller, if it is an inventory.

    Raises:
        ConfigTypeError: something else, such as the path of a file.
    """
    if not isinstance(inventory, Inventory):
        raise ConfigTypeError(
            f"{name} is {of_type(inventory)}: pass the result of scan_files(path), scan_iceberg(table) or "
            "load_inventory(path)."
        )
    return inventory


def planning_fingerprint(inventory: Inventory) -> str:
    """Return the digest of the fingerprint and the weights that plans depend on; a state is bound to this digest."""
    weights = np.ascontiguousarray(inventory.groups.projected_bytes).tobytes()
    return blake2b(inventory.fingerprint().encode() + weights, digest_size=16).hexdigest()


def data_settings(inventory: Inventory) -> tuple[tuple[str, str], ...]:
    """Return (name, short text) of each part of `planning_fingerprint`, for messages about states that do not fit.

    A filter is shown as a digest, because its literals are values of the data and states leave the machine.

        (("columns", "row_id, fare"), ("filters", "none"), ("snapshot", "none"), ("files", "3 files 5be1c0de"), ...)
    """
    files, groups = inventory.files, inventory.groups
    file_arrays = [part for column in files.known_by() for part in (column.offsets, column.data)]
    kind = "files" if files.contents is None else "files by digest"
    return (
        ("columns", "all" if inventory.projection is None else _shortened(", ".join(inventory.projection))),
        ("filters", short_digest(inventory.row_filter.encode()) if inventory.row_filter else "none"),
        ("snapshot", _shortened(str(inventory.snapshot or "none"))),
        ("files", f"{inventory.num_files} {kind} {short_digest(*file_arrays, files.sizes)}"),
        ("schema", short_digest(inventory.schema)),
        ("rows", f"{inventory.num_groups} row groups {short_digest(groups.file, groups.ordinal, groups.live_rows)}"),
        *((("tokenizer", short_digest(inventory.tokenizer.encode())),) if inventory.tokenizer else ()),
        *((("holdout", _shortened(str(inventory.holdout))),) if inventory.holdout else ()),
        *((("window_tokens", str(inventory.window_tokens)),) if inventory.window_tokens > 1 else ()),
        *((("sequences", _shortened(inventory.sequences.options)),) if inventory.sequences else ()),
    )


def short_digest(*parts: bytes | npt.NDArray[Any]) -> str:
    """Return eight hex digits of a digest, short enough for messages."""
    digest = blake2b(digest_size=4)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:84]}... {short_digest(text.encode())}"
