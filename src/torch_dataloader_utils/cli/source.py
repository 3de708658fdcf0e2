"""Data of a command: paths, a saved inventory or a table, and how to read it."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from torch_dataloader_utils._core.option_values import Holdout
from torch_dataloader_utils._observe.work_bar import work_bar
from torch_dataloader_utils.cli.filter_text import parse_filter
from torch_dataloader_utils.errors import ConfigError

if TYPE_CHECKING:
    from torch_dataloader_utils._core.inventory import Inventory
    from torch_dataloader_utils.stream.dataset import TableDataset
    from torch_dataloader_utils.tables.reader import Reader

# Values of --format for tables; `DataSource._table` has the data set of each.
TABLE_FORMATS = ("iceberg", "delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Data named by the options of a command; see `find_source`. Nothing is opened before a method is called.

    format: format of files, or of a table; "auto" for files that decide. catalog: properties of the catalog; None for
    files and for tables by location. storage: storage options; never shown, since they may hold credentials. holdout:
    part of the rows to read; None for all rows, or the part of the saved inventory.
    """

    paths: tuple[str, ...]
    format: str = "auto"
    columns: tuple[str, ...] | None = None
    filter_text: str | None = None
    holdout: Holdout | None = None
    partitioning: Literal["hive", "auto"] | None = None
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)
    inventory_path: str | None = None
    catalog: Mapping[str, Any] | None = field(default=None, repr=False)
    snapshot_id: int | None = None
    allow_bare_files: bool = False
    missing: Literal["error", "null"] = "error"

    def __post_init__(self) -> None:
        if not self.paths and self.inventory_path is None:
            raise ConfigError("Nothing to read: give a path, a pattern, a table, or --inventory FILE.")
        if self.paths and self.inventory_path is not None:
            raise ConfigError(
                f"--inventory {self.inventory_path} names the files already: leave out {' '.join(self.paths)}, or "
                "--inventory."
            )
        if self.is_table and len(self.paths) > 1:
            raise ConfigError(f"{len(self.paths)} tables: give one at a time.")
        if self.is_table and not self.paths:
            raise ConfigError(
                f"--inventory {self.inventory_path} is of files, never of a table: leave out --catalog, "
                f"--catalog-option and --format {self.format}, or name the table instead of the inventory."
            )
        self._check_ignored()

    def _check_ignored(self) -> None:
        """Refuse options that would have no effect on this data."""
        if self.catalog is not None and self.format not in ("auto", "iceberg"):
            raise ConfigError(f"--catalog is for Iceberg tables, and --format {self.format} is not. Leave one out.")
        if self.partitioning == "hive" and (self.is_table or self.inventory_path is not None):
            raise ConfigError(
                f"--partitioning {self.partitioning} is for files: tables and saved inventories have their "
                "partitions already. Leave it out."
            )
        if self.missing == "null" and (self.is_table or self.inventory_path is not None):
            raise ConfigError(
                "--missing null is for files: tables and saved inventories have their columns already. Leave it out."
            )

    @property
    def is_table(self) -> bool:
        """Whether this is a table: by its format, or by --catalog."""
        return self.format in TABLE_FORMATS or self.catalog is not None

    @property
    def filters(self) -> Any:
        """Row filter as a pyarrow expression, or None."""
        return None if self.filter_text is None else parse_filter(self.filter_text)

    def inventory(self) -> "Inventory":
        """Return the inventory, of the part that `holdout` names. Columns are read where only they give the row counts.

        Raises:
            ConfigError, DataError, StoreError: see scan_files, scan_iceberg and scan_delta.
        """
        found = self._scanned() if self.inventory_path is None else self._saved_inventory(self.inventory_path)
        if self.holdout is not None:
            return self.dataset(found).planner.inventory
        return found if self.filter_text is None or self.is_table else self._counted(found)

    def _scanned(self) -> "Inventory":
        if self.is_table:
            _, scan, options = self._table()
            with work_bar("data files") as on_progress:
                return scan(
                    self.paths[0], columns=self.columns, filters=self.filters, on_progress=on_progress, **options
                )
        from torch_dataloader_utils.discover import scan_files

        with work_bar("footers") as on_progress:
            return scan_files(
                list(self.paths),
                self.format,
                columns=self.columns,
                filters=self.filters,
                partitioning=self.partitioning,
                allow_bare_files=self.allow_bare_files,
                missing=self.missing,
                storage_options=self.storage or None,
                on_progress=on_progress,
            )

    def dataset(self, inventory: "Inventory | None" = None, **options: Any) -> "TableDataset":
        """Return the data set with these options of `create_dataloader`. inventory: None to scan again."""
        if inventory is None and not self.is_table:
            inventory = self.inventory()
        saved = None if inventory is None else inventory.holdout
        options = {
            "columns": self.columns,
            "filters": self.filters,
            "inventory": inventory,
            "holdout": self.holdout or saved,
            **options,
        }
        if self.is_table:
            kind, _, of_table = self._table()
            return kind(self.paths[0], **of_table, **options)
        from torch_dataloader_utils.datasets.structured import StructuredDataset

        return StructuredDataset(list(self.paths), self.format, storage_options=self.storage or None, **options)

    def _table(self) -> "tuple[Callable[..., TableDataset], Callable[..., Inventory], dict[str, Any]]":
        """Return the table's data set class, its scan function, and the options that both need."""
        storage = {"storage_options": self.storage or None}
        if self.format == "delta":
            from torch_dataloader_utils.datasets.delta import DeltaDataset, scan_delta

            return DeltaDataset, scan_delta, {"version": self.snapshot_id, **storage}
        from torch_dataloader_utils.datasets.iceberg import IcebergDataset, scan_iceberg

        options = {"catalog_config": self.catalog, "snapshot_id": self.snapshot_id, **storage}
        return IcebergDataset, scan_iceberg, options

    def reader(self, inventory: "Inventory") -> "Reader":
        """Return a reader of the chosen columns."""
        reader: Reader = self.dataset(inventory, output_format="arrow").pipeline.reader  # type: ignore[assignment]
        return reader

    def _saved_inventory(self, path: str) -> "Inventory":
        from torch_dataloader_utils._arrow.schema import decode_schema
        from torch_dataloader_utils.datasets.row_counts import under_filter
        from torch_dataloader_utils.discover import load_inventory
        from torch_dataloader_utils.formats.schemas import check_columns

        found = load_inventory(path, self.storage)
        check_columns(self.columns or (), decode_schema(found.schema))
        return under_filter(found, self.filters)

    def _counted(self, inventory: "Inventory") -> "Inventory":
        from torch_dataloader_utils._store import StoreAccess
        from torch_dataloader_utils.datasets.row_counts import count_alone

        with work_bar("row groups") as on_progress:
            return count_alone(inventory, self.filters, StoreAccess.of(self.storage), on_progress)


def find_source(**options: Any) -> DataSource:
    """Return the data of a command. Look what a path holds, as `open_loader` does, unless the options say it.

    options: Fields of `DataSource`.

    Raises:
        ConfigError, NoDataError, StoreError: see `find_place`. ConfigError: options that do not fit the data.
    """
    source = _looked_at(DataSource(**options))
    if source.snapshot_id is not None and not source.is_table:
        raise ConfigError(f"--snapshot {source.snapshot_id} is for tables; these are files. Leave it out.")
    return source


def _looked_at(source: DataSource) -> DataSource:
    is_said = source.format != "auto" or source.catalog is not None or source.allow_bare_files
    if is_said or len(source.paths) != 1:
        return source
    from torch_dataloader_utils.datasets.places import find_place

    storage = {"storage_options": source.storage} if source.storage else {}
    kind, place = find_place({"path": source.paths[0], **storage})
    if kind == "files":
        return source
    return replace(source, paths=(place["table"],), format=kind, catalog=place.get("catalog_config"))


def parse_holdout(text: str) -> Holdout:
    """Return the value of --holdout.

        0.1,train                     Holdout(0.1, "train")
        0.1,train,by=user.id,seed=7   Holdout(0.1, "train", by="user.id", seed=7)

    Raises:
        ConfigError: another form, or values out of range.
    """
    fraction, part, *named = (*map(str.strip, text.split(",")), "")
    options: dict[str, Any] = dict(each.partition("=")[::2] for each in named if each)
    if not options.keys() <= {"by", "seed"}:
        raise _not_holdout(text)
    try:
        options |= {"fraction": float(fraction), "seed": int(options.get("seed", 0))}
    except ValueError as error:
        raise _not_holdout(text) from error
    return Holdout(part=part, **options)  # type: ignore[arg-type]


def _not_holdout(text: str) -> ConfigError:
    return ConfigError(
        f"--holdout {text!r} is not FRACTION,PART: write 0.1,train or 0.1,holdout. To divide by the values of a "
        "column, add ,by=COLUMN; for another division, add ,seed=N."
    )


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """Return key=value texts as a dict; dots in a key nest, and true, false, null, [...] and {...} are JSON.

        anon=true  client_kwargs.endpoint_url=http://host:9000      {"anon": True, "client_kwargs": {...}}

    Raises:
        ConfigError: no "=", or a key with both a value and keys below it. The message has no values: they may be
            secrets.
    """
    found: dict[str, Any] = {}
    for number, pair in enumerate(pairs, start=1):
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"{option} number {number} is not of the form key=value. Write it in that form.")
        *parents, last = key.split(".")
        place: Any = found
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise _both(option, number, key)
        if isinstance(place.get(last), dict):
            raise _both(option, number, key)
        place[last] = _value(text)
    return found


def _both(option: str, number: int, key: str) -> ConfigError:
    return ConfigError(
        f"{option} number {number}: {key} and an earlier {option} make a key both a value and a group. Leave one out."
    )


def catalog_properties(name: str | None, pairs: Iterable[str]) -> dict[str, Any] | None:
    """Return the properties of --catalog and --catalog-option together; None without both.

    Raises:
        ConfigError: see `parse_pairs`.
    """
    properties = parse_pairs(pairs, "--catalog-option")
    return {**properties, **({} if name is None else {"name": name})} or None


def _value(text: str) -> Any:
    if text in ("true", "false", "null") or text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text
