"""Parts of a corpus from a data set: Iceberg tables with their deletes, filtered rows, any format with a reader."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from torch_dataloader_utils._core.inventory import Inventory, RowGroupTask
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.read.reader import Reader, make_reader
from torch_dataloader_utils.stream.dataset import TableDataset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TablePart:
    """Neighbouring row groups of one data file: a `CorpusPart`.

    reader: delivers the column alone; it applies deletes and the row filter, and checks identities. version: the
    fingerprint of the inventory and the filter, for two versions of a table share files.
    """

    reader: Reader
    tasks: tuple[RowGroupTask, ...]
    version: str
    size_bytes: int

    def describe(self) -> dict[str, Any]:
        """See `CorpusPart`."""
        return {
            "table": self.version,
            "path": self.tasks[0].path,
            "identity": self.tasks[0].identity,
            "groups": [task.ordinal for task in self.tasks],
        }

    def read(
        self,
        column: str,
        storage_options: dict[str, Any] | None,  # noqa: ARG002  # the reader has its own
    ) -> Generator[tuple[str, pa.Array]]:
        """See `CorpusPart`."""
        for task in self.tasks:
            yield f"{task.where} column {column!r}", self.reader.read(task).column(0)


def plan_table_parts(dataset: TableDataset, column: str, part_bytes: int) -> list[TablePart]:
    """Parts of about `part_bytes` unpacked bytes over all ranks of a data set, in stored order; none crosses a file.

    Raises:
        ConfigError: a data set of packed samples or with a transform, or one without the column.
    """
    pipeline = dataset.pipeline
    if not isinstance(pipeline.reader, Reader) or pipeline.functions:
        raise ConfigError(
            "A corpus is built from stored rows: give a data set without pack, transform and collate_fn; what is to "
            "be done to documents, the tokenizer does."
        )
    spec = replace(pipeline.reader.spec, columns=(column,))
    reader, inventory = make_reader(spec), _inventory(dataset)
    version = f"{inventory.fingerprint()} {spec.row_filter}"
    parts: list[TablePart] = []
    tasks: list[RowGroupTask] = []
    held_bytes = 0
    for group in range(inventory.num_groups):
        task = inventory.task(group)
        if tasks and (held_bytes >= part_bytes or task.path != tasks[0].path):
            parts.append(TablePart(reader=reader, tasks=tuple(tasks), version=version, size_bytes=held_bytes))
            tasks, held_bytes = [], 0
        tasks.append(task)
        held_bytes += int(inventory.groups.projected_bytes[group])
    if tasks:
        parts.append(TablePart(reader=reader, tasks=tuple(tasks), version=version, size_bytes=held_bytes))
    return parts


def _inventory(dataset: TableDataset) -> Inventory:
    found: Inventory = dataset.plan().inventory
    return found
