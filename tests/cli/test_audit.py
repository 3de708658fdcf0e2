"""`tdu audit`: the findings of an audit, for people and for programs."""

import pytest

from tests.cli.shell import one_line, tdu, tdu_json
from torch_dataloader_utils import StructuredDataset


@pytest.fixture
def audits(table, tmp_path):
    """The records of two ranks."""
    for rank in range(2):
        loader, _ = StructuredDataset.create_dataloader(
            table, columns=["id"], num_ranks=2, rank=rank, num_workers=0, batch_size=100, audit=tmp_path / "audits"
        )
        for _ in loader:
            pass
    return tmp_path / "audits"


def test_a_good_job_is_good(audits):
    report = tdu_json("audit", audits)
    assert report["ok"]
    (epoch,) = report["epochs"]
    assert (epoch["state"], epoch["rows"], epoch["once"], epoch["wrong"]) == ("complete", 1500, 1500, [])
    assert "1,500 of 1,500 came exactly once" in tdu("audit", audits).stdout


def test_rows_without_a_record_are_named_by_file_row_group_and_rows(audits, table):
    (lost,) = audits.glob("*-rank1-*.audit")
    lost.unlink()
    report = tdu_json("audit", audits, code=1)
    assert not report["ok"]
    (epoch,) = report["epochs"]
    assert sum(rows["stop"] - rows["start"] for rows in epoch["wrong"]) == epoch["never"] == 750
    shown = tdu("audit", audits, code=1).stdout
    assert "Rank 1 of 2 has no record of 8 steps, from step 0 on." in shown
    first = epoch["wrong"][0]
    assert f"{first['path']} row group {first['row_group']}, rows {first['start']} to {first['stop']}: never" in shown


def test_a_folder_without_records_is_an_error(tmp_path):
    assert "has no records" in one_line(tdu("audit", tmp_path, code=2))


def test_records_without_their_row_groups_say_what_the_folder_lacks(audits):
    (rows,) = audits.glob("rows-*.npz")
    whole = rows.read_bytes()
    rows.write_bytes(whole[: len(whole) // 2])
    assert f"{rows} is damaged" in one_line(tdu("audit", audits, code=1))
    rows.write_bytes(b"")
    assert f"{rows} is damaged" in one_line(tdu("audit", audits, code=1))
    rows.unlink()
    line = one_line(tdu("audit", audits, code=2))
    assert f"{audits} has records and no {rows.name}" in line
    assert "Copy the whole folder of audit=" in line
