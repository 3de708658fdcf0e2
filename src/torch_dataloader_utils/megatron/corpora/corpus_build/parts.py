"""Divide the row groups of an inventory into the parts of a corpus, before any token is read."""

import hashlib
import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._core.arguments import hold_flags, hold_integers
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.formats.registry import format_of
from torch_dataloader_utils.megatron.corpora.index_format import integer_limits, wider_dtype
from torch_dataloader_utils.samples.tokenizers import Tokenizer, tokenizer_version
from torch_dataloader_utils.tables.reader import Reader

# In the key of every part: raise the version when the same input gives other files.
_PART_VERSION = 3

PART_KEY_LETTERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """Options that turn rows into documents; see `build_corpus`."""

    column: str
    dtype: str
    tokenizer: Tokenizer | None
    eod: int | None
    vocabulary_size: int | None
    skip_nulls: bool
    # Computed here, once: in a worker process the module of a script's function may have another name.
    tokenizer_key: str | None = field(init=False)

    def __post_init__(self) -> None:
        key = None if self.tokenizer is None else tokenizer_version(self.tokenizer)
        if self.tokenizer is not None and key is None:
            key = f"of run {uuid.uuid4()}"
        object.__setattr__(self, "tokenizer_key", key)
        hold_flags(self, "skip_nulls")
        hold_integers(self, "vocabulary_size", least=1)
        hold_integers(self, "eod", least=0)
        if self.eod is not None:
            self._check_eod(self.eod)

    def _check_eod(self, eod: int) -> None:
        if self.vocabulary_size is not None and eod >= self.vocabulary_size:
            raise ConfigError(f"eod={eod} lies outside the vocabulary, whose ids are below {self.vocabulary_size}.")
        if eod > integer_limits(np.dtype(self.dtype))[1]:
            raise ConfigError(f"eod={eod} does not fit {self.dtype}. {wider_dtype(eod)}")

    def describe(self) -> dict[str, Any]:
        """Return the options as JSON values. A tokenizer without a name differs in every run, so no part is reused."""
        return {
            "column": self.column,
            "dtype": self.dtype,
            "tokenizer": self.tokenizer_key,
            "eod": self.eod,
            "vocabulary_size": self.vocabulary_size,
            "skip_nulls": self.skip_nulls,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorpusPart:
    """Neighbouring row groups of one data file, for one task to write as a small corpus; picklable.

    Attributes:
        reader: reader of the column; applies deletes and the row filter, and checks identities of files.
        tasks: the row groups, in order.
        version: fingerprint of the data set's inventory and filter, since the rows depend on both; "" for plain files.
        size_bytes: approximate number of unpacked bytes.
    """

    reader: Reader
    tasks: tuple[RowGroupTask, ...]
    version: str
    size_bytes: int

    def describe(self) -> dict[str, Any]:
        """Return everything that the rows of the part depend on, as JSON values."""
        first = self.tasks[0]
        return {
            "version": self.version,
            "path": first.path,
            "identity": first.identity,
            "format": str(format_of(first.file_format)).upper(),
            "groups": [task.ordinal for task in self.tasks],
        }

    def read(self) -> Iterator[tuple[str, pa.Array]]:
        """Yield (place, column) for each row group in order; the place is text for messages."""
        for task in self.tasks:
            batch = self.reader.read(task)
            yield f"{task.where} column {batch.schema.names[0]!r}", batch.column(0)


def digest_part(part: CorpusPart, options: CorpusOptions) -> str:
    """Return the key of a part: a digest of everything that the bytes of the part depend on."""
    content = {"part_version": _PART_VERSION, "options": options.describe(), **part.describe()}
    encoded = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(encoded, digest_size=PART_KEY_LETTERS // 2).hexdigest()


def cut_parts(
    inventory: Inventory, groups: Iterable[int], reader: Reader, version: str, part_bytes: int
) -> list[CorpusPart]:
    """Cut row groups, in order, into parts of about `part_bytes` unpacked bytes. No part crosses a file.

    100 bytes a row group, files of 3 and 2, part_bytes=150      parts of 2, 1 and 2 row groups
    """
    cut: list[list[RowGroupTask]] = []
    cut_bytes: list[int] = []
    for group in groups:
        task = inventory.task(group)
        if not cut or cut_bytes[-1] >= part_bytes or task.path != cut[-1][0].path:
            cut.append([])
            cut_bytes.append(0)
        cut[-1].append(task)
        cut_bytes[-1] += int(inventory.groups.projected_bytes[group])
    return [
        CorpusPart(reader=reader, tasks=tuple(tasks), version=version, size_bytes=size)
        for tasks, size in zip(cut, cut_bytes, strict=True)
    ]


def divide_parts(parts: Sequence[CorpusPart], output_count: int) -> list[list[CorpusPart]]:
    """Divide the parts into one run of neighbours per output, about equal in bytes, with at least one part each."""
    ends = np.cumsum([part.size_bytes for part in parts], dtype=np.float64)
    targets = ends[-1] * np.arange(1, output_count) / output_count
    borders = np.searchsorted(ends, targets, side="left") + 1
    # Each side of a border needs at least one part per output.
    lowest = np.arange(1, output_count)
    borders = np.maximum.accumulate(np.maximum(borders, lowest) - lowest) + lowest
    borders = np.minimum(borders, len(parts) - output_count + lowest)
    edges = [0, *borders.tolist(), len(parts)]
    return [list(parts[low:high]) for low, high in itertools.pairwise(edges)]
