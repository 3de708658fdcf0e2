"""`tdu vocabulary`: counts are those of plain Python, and the file is one that `Vocabulary.load` takes."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.shell import one_line, tdu, tdu_json
from tests.effort import effort
from torch_dataloader_utils import Vocabulary, scan_files
from torch_dataloader_utils.cli import vocabulary
from torch_dataloader_utils.datasets.structured import StructuredDataset

WORDS = st.one_of(st.none(), st.sampled_from("abcdefg"), st.text(max_size=3))
COLUMNS = {
    "word": (pa.dictionary(pa.int32(), pa.string()), WORDS),
    "words": (pa.list_(pa.string()), st.one_of(st.none(), st.lists(WORDS, max_size=3))),
    "number": (pa.int16(), st.one_of(st.none(), st.integers(-3, 3))),
}


@given(data=st.data(), name=st.sampled_from(sorted(COLUMNS)), least=st.integers(1, 4), most=st.integers(1, 9))
@settings(max_examples=effort(20), deadline=None)
def test_values_come_by_falling_count(tmp_path_factory, data, name, least, most):
    data_type, kind = COLUMNS[name]
    rows = data.draw(st.lists(kind, min_size=1, max_size=60))
    folder = tmp_path_factory.mktemp("data")
    pq.write_table(pa.table({name: pa.array(rows, data_type)}), folder / "0.parquet", row_group_size=7)
    report = tdu_json(
        "vocabulary", folder, "--columns", name, "--min-count", least, "--most", most, "--save", folder / "v"
    )
    items = [item for row in rows for item in (row or [] if name == "words" else [row]) if item is not None]
    wanted = sorted(
        Counter(items).items(), key=lambda pair: (-pair[1], pair[0] if name == "number" else pair[0].encode())
    )
    kept = [(value, count) for value, count in wanted if count >= least][:most]
    table = pq.read_table(folder / "v")
    assert list(zip(*table.to_pydict().values(), strict=True)) == kept
    assert [report[key] for key in ("values", "kept", "items")] == [len(wanted), len(kept), len(items)]
    assert len(Vocabulary.load(str(folder / "v"))) == len(kept)


def test_a_field_of_a_struct_has_a_dotted_name(tmp_path):
    users = [{"name": "a", "tags": ["x"]}, None, {"name": "b", "tags": ["x", "y"]}, {"name": "a", "tags": None}]
    pq.write_table(pa.table({"user": users}), tmp_path / "0.parquet")
    for name, counts in {"user.name": [("a", 2), ("b", 1)], "user.tags": [("x", 2), ("y", 1)]}.items():
        report = tdu_json("vocabulary", tmp_path, "--columns", name)
        assert [tuple(each.values()) for each in report["first"]] == counts
    message = one_line(tdu("vocabulary", tmp_path, "--columns", "user", code=2))
    assert "Column 'user' has values of type struct<" in message


def test_counts_that_are_added_up_often_are_the_same(tmp_path, monkeypatch):
    values = [f"v{i * i % 37}" for i in range(400)]
    pq.write_table(pa.table({"v": values}), tmp_path / "0.parquet", row_group_size=9)
    monkeypatch.setattr(vocabulary, "_LEAST_PENDING", 10)
    inventory = scan_files(str(tmp_path))
    reader = StructuredDataset("", inventory=inventory).pipeline.reader
    counts = vocabulary.count_values(inventory, reader, "v").to_pydict()
    assert dict(zip(*counts.values(), strict=True)) == Counter(values)


def test_the_table_shows_the_most_frequent_values(tmp_path):
    pq.write_table(pa.table({"v": ["a"] * 3 + ["[b]"] * 2}), tmp_path / "0.parquet")
    text = tdu("vocabulary", tmp_path, "--columns", "v", "--save", tmp_path / "v.parquet").stdout
    assert "[b]" in text
    assert "Vocabulary.load(" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "pass --columns NAME"),
        (["--columns", "id,label"], "counts one column"),
        (["--columns", "score"], "Column 'score' has values of type double"),
        (["--columns", "label", "--save", "/nowhere/at/all"], "does not exist"),
    ],
)
def test_what_makes_no_vocabulary_is_one_line(table, options, says):
    assert says in one_line(tdu("vocabulary", table, *options, code=2))
