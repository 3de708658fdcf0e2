"""A format that the file names contradict is a matter of options, not of damage."""

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import scan_files
from torch_dataloader_utils.errors import ConfigError, CorruptFileError

TABLE = pa.table({"x": [1, 2]})


def test_orc_files_read_as_parquet(tmp_path):
    orc.write_table(TABLE, tmp_path / "a.orc")
    with pytest.raises(
        ConfigError, match='read as parquet, but its files have names of another format: pass format="orc"'
    ):
        scan_files(str(tmp_path))
    assert scan_files(str(tmp_path), "orc").num_rows == 2


@pytest.mark.parametrize("name", ["a.ndjson", "a.json.gz", "a.JSONL.bz2"])
def test_json_lines_read_as_parquet(tmp_path, name):
    (tmp_path / name).write_text('{"x": 1}\n')
    with pytest.raises(ConfigError, match='pass format="json'):
        scan_files(str(tmp_path))


def test_good_files_with_another_ending_are_read(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.orc")
    assert scan_files(str(tmp_path)).num_rows == 2


def test_damage_is_damage_where_the_ending_fits(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"x" * 100)
    with pytest.raises(CorruptFileError):
        scan_files(str(tmp_path))
