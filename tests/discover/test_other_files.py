"""Files beside the data: what does not decode says which pattern leaves them out."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import scan_files
from torch_dataloader_utils.errors import CorruptFileError, SchemaError

TABLE = pa.table({"x": [1, 2]})


@pytest.mark.parametrize("name", ["README.md", "z.csv", "a.jsonl", "LICENSE"])
@pytest.mark.parametrize(("below", "stars"), [("", "*"), ("year=2024", "**/*")])
def test_a_file_of_another_kind_beside_parquet_names_a_pattern_that_reads_the_data(tmp_path, name, below, stars):
    (tmp_path / below).mkdir(exist_ok=True)
    pq.write_table(TABLE, tmp_path / below / "part-0.parquet")
    (tmp_path / name).write_text("some text that is no data")
    pattern = f"{tmp_path}/{stars}.parquet"
    hint = f'If {tmp_path}/{name} is not data, choose the files by a pattern, such as "{pattern}".'
    with pytest.raises(CorruptFileError, match=re.escape(hint)):
        scan_files(tmp_path)
    assert scan_files(pattern).num_rows == 2


def test_a_text_that_is_taken_for_csv_is_named_where_the_data_does_not_fit_it(tmp_path):
    (tmp_path / "README.md").write_text("What this is\n")
    (tmp_path / "part-0.csv.gz").write_bytes(pa.compress(b"x,y\n1,2\n", "gzip", asbytes=True))
    with pytest.raises(SchemaError, match=r"If .*README\.md is not data, choose .* such as \".*/\*\.csv\.gz\""):
        scan_files(tmp_path, "csv")


def test_a_list_of_files_gets_a_pattern_without_a_place(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "b.txt").write_text("some text that is no data")
    with pytest.raises(CorruptFileError, match=r'b\.txt is not data, choose .* such as "\*\.parquet"\.'):
        scan_files([tmp_path / "a.parquet", tmp_path / "b.txt"])


@pytest.mark.parametrize("names", [["a.parquet", "b.pq"], ["a", "b"], ["a.txt", "b.txt"]])
def test_damage_alone_names_no_pattern(tmp_path, names):
    pq.write_table(TABLE, tmp_path / names[0])
    (tmp_path / names[1]).write_bytes(b"x" * 100)
    with pytest.raises(CorruptFileError) as caught:
        scan_files(tmp_path)
    assert "pattern" not in str(caught.value)
