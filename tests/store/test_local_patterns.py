"""Patterns over local files: what they match, and that nothing they reach is left out unnoticed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils._store import open_store
from torch_dataloader_utils._store.local import matching_paths
from torch_dataloader_utils.errors import NoDataError, StoreError

_NOBODY = 65534


@contextmanager
def as_a_user(place: Path) -> Iterator[None]:
    """Runs as somebody for whom modes count: root may list every directory."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(_NOBODY)
    except OSError:
        pytest.skip("there is no other user to be")
    try:
        if not os.access(place, os.R_OK | os.X_OK, effective_ids=True):
            pytest.skip("temporary directories are root's alone")
        yield
    finally:
        os.seteuid(0)


def names(pattern: str) -> list[str]:
    return [entry.path for entry in open_store(pattern).list_files(pattern).entries]


def fill(place: Path, *files: str) -> None:
    for name in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"1")


@pytest.mark.parametrize("pattern", ["", "*", "**", "**/*.parquet", "*/*.parquet", "*/x.parquet", "[ab]/x.parquet"])
def test_a_directory_that_may_not_be_listed_is_an_error_to_the_patterns_that_reach_it(
    open_place: Path, pattern: str
) -> None:
    fill(open_place, "a/x.parquet", "b/x.parquet")
    (open_place / "b").chmod(0)
    names(f"{open_place}/a")
    with as_a_user(open_place), pytest.raises(StoreError, match=rf"no permission to list .*{open_place}/b"):
        names(f"{open_place}/{pattern}".rstrip("/"))


@pytest.mark.parametrize("mode", [0, 0o111])
def test_a_directory_that_a_pattern_does_not_reach_does_not_matter(open_place: Path, mode: int) -> None:
    fill(open_place, "a/x.parquet", "b/x.parquet", ".c/x.parquet", "a/.d/x.parquet", "e.txt")
    for name in ("b", ".c", "a/.d"):
        (open_place / name).chmod(mode)
    wanted = [f"{open_place}/a/x.parquet"]
    with as_a_user(open_place):
        assert names(f"{open_place}/[!b]*/x.parquet") == wanted
        assert names(f"{open_place}/a*/**/x.parquet") == wanted
        with pytest.raises(NoDataError, match="matches no file"):
            names(f"{open_place}/*.parquet")


def test_a_file_that_is_named_needs_no_list_of_its_directory(open_place: Path) -> None:
    fill(open_place, "a/x.parquet", "b/x.parquet")
    (open_place / "b").chmod(0o111)
    with as_a_user(open_place):
        assert names(f"{open_place}/*/x.parquet") == [f"{open_place}/{name}/x.parquet" for name in "ab"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hidden names, names with wildcards, links to a file, to a directory and to nothing, and one to itself."""
    place = tmp_path_factory.mktemp("tree")
    fill(place, "a/x.p", "a/b/x.p", "a/.h/x.p", ".h/x.p", "b/c/d/y.p", "b/[1]/x.p", "c.p", ".x.p", "a/a", "d/**/x.p")
    (place / "link").symlink_to(place / "a")
    (place / "a" / "file").symlink_to(place / "c.p")
    (place / "gone").symlink_to(place / "nothing")
    (place / "self").symlink_to(place / "self")
    (place / "e").mkdir()
    return place


@pytest.mark.parametrize("path", ["d/part[1].p", "d[1]", "d[1]/*.p", "d[1]/part1.p"])
def test_an_entry_of_just_this_name_is_meant(tmp_path: Path, path: str) -> None:
    fill(tmp_path, "d/part[1].p", "d/part1.p", "d[1]/part1.p", "d1/part1.p")
    wanted = "d/part[1].p" if path.startswith("d/") else "d[1]/part1.p"
    assert names(f"{tmp_path}/{path}") == [f"{tmp_path}/{wanted}"]
    assert names(f"{tmp_path}/d/part[0-9].p") == [f"{tmp_path}/d/part1.p"]


PARTS = ["*", "**", "a", "b", "[ab]", "x.p", "*.p", ".*", ".h", "?", "c.p", "self", "gone", "[[]1]", "nothing", "l*k"]


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), st.sampled_from(["", "/"]))
def test_patterns_match_what_glob_matches(tree: Path, parts: list[str], slash: str) -> None:
    pattern = "/".join([str(tree), *parts]) + slash
    if any(wildcard in "".join(parts) for wildcard in "*?["):
        wanted = {path.rstrip("/") for path in glob(pattern, recursive=True)}  # noqa: PTH207 - what it is held to
        assert set(matching_paths(pattern)) == wanted


@pytest.mark.parametrize("end", ["/", "//", "/."])
def test_a_slash_at_the_end_matches_directories_alone(tmp_path: Path, end: str) -> None:
    fill(tmp_path, "top", "a/x", "b/c/y")
    assert names(f"{tmp_path}/*{end}") == [f"{tmp_path}/a/x", f"{tmp_path}/b/c/y"]
    assert names(f"file://{tmp_path}/*/c{end}") == [f"{tmp_path}/b/c/y"]
    with pytest.raises(NoDataError, match="matches no file"):
        names(f"{tmp_path}/t*{end}")


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("**/f", ["a/f", "a/to_b/f", "b/f", "b/to_a/f", "f"]),
        ("a/**/f", ["a/f", "a/to_b/f", "a/up/b/f", "a/up/f"]),
    ],
)
def test_loops_of_links_end_where_they_come_back(tmp_path: Path, pattern: str, wanted: list[str]) -> None:
    fill(tmp_path, "f", "a/f", "b/f")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "here").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "to_b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "to_a").symlink_to(tmp_path / "a")
    assert names(f"{tmp_path}/{pattern}") == [f"{tmp_path}/{name}" for name in wanted]
