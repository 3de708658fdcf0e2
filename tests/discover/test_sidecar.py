"""A `_metadata` file replaces reading all footers, but only if it fits the files."""

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.discover.datasets import SCHEMA, file_table, write_parquet
from tests.formats.encrypted import write_encrypted
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import UnsupportedFeatureError

NAMES = ["b/1.parquet", "a.parquet", "b/0.parquet"]


@pytest.fixture
def root(tmp_path):
    collected = []
    for index, name in enumerate(NAMES):
        write_parquet(tmp_path / name, index, [3, 4, 5 + index])
        metadata = pq.read_metadata(tmp_path / name)
        metadata.set_file_path(name)
        collected.append(metadata)
    pq.write_metadata(SCHEMA, tmp_path / "_metadata", collected)
    return tmp_path


def tails_read(monkeypatch):
    """The files whose tails a scan reads; the store itself stays the real one."""
    read = []
    real = LocalStore.tail

    def tail(self, path, *args):
        read.append(path.rpartition("/")[2])
        return real(self, path, *args)

    monkeypatch.setattr(LocalStore, "tail", tail)
    return read


def replace_last(path, before, after):
    path.write_bytes(after.join(path.read_bytes().rsplit(before, 1)))


def two_bytes(number):
    """A number between 64 and 8191, or the negative number, as Thrift's footers have it."""
    folded = 2 * number if number >= 0 else -2 * number - 1
    return bytes([folded & 127 | 128, folded >> 7])


def same(a, b):
    return a.fingerprint() == b.fingerprint() and all(
        (getattr(a.groups, name) == getattr(b.groups, name)).all() for name in a.groups.__slots__
    )


def test_one_read_serves_all_footers_and_gives_the_same_inventory(root, monkeypatch):
    read = tails_read(monkeypatch)
    by_sidecar = scan_files(root, columns=["row"])
    assert read == ["_metadata"]
    (root / "_metadata").unlink()
    assert same(by_sidecar, scan_files(root, columns=["row"]))


def test_a_filter_reads_the_footers_themselves(root, monkeypatch):
    read = tails_read(monkeypatch)
    inventory = scan_files(root, filters=pc.field("row") >= 3)
    assert sorted(read) == ["0.parquet", "1.parquet", "_metadata", "a.parquet"]
    assert inventory.groups.ordinal.tolist() == [1, 2] * 3


@pytest.mark.parametrize(
    "how",
    [
        "a file more",
        "a file less",
        "a shorter file",
        "other rows",
        "a group more",
        "no sum",
        "no values",
        "a place before the file",
        "no Parquet",
        "encrypted",
    ],
)
def test_a_stale_or_damaged_sidecar_is_not_believed(root, how, caplog):
    match how:
        case "a file more":
            write_parquet(root / "c.parquet", 3, [7])
        case "a file less":
            (root / "a.parquet").unlink()
        case "a shorter file":
            write_parquet(root / "a.parquet", 1, [1])
        case "other rows":
            write_parquet(root / "a.parquet", 1, [4, 3, 6])
        case "a group more":
            write_parquet(root / "a.parquet", 1, [3, 4, 6, 9])
        case "no sum":
            replace_last(root / "_metadata", b"\x16\x4e", b"\x16\x4c")  # of all files: 38 rows for 39
        case "no values":
            replace_last(root / "_metadata", b"\x16\x4e", b"\x16\x4c")
            replace_last(root / "_metadata", b"\x16\x0e", b"\x16\x0c")  # of the last row group: 6 rows for 7
        case "a place before the file":
            last = pq.read_metadata(root / "_metadata").row_group(3 * len(NAMES) - 1).column(0).data_page_offset
            replace_last(root / "_metadata", b"\x26" + two_bytes(last), b"\x26" + two_bytes(-last))
        case "encrypted":
            write_encrypted(root / "_metadata", file_table(0, 3), SCHEMA.names[:1])
        case _:
            (root / "_metadata").write_bytes(b"nothing")
    inventory = scan_files(root)
    assert "is not used" in caplog.text
    (root / "_metadata").unlink()
    assert same(inventory, scan_files(root))


def test_a_sidecar_named_as_data_is_refused(root):
    with pytest.raises(UnsupportedFeatureError, match="Name the data files themselves"):
        scan_files(root / "_metadata")
