"""Pass 2: gather the rows of one output file, write it, and read it back."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.batches import take_rows
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._runtime.publish import PendingFile
from torch_dataloader_utils.rewrite.checksums import add_sums, sum_columns
from torch_dataloader_utils.rewrite.layout import in_schema, open_writer
from torch_dataloader_utils.rewrite.order import Words
from torch_dataloader_utils.rewrite.pending import read_json, size_of, write_json
from torch_dataloader_utils.rewrite.spill import SpillFile, read_spilled


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReceipt:
    """Facts about a finished output file. sums: Checksum of each column, of the rows that were read back."""

    rows: int
    size: int
    sums: list[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputJob:
    """One output file to write; picklable.

    spills: All spill files. output: Number of this file. outputs: Number of all output files.
    edges: Words at which the rows are divided into steps that fit into memory, ascending; the last is the end.
    num_rows: Rows of the file. group_rows: Rows of a row group at most.
    spilled, written: Schemas of the spill files and of the output file, as IPC bytes.
    writing: Options of pyarrow's writer; see `choose_writing`.
    """

    path: Path
    receipt: Path
    spills: tuple[SpillFile, ...]
    output: int
    outputs: int
    edges: tuple[int, ...]
    num_rows: int
    group_rows: int
    spilled: bytes
    written: bytes
    writing: dict[str, Any]

    def finished(self) -> OutputReceipt | None:
        """Return the receipt of the file, None if there is none."""
        content = read_json(self.receipt)
        receipt = None if content is None else OutputReceipt(**content)
        return receipt if receipt is not None and size_of(self.path) == receipt.size else None

    def run(self) -> OutputReceipt:
        """Write the file and read it back.

        Raises:
            CorruptFileError: a spill file is damaged. OSError: the disk is full or failed.
        """
        pending = PendingFile(self.path)
        try:
            words = self._write(pending.place)
            sums = self._read_back(pending.place, words)
            receipt = OutputReceipt(rows=len(words), size=size_of(pending.place), sums=sums)
            pending.publish()
        finally:
            pending.discard()
        write_json(self.receipt, asdict(receipt))
        return receipt

    def _write(self, path: Path) -> Words:
        """Write all row groups, and return the words of the rows in order."""
        spilled, written = decode_schema(self.spilled), decode_schema(self.written)
        groups = max(1, -(-self.num_rows // self.group_rows))
        group_rows = max(1, -(-self.num_rows // groups))
        words: list[Words] = []
        waiting = pa.Table.from_batches([], written)
        with open_writer(str(path), written, self.writing) as writer:
            for low, high in zip(self.edges, self.edges[1:], strict=False):
                rows, order, step_words = read_spilled(self.spills, self.output, self.outputs, spilled, low, high)
                words.append(step_words)
                start = 0
                while start < len(order):
                    stop = min(len(order), start + group_rows - waiting.num_rows)
                    taken = in_schema(take_rows(rows, order[start:stop]), written)
                    waiting, start = pa.concat_tables([waiting, pa.Table.from_batches([taken])]), stop
                    if waiting.num_rows == group_rows:
                        writer.write_table(waiting, row_group_size=group_rows)
                        waiting = pa.Table.from_batches([], written)
            if waiting.num_rows:
                writer.write_table(waiting, row_group_size=group_rows)
        return np.concatenate(words)

    def _read_back(self, path: Path, words: Words) -> list[int]:
        """Return the checksum of each column, with the words in the order in which rows have to be."""
        schema, start = decode_schema(self.spilled), 0
        sums = [0] * len(schema)
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for batch in file.read_row_group(group, use_threads=False).cast(schema).to_batches():
                    stop = start + batch.num_rows
                    found, _ = sum_columns(batch, words[start:stop])
                    sums = add_sums(sums, found)
                    start = stop
        return sums
