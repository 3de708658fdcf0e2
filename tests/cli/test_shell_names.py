"""Advice of the library, in the words of the shell."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.shell import one_line, tdu
from torch_dataloader_utils.cli import plan, tokens
from torch_dataloader_utils.cli.shell_names import in_shell_names


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('pass partitioning="hive", and go on', "pass --partitioning hive, and go on"),
        ("partitioning=None leaves them out", "--partitioning none leaves them out"),
        ("Take drop_last=True, or a smaller split_bytes=.", "Take --drop-last, or a smaller --split-bytes."),
        ('Pass shuffle="chunks" or shuffle=True', "Pass --shuffle-chunks or --shuffle"),
        ("Leave it out: columns=['a b', 'c'].", "Leave it out: --columns 'a b,c'."),
        ("Leave it out with columns=[...].", "Leave it out with --columns."),
        ("num_workers=2, num_lanes=8 and lane_rows=4", "--workers 2, --lanes 8 and --lane-rows 4"),
        (
            "such as storage_options={'a': {'b': 'eu-1'}, 'anon': True}.",
            "such as --option a.b=eu-1 --option anon=true.",
        ),
        ('catalog_config= or catalog_config={"type": "rest"}', "--catalog or --catalog-option type=rest"),
    ],
)
def test_arguments_become_options_of_the_command(text, shown):
    assert in_shell_names(text, plan.command) == shown


@pytest.mark.parametrize(
    "text",
    [
        "count_rows='auto' is no option of the shell",
        "partitioning=Hive(types={'seed': 'string'}) has no words of the shell",
        "pass inventory=scan_files(path, format, schema=...)",
        "RoundRobinSplitStrategy(shuffle=True) takes seed=...",
        "/data/seed=4/part.parquet and seed=4/part.parquet",
        "storage_options={'client_options': {'a': ...}, ...}",
        "columns=None and drop_last=False",
        "with filters=(x > 3) and filters=~pc.field('x')",
    ],
)
def test_what_no_option_can_say_stays(text):
    assert in_shell_names(text, plan.command) == text


def test_a_group_has_the_options_of_its_commands():
    text = "Pass skip_nulls=True, overwrite=True and dtype=np.uint16; file_format='orc'"
    assert in_shell_names(text, tokens.command) == "Pass --skip-nulls, --overwrite and --dtype uint16; --format orc"


def test_a_shuffle_that_leaves_out_directories_names_the_option(tmp_path):
    (tmp_path / "t/year=2024").mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "t/year=2024/a.parquet")
    line = one_line(tdu("shuffle", tmp_path / "t", tmp_path / "out", "--partitioning", "none", code=2))
    assert "--partitioning hive reads them" in line
    assert "with --columns of" in line
