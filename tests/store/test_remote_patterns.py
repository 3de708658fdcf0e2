"""Patterns on remote stores: what fsspec's glob matches, but no directory that cannot be listed is passed over."""

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.moto_server import BUCKET, Failure, MotoS3
from torch_dataloader_utils._store import StoreAccess, open_store
from torch_dataloader_utils._store.remote_pattern import matching_files
from torch_dataloader_utils.errors import StoreError

KEYS = ["a/x.p", "a/b/x.p", "a/b/y.p", "b/c/d/y.p", "b/[1]/x.p", "c.p", ".x.p", ".h/x.p", "a.p/z.p", "e/a/b/x.p"]
PARTS = ["*", "**", "a", "b", "[ab]", "[!a]", "x.p", "*.p", ".*", "?", "c.p", "nothing", "a*"]
PATTERNS = ["*/x.p", "[wv]/x.p", "*/*.p", "w*", "w/*", "**/x.p", "*/**", "w/[a]/**/x.p", "*/a/x.p"]


@pytest.fixture(scope="module")
def memory():
    filesystem = fsspec.filesystem("memory")
    for key in KEYS:
        filesystem.pipe_file(f"/tree/{key}", b"1")
    yield filesystem
    filesystem.rm("/tree", recursive=True)


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4))
def test_patterns_match_what_the_glob_of_fsspec_matches(memory, parts):
    pattern = "/".join(["/tree", *parts])
    if any(wildcard in "".join(parts) for wildcard in "*?["):
        wanted = {
            file
            for name, info in memory.glob(pattern, detail=True).items()
            for file in ([name] if info["type"] == "file" else memory.find(name))
        }
        assert set(matching_files(memory, pattern)) == wanted


@pytest.fixture
def filled(s3: MotoS3) -> MotoS3:
    for key in ("w/x.p", "w/a/x.p", "w/a/b/x.p", "v/x.p", "v/a/x.p"):
        s3.put(key, b"1")
    return s3


def names(pattern: str, access: StoreAccess) -> list[str]:
    url = f"s3://{BUCKET}/{pattern}"
    return [entry.path.removeprefix(f"s3://{BUCKET}/") for entry in open_store(url, access).list_files(url).entries]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_listing_that_fails_once_is_sent_again(filled: MotoS3, s3_access: StoreAccess, pattern: str) -> None:
    wanted = names(pattern, s3_access)
    filled.failures.append(Failure("GET", "list-type", first=len(pattern) % 2, count=1))
    assert names(pattern, s3_access) == wanted != []


@pytest.mark.parametrize("pattern", ["*/x.*", "[wv]/?.p", "w/*", "*/**", "w/**/x.p", "w*"])
def test_a_directory_that_may_not_be_read_is_an_error(filled: MotoS3, s3_access: StoreAccess, pattern: str) -> None:
    filled.failures.append(Failure("GET", r"prefix=w%2F", status="403 Forbidden", code="AccessDenied"))
    with pytest.raises(StoreError, match="no permission to list"):
        names(pattern, s3_access)
    assert names("v/*.p", s3_access) == ["v/x.p"]
