"""`tdu scan --layout`: what other layouts of the same rows would give, and what it does not look at."""

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tests.cli.shell import tdu, tdu_json
from torch_dataloader_utils.cli.layout import advice

ROWS = 20_000


@pytest.fixture(scope="module")
def numbers():
    """Random numbers, which no dictionary makes smaller, and few different ones."""
    random = np.random.default_rng(0)
    return pa.table(
        {"x": random.random(ROWS), "few": np.arange(ROWS) % 7, "text": [f"{row % 9}" for row in range(ROWS)]}
    )


def changes(path, *arguments):
    report = tdu_json("scan", path, "--layout", *arguments)["layout"]
    return report, {each["change"]: each for each in report["changes"]}


def test_dictionaries_of_random_numbers_and_levels_of_full_columns_are_found(numbers, tmp_path):
    pq.write_table(numbers, tmp_path / "0.parquet")
    report, found = changes(tmp_path)
    plain = found["no dictionaries for 1 column of mostly distinct numbers"]
    assert plain["of_bytes"] < 0.95
    assert "2 optional columns without nulls as required" in found
    assert {name for name in found if name.startswith("codec")} == {
        f"codec {name} in place of snappy" for name in ("none", "lz4", "zstd")
    }
    assert report["rows"] == ROWS
    assert all(each["times_as_fast"] > 0 for each in report["changes"])


def test_a_good_layout_leaves_codecs_to_choose(numbers, tmp_path):
    required = pa.schema([field.with_nullable(False) for field in numbers.schema])
    pq.write_table(numbers.cast(required), tmp_path / "0.parquet", use_dictionary=["few", "text"])
    report, _ = changes(tmp_path)
    assert all(each["only_codec"] for each in report["changes"])
    assert advice(report).startswith("Nothing to gain")


def test_small_row_groups_are_taken_together(numbers, tmp_path):
    pq.write_table(numbers, tmp_path / "0.parquet", row_group_size=500)
    report, found = changes(tmp_path, "--columns", "few")
    assert report["row_groups"] == 20
    assert found["1 row group in place of 20"]["of_bytes"] < 1


def test_the_text_has_a_table_and_what_to_do(numbers, tmp_path):
    pq.write_table(numbers, tmp_path / "0.parquet")
    text = tdu("scan", tmp_path, "--layout").stdout
    assert "written anew with" in text
    assert "codec zstd in place of snappy" in text
    assert "by one thread; column chunks:" in text


def test_other_formats_and_filters_are_refused(numbers, tmp_path):
    orc.write_table(numbers, tmp_path / "0.orc")
    assert "Parquet" in tdu("scan", tmp_path / "0.orc", "--format", "orc", "--layout", code=2).stderr
    pq.write_table(numbers, tmp_path / "0.parquet")
    assert "--filter" in tdu("scan", tmp_path / "0.parquet", "--layout", "--filter", "few == 1", code=2).stderr


def test_the_version_names_decoder_and_clients():
    lines = tdu("--version").stdout.splitlines()
    assert [line.split("  ")[0].split(",")[0] for line in lines] == ["tdu", "compiled decoder", "store clients"]
