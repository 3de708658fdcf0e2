"""Columns that no schema has and every row can have: where it lies, and since when.

`columns=` may name them; no plan depends on them. Ids and meanings are those of the Iceberg spec ("Reserved Field IDs",
"Row Lineage").
"""

from collections.abc import Container, Iterable

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.table_file import IcebergFile
from torch_dataloader_utils.errors import ConfigError

FILE, POSITION = "_file", "_pos"
ROW_ID, LAST_UPDATED = "_row_id", "_last_updated_sequence_number"

LINEAGE_IDS = {ROW_ID: 2147483540, LAST_UPDATED: 2147483539}
"""Field ids of the columns that files of Iceberg tables may hold."""

METADATA_COLUMNS = (FILE, POSITION, *LINEAGE_IDS)
"""The path of the row's file, the row's place in it (from 0, deleted rows count), its id, and when it was changed."""


def metadata_columns(wanted: Iterable[str], columns: Container[str]) -> tuple[str, ...]:
    """Those of the wanted columns that are metadata columns. columns: the data's own, which come first."""
    return tuple(name for name in wanted if name in METADATA_COLUMNS and name not in columns)


def data_columns(wanted: tuple[str, ...] | None, columns: Container[str]) -> tuple[str, ...] | None:
    """The wanted columns without metadata columns; None, for all, stays. columns: the data's own."""
    return None if wanted is None else tuple(name for name in wanted if name in columns)


def check_lineage(names: Iterable[str], inventory: Inventory) -> None:
    """Raises ConfigError if one of these metadata columns needs row lineage, and the data has none."""
    lineage = [name for name in names if name in LINEAGE_IDS]
    extras = inventory.files.extras or (None,) * inventory.num_files
    if lineage and not all(isinstance(each, IcebergFile) and each.sequence_number is not None for each in extras):
        raise ConfigError(
            f"columns names {lineage[0]!r}, which only rows of Iceberg tables of format version 3 have, and "
            f"{inventory.source} is not one. {FILE} and {POSITION} give the place of any row."
        )
