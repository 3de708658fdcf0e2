"""Virtual columns: `_file` and `_pos` locate a row, `_row_id` and `_last_updated_sequence_number` are Iceberg lineage.

`columns=` may name these columns; plans do not depend on them. Field ids and meanings come from the Iceberg spec
("Reserved Field IDs", "Row Lineage").
"""

from collections.abc import Container, Iterable

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.table_file import TableFile
from torch_dataloader_utils.errors import ConfigError

FILE, POSITION = "_file", "_pos"
ROW_ID, LAST_UPDATED = "_row_id", "_last_updated_sequence_number"

LINEAGE_IDS = {ROW_ID: 2147483540, LAST_UPDATED: 2147483539}
"""Field ids of the lineage columns that files of Iceberg tables may hold."""

METADATA_COLUMNS = (FILE, POSITION, *LINEAGE_IDS)
"""All virtual columns: path of the row's file, row number in the file (from 0, deleted rows count), id, last change."""


def metadata_columns(wanted: Iterable[str], columns: Container[str]) -> tuple[str, ...]:
    """Return the wanted columns that are metadata columns. columns: Names of the data's own columns, which win."""
    return tuple(name for name in wanted if name in METADATA_COLUMNS and name not in columns)


def check_lineage(names: Iterable[str], inventory: Inventory) -> None:
    """Raise ConfigError if one of these metadata columns needs row lineage and the data has no lineage."""
    lineage = [name for name in names if name in LINEAGE_IDS]
    extras = inventory.files.extras or (None,) * inventory.num_files
    if lineage and not all(isinstance(each, TableFile) and each.sequence_number is not None for each in extras):
        raise ConfigError(
            f"columns names {lineage[0]!r}, a column of Iceberg tables of format version 3, and {inventory.source} is "
            f"not such a table. {FILE} and {POSITION} give the place of any row."
        )
