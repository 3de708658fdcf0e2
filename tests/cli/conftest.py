"""Tables that commands look at."""

import pytest

from tests.cli.shell import write_parquet


@pytest.fixture
def table(tmp_path):
    """1,500 rows in three files of two, three and four row groups."""
    folder = tmp_path / "table"
    folder.mkdir()
    for number, (rows, group_rows) in enumerate([(400, 200), (500, 200), (600, 150)]):
        write_parquet(folder / f"part-{number}.parquet", rows, group_rows)
    return folder
