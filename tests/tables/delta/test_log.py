"""Which files of a log make a version: checkpoints of all kinds, compacted commits, times, and damage."""

import datetime
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.tables.delta.reading import read_rows
from tests.tables.delta.tables import LONG, HandTable, add, column, protocol, remove
from torch_dataloader_utils import scan_delta
from torch_dataloader_utils.errors import (
    ConfigError,
    CorruptFileError,
    DataError,
    LoaderError,
    NoDataError,
    UnsupportedFeatureError,
)

STRINGS = pa.map_(pa.string(), pa.string())
CHECKPOINT = pa.schema(
    [
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", STRINGS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                ]
            ),
        ),
        ("remove", pa.struct([("path", pa.string()), ("dataChange", pa.bool_())])),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", STRINGS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", STRINGS),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
        ("sidecar", pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64())])),
    ]
)


def numbers(path: Path | str, **options: Any) -> list[int]:
    return sorted(row["x"] for row in read_rows(path, allow_empty=True, **options))


def growing_table(root: Path, versions: int) -> HandTable:
    """Version v has the rows 1 to v, each in a file of its own."""
    table = HandTable(root)
    table.create([column("x", LONG)], features=["v2Checkpoint"])
    for number in range(1, versions):
        table.commit(add(table.file(pa.table({"x": [number]}), f"{number}.parquet")))
    return table


def state(table: HandTable, version: int) -> list[dict[str, Any]]:
    """The actions of all commits up to a version, of a table that only grows."""
    found = []
    for number in range(version + 1):
        found += [json.loads(line) for line in (table.log / f"{number:020}.json").read_text().splitlines()]
    return found


def write_parquet(path: Path, actions: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(actions), schema=CHECKPOINT), path)


def write_checkpoint(table: HandTable, version: int, kind: str) -> None:
    actions, name = state(table, version), f"{version:020}.checkpoint"
    files = [action for action in actions if "add" in action]
    others = [action for action in actions if "add" not in action]
    half = len(files) // 2
    match kind:
        case "one":
            write_parquet(table.log / f"{name}.parquet", actions)
        case "parts":
            for part, those in enumerate([others, files[:half], files[half:]], start=1):
                write_parquet(table.log / f"{name}.{part:010}.{3:010}.parquet", those)
        case "sidecars" | "json":
            beside = []
            for part, those in enumerate([files[:half], files[half:]]):
                path = table.log / "_sidecars" / f"{version}-{part}.parquet"
                write_parquet(path, those)
                beside.append({"sidecar": {"path": path.name, "sizeInBytes": path.stat().st_size}})
            uuid = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
            if kind == "json":
                text = "\n".join(map(json.dumps, [*others, *beside]))
                (table.log / f"{name}.{uuid}.json").write_text(text)
            else:
                write_parquet(table.log / f"{name}.{uuid}.parquet", [*others, *beside])


@pytest.mark.slow
@settings(max_examples=effort(30), deadline=None)
@given(
    checkpoints=st.dictionaries(st.integers(0, 8), st.sampled_from(["one", "parts", "sidecars", "json"]), max_size=3),
    compacted=st.sets(st.tuples(st.integers(0, 7), st.integers(1, 4)), max_size=2),
    cleaned=st.booleans(),
    data=st.data(),
)
def test_every_way_to_a_version_gives_its_rows(
    checkpoints: dict[int, str],
    compacted: set[tuple[int, int]],
    cleaned: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("t")
    table = growing_table(root, 9)
    for version, kind in checkpoints.items():
        write_checkpoint(table, version, kind)
    for first, length in compacted:
        last = min(8, first + length)
        text = "".join((table.log / f"{number:020}.json").read_text() for number in range(first, last + 1))
        (table.log / f"{first:020}.{last:020}.compacted.json").write_text(text)
    oldest = 0
    if cleaned and checkpoints:
        oldest = max(checkpoints)
        for number in range(oldest):
            (table.log / f"{number:020}.json").unlink()
        for path in table.log.glob("*.compacted.json"):
            path.unlink()
    version = data.draw(st.integers(oldest, 8))
    assert numbers(root, version=version) == list(range(1, version + 1))
    assert numbers(root) == list(range(1, 9))
    shutil.rmtree(root)


def damaged_checkpoint(table: HandTable, version: int, how: str) -> None:
    """A checkpoint that does not say what the commits say, or not anything."""
    actions, path = state(table, version), table.log / f"{version:020}.checkpoint.parquet"
    match how:
        case "no bytes":
            path.touch()
        case "half":
            write_parquet(path, actions)
            path.write_bytes(path.read_bytes()[:-200])
        case "no protocol":
            write_parquet(path, actions[1:])
        case "no metadata":
            write_parquet(path, actions[:1] + actions[2:])
        case "a file less":
            write_parquet(path, actions[:-1])
        case "a removed file":
            write_parquet(path, [*actions, add(table.file(pa.table({"x": [99]})))])
        case "added and removed":
            write_parquet(path, [remove("%31.parquet"), *actions])
        case "added and removed in two parts":
            for part, those in enumerate([[remove("1.parquet")], actions], start=1):
                write_parquet(table.log / f"{version:020}.checkpoint.{part:010}.{2:010}.parquet", those)
        case "twice":
            vector = table.vector([0])
            text = json.dumps(add("1.parquet", deletionVector=vector))
            path.with_suffix(".3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json").write_text(
                "\n".join([*map(json.dumps, actions), text])
            )
        case "no sidecar":
            write_checkpoint(table, version, "sidecars")
            next((table.log / "_sidecars").iterdir()).unlink()
        case "another version":
            text = "\n".join(map(json.dumps, [*actions, {"checkpointMetadata": {"version": version - 1}}]))
            path.with_suffix(".3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json").write_text(text)


# What is wrong with a checkpoint, and the error where nothing else says what the table has; None: it cannot be seen.
DAMAGE = {
    "no bytes": "0 bytes are too few",
    "half": "it was cut",
    "no protocol": "the log of version 5 has no protocol",
    "no metadata": "the log of version 5 has no metadata",
    "a file less": None,
    "a removed file": None,
    "added and removed": "it adds and removes 1.parquet, and so does not say whether the table has it",
    "added and removed in two parts": "it adds and removes 1.parquet",
    "twice": "1.parquet is in version 5 twice",
    "no sidecar": "_sidecars/3-[01].parquet does not exist",
    "another version": "it says that it is the checkpoint of version 2",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_commits_that_are_all_there_decide_over_a_checkpoint(how: str, tmp_path: Path) -> None:
    table = growing_table(tmp_path, 6)
    damaged_checkpoint(table, 3, how)
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert numbers(tmp_path, version=3) == [1, 2, 3]


@pytest.mark.parametrize("how", [how for how, error in DAMAGE.items() if error is not None])
def test_without_commits_a_checkpoint_that_is_seen_to_be_wrong_is_an_error(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = growing_table(tmp_path, 6)
    damaged_checkpoint(table, 3, how)
    older = [(table.log / f"{number:020}.json").read_bytes() for number in range(2)]
    for number in range(2):
        (table.log / f"{number:020}.json").unlink()
    with pytest.raises(LoaderError, match=DAMAGE[how]) as caught:
        numbers(tmp_path)
    assert isinstance(caught.value, (CorruptFileError, NoDataError))
    # An older checkpoint says what the table had.
    for number, data in enumerate(older):
        (table.log / f"{number:020}.json").write_bytes(data)
    write_checkpoint(table, 1, "one")
    (table.log / f"{0:020}.json").unlink()
    caplog.clear()
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert "version 5 is not read from the checkpoint of version 3: " in caplog.text


def test_a_damaged_commit_is_read_from_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = growing_table(tmp_path, 6)
    write_checkpoint(table, 3, "one")
    (table.log / f"{2:020}.json").write_text("{")
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert "version 5 is not read from commits alone: " in caplog.text


def test_a_long_log_is_read_from_its_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = growing_table(tmp_path, 3)
    for _ in range(100):
        table.commit({"commitInfo": {}})
    write_checkpoint(table, 99, "one")
    (table.log / f"{2:020}.json").write_text("{")  # is not read
    assert numbers(tmp_path) == [1, 2]
    assert not caplog.records
    (table.log / f"{99:020}.checkpoint.parquet").write_bytes(b"")
    (table.log / f"{2:020}.json").write_text(json.dumps(add("2.parquet")))
    assert numbers(tmp_path) == [1, 2]


HINTS = {
    "_last_checkpoint": ["{", "", '{"version": 99, "size": 5}', '{"version": 3, "size": 1, "parts": 7}', "\xff[]"],
    f"{4:020}.crc": ["{", '{"numFiles": 77, "tableSizeBytes": 1, "numMetadata": 0}'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in HINTS.items() for text in texts])
def test_hints_decide_nothing(name: str, text: str, tmp_path: Path) -> None:
    table = growing_table(tmp_path, 5)
    write_checkpoint(table, 2, "one")
    for number in range(2):
        (table.log / f"{number:020}.json").unlink()
    (table.log / name).write_text(text)
    assert numbers(tmp_path) == [1, 2, 3, 4]


def changed_table(root: Path) -> tuple[HandTable, list[list[dict[str, Any]]]]:
    """A table whose version 2 removes what version 1 changed, and the actions of its versions."""
    table = HandTable(root)
    first, second, third = (table.file(pa.table({"x": [number] * 3}), f"{number}.parquet") for number in range(3))
    vector = {"deletionVector": table.vector([0])}
    commits: list[list[dict[str, Any]]] = [[], [remove(first), add(first, **vector)]]
    commits += [[remove(first, **vector), add(second)], [add(third)]]
    table.create([column("x", LONG)], add(first), features=["deletionVectors"])
    for actions in commits[1:]:
        table.commit(*actions)
    return table, commits


COMPACTED = {
    "reconciled": lambda commits: [remove("0.parquet"), commits[2][0], commits[2][1]],
    "in order": lambda commits: commits[1] + commits[2],
    "newest first": lambda commits: commits[2] + commits[1],
    "added twice": lambda commits: [commits[1][1], add("0.parquet"), commits[2][1]],
    "of other files": lambda commits: [add("none.parquet")],
    "of nothing": lambda commits: [],
}


@pytest.mark.parametrize("how", COMPACTED)
def test_commits_that_are_there_decide_over_a_compacted_log(how: str, tmp_path: Path) -> None:
    table, commits = changed_table(tmp_path)
    path = table.log / f"{1:020}.{2:020}.compacted.json"
    path.write_text("\n".join(map(json.dumps, COMPACTED[how](commits))))
    assert numbers(tmp_path) == [1, 1, 1, 2, 2, 2]
    (table.log / f"{2:020}.json").unlink()
    match how:
        case "reconciled":
            assert numbers(tmp_path) == [1, 1, 1, 2, 2, 2]
        case "in order" | "newest first":
            with pytest.raises(CorruptFileError, match=r"compacted.json: it adds and removes 0.parquet"):
                numbers(tmp_path)
        case "added twice":
            with pytest.raises(CorruptFileError, match=r"0.parquet is in version 3 twice"):
                numbers(tmp_path)


@settings(max_examples=effort(25), deadline=None)
@given(data=st.data())
def test_compacted_logs_take_the_place_of_commits_that_are_gone(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("t")
    table = growing_table(root, 7)
    ranges = data.draw(st.sets(st.tuples(st.integers(0, 5), st.integers(1, 6)).filter(lambda each: each[0] < each[1])))
    for first, last in ranges:
        text = "".join((table.log / f"{number:020}.json").read_text() for number in range(first, last + 1))
        (table.log / f"{first:020}.{last:020}.compacted.json").write_text(text)
    gone = data.draw(st.sets(st.integers(0, 6), max_size=4))
    for number in gone:
        (table.log / f"{number:020}.json").unlink()
    reached = {-1}  # versions up to which a way leads
    for _ in range(7):
        reached |= {number for number in set(range(7)) - gone if number - 1 in reached}
        reached |= {last for first, last in ranges if any(first - 1 <= each for each in reached if each < last)}
    version = data.draw(st.integers(0, 6))
    if version in reached and version <= max(set(range(7)) - gone, default=-1):
        assert numbers(root, version=version) == list(range(1, version + 1))
    else:
        with pytest.raises((CorruptFileError, ConfigError)):
            numbers(root, version=version)
    shutil.rmtree(root)


def test_a_checkpoint_with_a_missing_part_is_not_used(tmp_path: Path) -> None:
    table = growing_table(tmp_path, 5)
    write_checkpoint(table, 3, "parts")
    next(table.log.glob("*.checkpoint.0000000002.*")).unlink()
    assert numbers(tmp_path) == [1, 2, 3, 4]


def test_versions_that_were_cleaned_up_are_said_to_be(tmp_path: Path) -> None:
    table = growing_table(tmp_path, 6)
    write_checkpoint(table, 4, "one")
    for number in range(4):
        (table.log / f"{number:020}.json").unlink()
    assert numbers(tmp_path, version=4) == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="version 2 was cleaned up; the oldest that can be read is 4"):
        numbers(tmp_path, version=2)
    with pytest.raises(ConfigError, match="needs commit 3, which was cleaned up"):
        numbers(tmp_path, from_version=2)


def test_a_commit_that_is_missing_is_damage(tmp_path: Path) -> None:
    table = growing_table(tmp_path, 5)
    (table.log / f"{2:020}.json").unlink()
    with pytest.raises(CorruptFileError, match="commit 2 is missing"):
        numbers(tmp_path)


def test_a_version_that_is_not_there(tmp_path: Path) -> None:
    growing_table(tmp_path, 3)
    with pytest.raises(ConfigError, match="has no version 7; the newest is 2"):
        numbers(tmp_path, version=7)
    with pytest.raises(ConfigError, match="from_version=9 is after version 2"):
        numbers(tmp_path, from_version=9)
    with pytest.raises(ConfigError, match="pass one of them"):
        numbers(tmp_path, version=1, timestamp=5)


def test_no_table(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(NoDataError, match="is not a Delta table: it has no _delta_log"):
            numbers(path)
    with pytest.raises(ConfigError, match="table is ''"):
        numbers("")


def set_times(table: HandTable, seconds: Sequence[float]) -> None:
    for number, time in enumerate(seconds):
        os.utime(table.log / f"{number:020}.json", (time, time))


@pytest.mark.parametrize(
    ("time", "version"), [(1_000, 0), (1_000.999, 0), (1_001, 1), (1_004.999, 2), (1_005, 4), (9_999, 4)]
)
def test_the_version_of_a_time_is_that_of_the_files(time: float, version: int, tmp_path: Path) -> None:
    table = growing_table(tmp_path, 5)
    # The clock of version 3 was behind: it counts as written with version 4.
    set_times(table, [1_000, 1_001, 1_003, 1_002, 1_005])
    expected = 3 if 1_003 <= time < 1_005 else version
    assert numbers(tmp_path, timestamp=round(time * 1000)) == list(range(1, expected + 1))
    moment = datetime.datetime.fromtimestamp(round(time * 1000) / 1000, datetime.UTC)
    assert numbers(tmp_path, timestamp=moment) == list(range(1, expected + 1))
    assert numbers(tmp_path, timestamp=moment.replace(tzinfo=None)) == list(range(1, expected + 1))


def test_of_commits_in_one_millisecond_the_first_is_meant(tmp_path: Path) -> None:
    table = growing_table(tmp_path, 3)
    set_times(table, [1_000, 1_000, 1_000])
    for milliseconds, version in ((1_000_000, 0), (1_000_001, 1), (1_000_002, 2)):
        assert numbers(tmp_path, timestamp=milliseconds) == numbers(tmp_path, version=version)


def test_a_time_before_the_table(tmp_path: Path) -> None:
    set_times(growing_table(tmp_path, 2), [1_000, 1_001])
    with pytest.raises(
        NoDataError, match=r"had no version at 1970-01-01 00:16:39.999 UTC.*the first is of 1970-01-01 00:16:40.000 UTC"
    ):
        numbers(tmp_path, timestamp=999_999)


def test_times_in_commits_win_over_those_of_files(tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    table.create([column("x", LONG)], {"commitInfo": {"inCommitTimestamp": 1_000}})
    for number in range(1, 6):
        path = table.file(pa.table({"x": [number]}))
        table.commit({"commitInfo": {"inCommitTimestamp": 1_000 * (number + 1)}}, add(path))
    set_times(table, [9_000_000] * 6)
    for time, version in [(1_000, 0), (3_999, 2), (4_000, 3), (99_000, 5)]:
        assert numbers(tmp_path, timestamp=time) == list(range(1, version + 1))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1 is no JSON"),
        ("[1]", "line 1 is no object"),
        ("[" * 100_000, "line 1 is no JSON"),
        ('{"add": 3}', "add is no object"),
        ('{"add": {}}', "path is None"),
        ('{"add": {"path": 4}}', "path is 4"),
        ('{"add": {"path": "a", "partitionValues": [[1, 2]]}}', "partitionValues is no map"),
        ('{"add": {"path": "a", "partitionValues": {"p": 1}}}', "partitionValues is no map"),
        ('{"add": {"path": "a", "deletionVector": 3}}', "deletionVector is no object"),
        ('{"add": {"path": "a", "deletionVector": {"sizeInBytes": -1}}}', "storageType is None"),
        ('{"protocol": {"minReaderVersion": "x"}}', "minReaderVersion 'x'"),
        ('{"metaData": {"id": "i", "schemaString": "x"}}', "schema of the table does not decode"),
        ('{"metaData": {"id": "i", "schemaString": "{}"}}', "schema of the table does not decode"),
        ('{"metaData": {"id": "i", "schemaString": "3"}}', "schema of the table does not decode"),
        ("\xff", "line 1 is no JSON"),
    ],
)
def test_damaged_commits_name_the_log(line: str, reason: str, tmp_path: Path) -> None:
    table = growing_table(tmp_path, 2)
    (table.log / f"{2:020}.json").write_bytes(line.encode("latin-1"))
    with pytest.raises(CorruptFileError, match=reason) as caught:
        numbers(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.slow
@settings(max_examples=effort(150), deadline=None)
@given(data=st.data())
def test_hostile_bytes_in_the_log_give_rows_or_an_error_of_ours(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("t")
    table = growing_table(root, 3)
    write_checkpoint(table, 1, data.draw(st.sampled_from(["one", "sidecars", "json"])))
    path = data.draw(st.sampled_from(sorted(path for path in table.log.rglob("*") if path.is_file())))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    try:
        read_rows(root, allow_empty=True)
    except LoaderError as error:
        assert isinstance(error, (DataError, ConfigError))  # noqa: PT017
    shutil.rmtree(root)


@pytest.mark.parametrize("feature", ["catalogManaged", "somethingNew"])
def test_features_that_are_not_supported_are_named(feature: str, tmp_path: Path) -> None:
    HandTable(tmp_path).create([column("x", LONG)], features=["deletionVectors", feature])
    with pytest.raises(UnsupportedFeatureError, match=f"the table uses {feature}, which is not supported"):
        numbers(tmp_path)


def test_columns_of_unknown_types_are_refused_only_where_they_are_read(tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    path = table.file(pa.table({"x": [1], "shape": [b"0"]}))
    table.create([column("x", LONG), column("shape", "geometry")], add(path))
    with pytest.raises(UnsupportedFeatureError, match="column shape holds values of Delta type geometry"):
        numbers(tmp_path)
    assert numbers(tmp_path, columns=["x"]) == [1]


def test_a_protocol_with_features_that_its_version_does_not_have(tmp_path: Path) -> None:
    broken = protocol(["deletionVectors"])
    broken["protocol"]["minReaderVersion"] = 1
    HandTable(tmp_path).create([column("x", LONG)], broken)
    with pytest.raises(CorruptFileError, match="lists reader features"):
        numbers(tmp_path)


def test_another_column_mapping(tmp_path: Path) -> None:
    HandTable(tmp_path).create([column("x", LONG)], mode="colour")
    with pytest.raises(UnsupportedFeatureError, match="column mapping by 'colour' is not supported"):
        numbers(tmp_path)


@pytest.mark.parametrize(
    "path", ["../out.parquet", "%2E%2E/out.parquet", "a/../../out.parquet", "a/%2e./out.parquet", "..%2Fout.parquet"]
)
def test_a_relative_path_that_leaves_the_table_is_refused(path: str, tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t")
    table.create([column("x", LONG)], add(path))
    pq.write_table(pa.table({"x": [1]}), tmp_path / "out.parquet")
    with pytest.raises(UnsupportedFeatureError, match="leads out of the table"):
        numbers(table.root)


@pytest.mark.parametrize("kind", ["file", "vector"])
def test_an_absolute_path_lies_in_the_allowed_roots_or_is_refused(kind: str, tmp_path: Path) -> None:
    table, other = HandTable(tmp_path / "t"), HandTable(tmp_path / "other")
    rows = pa.table({"x": [1, 2]})
    outside = str(other.root / other.file(rows))
    path = outside if kind == "file" else table.file(rows)
    vector = {} if kind == "file" else {"deletionVector": other.vector([0], "p")}
    table.create([column("x", LONG)], add(path, **vector), features=["deletionVectors"])
    expected = [1, 2] if kind == "file" else [2]
    assert numbers(table.root) == expected
    assert numbers(table.root, allowed_roots=[str(tmp_path)]) == expected
    with pytest.raises(UnsupportedFeatureError, match="lies outside of where its files may be"):
        numbers(table.root, allowed_roots=[str(table.root)])
    # An inventory that was scanned without the rule is checked too.
    if kind == "file":
        with pytest.raises(UnsupportedFeatureError, match="lies outside of where its files may be"):
            numbers(table.root, inventory=scan_delta(table.root), allowed_roots=[str(table.root)])


def test_a_file_that_is_there_twice(tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    path = table.file(pa.table({"x": [1]}))
    table.create([column("x", LONG)], add(path), add(path, deletionVector=table.vector([0])))
    with pytest.raises(CorruptFileError, match="is in version 0 twice"):
        numbers(tmp_path)


def test_a_remove_names_the_vector_too(tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    path, vector = table.file(pa.table({"x": [1, 2, 3]})), table.vector([0])
    table.create([column("x", LONG)], add(path, deletionVector=vector), features=["deletionVectors"])
    table.commit(remove(path))  # of the file without a vector, which is not in the table
    assert numbers(tmp_path) == [2, 3]
    table.commit(remove(path, deletionVector=vector))
    assert numbers(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cardinality": 2}, "its deletion vector has 1 rows, and 2 by the log"),
        ({"offset": 7}, "deletion vector"),
        ({"sizeInBytes": 999}, "is not in its"),
        ({"sizeInBytes": 12}, "deletion vector"),
        ({"storageType": "q"}, "stored as 'q' is not supported"),
        ({"pathOrInlineDv": "~~~"}, "name of a deletion vector does not decode"),
        ({"storageType": "i"}, "deletion vector"),
    ],
)
def test_damaged_vectors(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    vector = {**table.vector([1]), **change}
    path = table.file(pa.table({"x": [1, 2]}))
    table.create([column("x", LONG)], add(path, deletionVector=vector), features=["deletionVectors"])
    with pytest.raises(DataError, match=reason):
        numbers(tmp_path)


@pytest.mark.parametrize("storage", ["u", "i"])
def test_a_vector_deletes_rows_that_the_file_has(storage: str, tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    path = table.file(pa.table({"x": [1, 2]}))
    vector = table.vector([1, 2], storage)
    table.create([column("x", LONG)], add(path, deletionVector=vector), features=["deletionVectors"])
    with pytest.raises(CorruptFileError, match="row 2 is deleted, and the file has 2 rows"):
        numbers(tmp_path)


@pytest.mark.slow
@settings(max_examples=effort(100), deadline=None)
@given(data=st.data())
def test_hostile_bytes_in_a_vector_are_noticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("t")
    table = HandTable(root)
    vector = table.vector([1, 3])
    path = table.file(pa.table({"x": [1, 2, 3, 4]}))
    table.create([column("x", LONG)], add(path, deletionVector=vector), features=["deletionVectors"])
    (file,) = root.glob("*.bin")
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(1, len(content) - 1))  # the first byte is a version, and is not read
    content[place] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    with pytest.raises(CorruptFileError):
        read_rows(root)
    shutil.rmtree(root)
