"""A package adds a file format by an entry point: a number, a name and two functions."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from torch_dataloader_utils import StructuredDataset, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows
from torch_dataloader_utils.errors import ConfigError, FileChangedError, RowCountError
from torch_dataloader_utils.formats import registry
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import make_reader

# Files of int64, one column, in row groups of 100 rows.
MODULE = """
import numpy as np
import pyarrow as pa

from torch_dataloader_utils.formats import FileScan, Format

SCHEMA = pa.schema([pa.field("x", pa.int64(), nullable=False)])


def scan(store, item, request):
    size = item.entry.stat.size
    starts = np.arange(0, size, 800)
    lengths = np.minimum(800, size - starts)
    return FileScan(
        groups=np.stack([lengths // 8, lengths, starts, lengths], axis=1),
        size=size, identity=item.entry.stat.identity, schema=SCHEMA,
    )


def decode(source, fields):
    data = source.span((source.task.byte_offset, source.task.byte_length))
    return pa.RecordBatch.from_arrays([pa.array(np.frombuffer(data, "<i8"))], schema=SCHEMA)


RAW = Format(number={number}, names=({name!r},), scan=scan, decode=decode)
"""


@pytest.fixture
def fresh_registry() -> Iterator[None]:
    """No format of another package is known before, or remembered after."""
    caches = (registry.all_formats, registry.formats_by_ending, registry.format_of)
    for each in caches:
        each.cache_clear()
    yield
    sys.modules.pop("raw_format", None)  # another test has another module of this name
    for each in caches:
        each.cache_clear()


def _install(directory: Path, number: int = 64, name: str = "raw64", value: str = "raw_format:RAW") -> None:
    """Write a package as pip installs it."""
    (directory / "raw_format.py").write_text(MODULE.replace("{number}", str(number)).replace("{name!r}", repr(name)))
    info = directory / "raw_format-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: raw-format\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torch_dataloader_utils.formats]\nraw = {value}\n")


@pytest.mark.processes
@pytest.mark.usefixtures("fresh_registry")
def test_files_of_the_format_train_like_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, data = tmp_path / "site", tmp_path / "data"
    for each in (site, data):
        each.mkdir()
    _install(site)
    monkeypatch.syspath_prepend(site)
    values = np.arange(1234)
    for part in range(3):
        values[part::3].astype("<i8").tofile(data / f"{part}.raw64")
    inventory = scan_files(str(data), "raw64")
    assert (inventory.num_files, inventory.num_groups) == (3, 15)
    save_inventory(inventory, str(tmp_path / "saved.parquet"))
    loaded = load_inventory(str(tmp_path / "saved.parquet"))
    for num_workers in (0, 2):
        loader, _ = StructuredDataset.create_dataloader(
            str(data), "raw64", batch_size=50, shuffle=True, num_workers=num_workers, inventory=loaded
        )
        assert sorted(int(x) for batch in loader for x in batch["x"]) == values.tolist()
    with (data / "1.raw64").open("r+b") as file:
        file.truncate(800)
    loader.set_epoch(1)
    with pytest.raises(FileChangedError, match=r"1\.raw64 is not the file that was planned"):
        list(loader)


@pytest.mark.usefixtures("fresh_registry")
@pytest.mark.parametrize(
    ("package", "message"),
    [
        ({"number": 3}, r"has number 3: choose one of 64 to 255"),
        ({"name": "orc"}, r"has the number or a name of orc \(orc, number 2\)"),
        ({"value": "raw_format:SCHEMA"}, r"name a torch_dataloader_utils\.formats\.Format"),
    ],
)
def test_a_wrong_format_is_an_error_that_names_the_entry_point(
    package: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, **package)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"The entry point raw = raw_format:.*" + message):
        registry.format_named("parquet")


SHORT = """

from dataclasses import replace


def decode_rows(source, fields, rows):
    start, stop = rows.of(source.task.physical_rows)
    return decode(source, fields).slice(start, stop - start - 1)


def decode_parts(source, fields, rows):
    yield decode_rows(source, fields, rows)


RAW = replace(RAW, {decoder}={decoder})
"""


@pytest.mark.usefixtures("fresh_registry")
@pytest.mark.parametrize("decoder", ["decode_rows", "decode_parts"])
def test_a_decoder_that_gives_fewer_rows_than_it_was_asked_for_is_an_error(
    decoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path)
    with (tmp_path / "raw_format.py").open("a") as module:
        module.write(SHORT.replace("{decoder}", decoder))
    monkeypatch.syspath_prepend(tmp_path)
    np.arange(100).astype("<i8").tofile(tmp_path / "0.raw64")
    inventory = scan_files(str(tmp_path / "0.raw64"), "raw64")
    reader = make_reader(ReadSpec(schema=inventory.schema))
    for rows in (GroupRows(10, 20), ALL_ROWS):
        with pytest.raises(RowCountError, match="gave 99 of 100 stored rows"):
            reader.read(inventory.task(0), rows)


@pytest.mark.usefixtures("fresh_registry")
def test_an_inventory_of_a_format_that_is_not_installed_says_so() -> None:
    with pytest.raises(ConfigError, match=r"No file format has number 77\. Install the package that adds it"):
        registry.format_of(77)
