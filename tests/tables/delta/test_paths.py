"""Spellings of one path in a log: whatever they are, a file is added, removed and changed once."""

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.tables.delta.reading import read_rows
from tests.tables.delta.tables import LONG, HandTable, add, column, remove, z85
from torch_dataloader_utils import scan_delta, scan_iceberg
from torch_dataloader_utils.errors import ConfigError, CorruptFileError, LoaderError, UnsupportedFeatureError
from torch_dataloader_utils.tables.delta.paths import file_identity

pytestmark = pytest.mark.filterwarnings("ignore:The epoch has no steps")

NAMES = ["a.parquet", "d/e.parquet", "ä b.parquet", "50%.parquet", "%41.parquet", "q?x#y+z.parquet", "k=1:2/a@.parquet"]


def numbers(path: Path, **options: Any) -> list[int]:
    return sorted(row["x"] for row in read_rows(path, allow_empty=True, **options))


@st.composite
def spellings(draw: st.DrawFn, root: Path, name: str) -> str:
    """A URI of the file of this name in the table."""
    scheme = draw(st.sampled_from(["", "file:", "FILE:", "file://", "file://localhost"]))
    place = draw(st.sampled_from([f"{root}/", f"{root}/../{root.name}/", f"{root}//./"]))
    if not scheme:
        place = draw(st.sampled_from(["", "./", place, f"/{place}"]))
    letters = []
    for letter in place + name:
        is_coded = letter in "% :" or (letter not in "/." and draw(st.integers(0, 9)) == 9)
        coded = quote(letter, safe="")
        letters.append(draw(st.sampled_from([coded, coded.lower()])) if is_coded else letter)
    return scheme + "".join(letters)


@pytest.mark.slow
@settings(max_examples=effort(25), deadline=None)
@given(data=st.data())
def test_histories_in_any_spelling_give_the_rows_of_their_files(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("t")
    table = HandTable(root)
    table.create([column("x", LONG)], features=["deletionVectors"])
    vectors: dict[str, dict[str, Any]] = {}
    versions: list[set[int]] = [set()]
    live: dict[str, int] = {}  # the file's number, or 100 more where its first row is deleted
    for number, name in enumerate(NAMES):
        table.file(pa.table({"x": [number, number + 100]}), name)
        vectors[name] = table.vector([0], "p")
    for _ in range(data.draw(st.integers(1, 6))):
        actions: list[dict[str, Any]] = []
        for name in data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)):
            known, after = live.get(name), data.draw(st.sampled_from(["gone", "whole", "cut"]))
            path = data.draw(spellings(root, name))
            if known is not None and after != ("cut" if known else "whole"):
                actions.append(
                    remove(data.draw(spellings(root, name)), **in_some_place(data, root, vectors[name], known))
                )
            if after == "gone":
                live.pop(name, None)
                continue
            live[name] = int(after == "cut")
            actions.append(add(path, **in_some_place(data, root, vectors[name], live[name])))
        table.commit(*data.draw(st.permutations(actions)))
        rows = {NAMES.index(name) + 100 for name in live}
        versions.append(rows | {NAMES.index(name) for name, is_cut in live.items() if not is_cut})
    for version in (data.draw(st.integers(0, table.version)), table.version):
        assert numbers(root, version=version) == sorted(versions[version])
    shutil.rmtree(root)


def in_some_place(data: st.DataObject, root: Path, vector: dict[str, Any], is_cut: int) -> dict[str, Any]:
    """The vector by its path, spelled in some way, or by its UUID; nothing for a whole file."""
    if not is_cut:
        return {}
    path = Path(vector["pathOrInlineDv"])
    if data.draw(st.booleans()):
        number = UUID(path.stem.removeprefix("deletion_vector_"))
        return {"deletionVector": {**vector, "storageType": "u", "pathOrInlineDv": z85(number.bytes)}}
    return {"deletionVector": {**vector, "pathOrInlineDv": data.draw(spellings(root, path.name))}}


@pytest.mark.parametrize(
    ("root", "spellings"),
    [
        (
            "/t",
            ["x/l.p", "x/%6C.p", "x/%6c.p", "x%2Fl.p", "/t/x/l.p", "//t/x//l.p", "file:/t/x/l.p", "file:///t/x/l.p"],
        ),
        ("/t", ["file:///t/y/../x/l.p", "./x/l.p", "x/./l.p", "FILE:/t/x/l.p", "%2Ft%2Fx%2Fl.p"]),
        ("s3a://b/t", ["x/l.p", "x/%6C.p", "s3://b/t/x/l.p", "s3a://b/t/x/l.p", "s3n://b/t/x/%6c.p", "/t/x/l.p"]),
        ("abfss://c@a/t", ["l.p", "abfs://c@a/t/l.p", "abfss://c@a/t/%6C.p"]),
        ("hdfs://n:1/t", ["l.p", "/t/l.p", "hdfs://n:1/t/l.p"]),
    ],
)
def test_one_file_in_many_spellings(root: str, spellings: list[str]) -> None:
    assert len({file_identity(root, path) for path in spellings}) == 1


def test_a_table_behind_a_link_has_a_file_once_whichever_name_the_log_has(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "real")
    path = table.file(pa.table({"x": [1]}), "d/a.parquet")
    table.create([column("x", LONG)], add(path), add(table.file(pa.table({"x": [2]}), "b.parquet")))
    link = tmp_path / "link"
    link.symlink_to(table.root)
    table.commit(remove(f"file:{link}/{path}"))
    assert numbers(link) == [2]
    assert numbers(table.root) == [2]
    odd = [file_identity(str(link), odd) for odd in ("/x%00/a.p", f"{link}/\ud800/a.p", f"{table.root}/\ud800/a.p")]
    assert len(set(odd)) == 2


def test_a_link_that_was_moved_since_the_last_scan_leads_to_its_present_place(tmp_path: Path) -> None:
    table, other = HandTable(tmp_path / "t"), HandTable(tmp_path / "other")
    name = table.file(pa.table({"x": [1]}), "a.parquet")
    other.file(pa.table({"x": [2]}), name)
    link = tmp_path / "link"
    table.create([column("x", LONG)], add(name), add(f"{link}/{name}"))
    for place, rows in ((table.root, [1]), (other.root, [1, 2]), (table.root, [1])):
        link.unlink(missing_ok=True)
        link.symlink_to(place)
        assert numbers(table.root) == rows


@pytest.mark.parametrize(
    ("root", "paths"),
    [
        ("/t", ["%2525.p", "%25.p", "a+b.p", "a%20b.p", "a.p", "A.p", "\u00e4.p", "a\u0308.p", "%FF.p", "%FE.p"]),
        # Keys of objects are literal after they are decoded.
        ("s3://b/t", ["d//x.p", "d/x.p", "d/./x.p", "d/y/../x.p", "s3://c/t/d/x.p", "/d/x.p", "%3A/x.p", "s3:/x.p"]),
    ],
)
def test_files_that_are_not_one(root: str, paths: list[str]) -> None:
    assert len({file_identity(root, path) for path in paths}) == len(paths)


@pytest.mark.parametrize("path", ["/some/unqualified/absolute/path", "/some/unqualified/with%20space/p@%23h"])
@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_file_added_without_a_scheme_and_removed_with_one_is_gone(scheme: str, path: str, tmp_path: Path) -> None:
    # As in Delta's golden tables canonicalized-paths-*.
    table = HandTable(tmp_path)
    table.create([column("x", LONG)], add(path))
    table.commit(remove(scheme + path))
    assert numbers(tmp_path) == []


def test_an_increment_has_a_file_of_two_spellings_once_and_sees_its_removal(tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    path = table.file(pa.table({"x": [1]}), "a.parquet")
    table.create([column("x", LONG)])
    table.commit(add(path))
    table.commit(add(f"file://{tmp_path}/%61.parquet"))  # new statistics
    assert numbers(tmp_path, from_version=0) == [1]
    table.commit(remove(f"{tmp_path}/a.parquet"))
    with pytest.raises(ConfigError, match="version 3 removed rows"):
        numbers(tmp_path, from_version=0)


@pytest.mark.parametrize("path", ["a.parquet%00", "a\0.parquet", "file:///x/%00a"])
@pytest.mark.parametrize("kind", ["file", "vector"])
def test_a_null_byte_in_a_path_is_damage(kind: str, path: str, tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    good = table.file(pa.table({"x": [1, 2]}), "a.parquet")
    vector = {"storageType": "p", "pathOrInlineDv": path, "offset": 1, "sizeInBytes": 4, "cardinality": 1}
    action = add(path) if kind == "file" else add(good, deletionVector=vector)
    table.create([column("x", LONG)], action, features=["deletionVectors"])
    for options in ({}, {"allowed_roots": [str(tmp_path)]}):
        with pytest.raises(CorruptFileError, match="no path holds a null byte"):
            numbers(tmp_path, **options)


@pytest.mark.parametrize("options", [{"table": "/t/a\0b"}, {"table": "/t", "allowed_roots": ["/\0"]}])
def test_a_null_byte_in_what_the_user_writes(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="holds a null byte"):
        scan_delta(**options)
    with pytest.raises(LoaderError, match="no path holds a null byte"):
        scan_iceberg("/t/a\0b/v1.metadata.json")


@settings(max_examples=effort(50), deadline=None)
@given(path=st.text(min_size=1, max_size=12) | st.text(alphabet="%0aF/.:e", min_size=1, max_size=12))
def test_any_text_as_a_path_is_an_error_of_ours(path: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("t")
    table = HandTable(root)
    table.create([column("x", LONG)], json.loads(json.dumps(add(path))))
    with pytest.raises(LoaderError):
        numbers(root, allowed_roots=[str(root)])
    shutil.rmtree(root)


def test_a_path_that_is_refused_is_so_only_while_it_is_in_the_table(tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    table.create([column("x", LONG)], add("../out.parquet"), add("%FF.parquet"))
    with pytest.raises(UnsupportedFeatureError):
        numbers(tmp_path)
    table.commit(remove("../out.parquet"), remove("%ff.parquet"))
    assert numbers(tmp_path) == []
