"""Patterns on remote stores: what fsspec's glob matches, but no directory that cannot be listed is passed over."""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

from tests.store.moto_server import BUCKET, Failure, MotoS3
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._store import StoreAccess, open_store
from torch_dataloader_utils._store.remote_pattern import matching_files
from torch_dataloader_utils.errors import ConfigError, InternalError, NoDataError, StoreError

KEYS = ["a/x.p", "a/b/x.p", "a/b/y.p", "b/c/d/y.p", "b/[1]/x.p", "c.p", ".x.p", ".h/x.p", "a.p/z.p", "e/a/b/x.p"]
KEYS += ["a/old-x.p", "f/x#y.p", "f/q?z.p", "f/100%/ü.p"]
PARTS = ["*", "**", "a", "b", "[ab]", "[!a]", "x.p", "*.p", ".*", "?", "c.p", "nothing", "a*", "x*"]
BACKENDS = ["fsspec", "obstore"] if importlib.util.find_spec("obstore") else ["fsspec"]
PATTERNS = ["*/x.p", "[wv]/x.p", "*/*.p", "w*", "w/*", "**/x.p", "*/**", "w/[a]/**/x.p", "*/a/x.p"]


@pytest.fixture(scope="module")
def memory():
    filesystem = fsspec.filesystem("memory")
    for key in KEYS:
        filesystem.pipe_file(f"/tree/{key}", b"1")
    yield filesystem
    filesystem.rm("/tree", recursive=True)


patterns = st.tuples(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), st.sampled_from(["", "/"])).filter(
    lambda drawn: any(wildcard in "".join(drawn[0]) for wildcard in "*?[")
)


def globbed(memory, pattern: str) -> set[str]:
    """What fsspec's glob matches, and all files below the directories among it."""
    return {
        file
        for name, info in memory.glob(pattern, detail=True).items()
        for file in ([name] if info["type"] == "file" else memory.find(name))
    }


@given(patterns)
def test_patterns_match_what_the_glob_of_fsspec_matches(memory, drawn):
    parts, slash = drawn
    pattern = "/".join(["/tree", *parts])
    assert set(matching_files(memory, pattern, directories_only=bool(slash))) == globbed(memory, pattern + slash)


@pytest.fixture(scope="module")
def lasting_tree(lasting_s3: MotoS3) -> Iterator[str]:
    """A bucket of its own with the same tree as in memory."""
    lasting_s3.client.create_bucket(Bucket="patterns")
    for key in KEYS:
        lasting_s3.client.put_object(Bucket="patterns", Key=f"tree/{key}", Body=b"1")
    yield "s3://patterns/tree/"
    for key in KEYS:
        lasting_s3.client.delete_object(Bucket="patterns", Key=f"tree/{key}")
    lasting_s3.client.delete_bucket(Bucket="patterns")


def access_through(backend: str, access: StoreAccess) -> StoreAccess:
    return StoreAccess.of(access.options, remote=replace(access.remote, backend=backend))


@pytest.fixture(scope="module")
def accesses(s3_access: StoreAccess) -> list[StoreAccess]:
    return [access_through(backend, s3_access) for backend in BACKENDS]


@pytest.mark.slow
@given(patterns)
def test_all_clients_of_s3_find_the_same_objects(memory, lasting_tree, accesses, drawn):
    pattern = "/".join(drawn[0]) + drawn[1]
    wanted = sorted(name.removeprefix("/tree/") for name in globbed(memory, f"/tree/{pattern}"))
    for access in accesses:
        try:
            entries = open_store(lasting_tree, access).list_files(f"{lasting_tree}{pattern}").entries
        except NoDataError:
            entries = ()
        assert [entry.path.removeprefix(lasting_tree) for entry in entries] == wanted


@pytest.fixture(params=BACKENDS)
def access(request: pytest.FixtureRequest, s3_access: StoreAccess) -> StoreAccess:
    return access_through(request.param, s3_access)


@pytest.mark.slow
def test_any_depth_means_whole_names(s3: MotoS3, access: StoreAccess) -> None:
    for key in ("d/train-0", "d/old-train-1", "d/s/train-2", "d/sub/deep/train-3"):
        s3.put(key, b"1")
    assert names("d/**/train-*", access) == ["d/s/train-2", "d/sub/deep/train-3", "d/train-0"]


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_bucket_is_a_directory(s3: MotoS3, access: StoreAccess, slash: str) -> None:
    s3.put("top.p", b"1")
    s3.put("d/x.p", b"1")
    listing = open_store("s3://bucket", access).list_files(f"s3://bucket{slash}")
    assert [entry.path for entry in listing.entries] == ["s3://bucket/d/x.p", "s3://bucket/top.p"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", ["d/x#y.p", "d/q?z.p", "d/100%/x.p", "d#1/x.p", "d/x::y.p", "d::1/x.p", "d/x::zip", "d/x::file:/y.p"]
)
def test_objects_whose_names_have_characters_of_urls_are_read(s3: MotoS3, access: StoreAccess, key: str) -> None:
    url = s3.put(key, b"content")
    store = open_store(url, access)
    assert names("**", access) == [key]
    assert bytes(store.tail(url, 4).data) == b"tent"
    assert bytes(store.ranges(url, [(0, 3)], store.stat(url).identity)[0]) == b"con"


def test_a_file_whose_name_looks_like_a_chain_of_clients_is_one_of_its_directory(
    s3: MotoS3, access: StoreAccess
) -> None:
    for name in ("x::y", "x", "zip::x"):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"name": [name]}), sink)
        s3.put(f"d/{name}.parquet", sink.getvalue().to_pybytes())
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/d", num_workers=0, output_format="dict", storage_options=access
    )
    assert sorted(name for batch in loader for name in batch["name"]) == ["x", "x::y", "zip::x"]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["d/*", "d/day*", "*/*", "d/**", "**/day*"])
def test_an_object_beside_a_prefix_of_its_name_is_kept(s3: MotoS3, access: StoreAccess, pattern: str) -> None:
    for key in ("d/day1", "d/day1/more.p", "d/day2"):
        s3.put(key, b"1")
    assert names(pattern, access) == ["d/day1", "d/day1/more.p", "d/day2"]


def test_an_empty_part_is_one_of_the_key(s3: MotoS3, s3_access: StoreAccess) -> None:
    s3.put("d/x.p", b"1")
    with pytest.raises(NoDataError):
        names("d//*.p", s3_access)
    for key in ("d//x.p", "d//s/x.p", "d/s//x.p", "d/a::file://x"):
        s3.put(key, b"1")
    assert names("d//*.p", s3_access) == ["d//x.p"]
    assert names("d/a*//*", s3_access) == ["d/a::file://x"]
    assert names("d//**/*.p", s3_access) == ["d//s/x.p", "d//x.p"]
    assert names("d/*//x.p", s3_access) == ["d/s//x.p"]
    assert names("d/**/x.p", s3_access) == ["d//s/x.p", "d//x.p", "d/s//x.p", "d/x.p"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["d/part[1].p", "d[1]", "d[1]/*.p", "d[1]/part1.p"])
def test_an_object_or_prefix_of_just_this_name_is_meant(s3: MotoS3, access: StoreAccess, path: str) -> None:
    for key in ("d/part[1].p", "d/part1.p", "d[1]/part1.p", "d1/part1.p"):
        s3.put(key, b"1")
    assert names(path, access) == ["d/part[1].p" if path.startswith("d/") else "d[1]/part1.p"]
    assert names("d/part[0-9].p", access) == ["d/part1.p"]


class ListsElsewhere(AbstractFileSystem):
    """A client whose names do not begin as the directory does."""

    def ls(self, path, detail=True, **options):
        return [{"name": f"elsewhere/{path}/x.p", "type": "file", "size": 1}]


def test_names_that_do_not_lie_in_their_directory_are_not_cut_to_something_else() -> None:
    with pytest.raises(InternalError, match=r"lists elsewhere/d/x\.p below d, where it does not lie"):
        matching_files(ListsElsewhere(), "d/**/*.p")


@pytest.mark.parametrize("part", ["**.p", "a**", "a**b", "***", "**[12]"])
@pytest.mark.parametrize("place", ["memory://tree", "https://host/tree", "simplecache::memory://tree", "/tree"])
def test_two_stars_inside_of_a_name_say_what_to_write(place: str, part: str) -> None:
    with pytest.raises(ConfigError, match=r'must stand between slashes alone\. Instead of ".*" write "\w?\*'):
        open_store(place).list_files(f"{place}/**/{part}")


@pytest.mark.parametrize("path", ["", "/", "/*.parquet", "/**/*.parquet", "/a.parquet"])
@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_local_files_behind_a_cache_keep_their_place(tmp_path: Path, cache: str, path: str) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(f"{cache}::file://{tmp_path}{path}", num_workers=0)
    assert [value for batch in loader for value in batch["x"].tolist()] == [1, 2]


def test_links_behind_a_cache_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a.p").write_bytes(b"1")
    (tmp_path / "b.p").symlink_to(tmp_path / "a.p")
    (tmp_path / "c").symlink_to(tmp_path / "gone")
    url = f"simplecache::file://{tmp_path}"
    listing = open_store(url).list_files(f"{url}/*.p")
    assert [entry.path for entry in listing.entries] == [f"{url}/a.p", f"{url}/b.p"]
    with pytest.raises(NoDataError, match=r"/c is a broken link: its target does not exist"):
        open_store(url).list_files(url)


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_look_up_says_when_an_object_was_written_beside_its_etag(
    backend: str, s3: MotoS3, s3_access: StoreAccess
) -> None:
    url = s3.put("a", b"x")
    stat = open_store(url, access_through(backend, s3_access)).stat(url)
    written = s3.client.head_object(Bucket=BUCKET, Key="a")
    assert (stat.identity, stat.modified_ns) == (
        written["ETag"].strip('"'),
        int(written["LastModified"].timestamp()) * 10**9,
    )
