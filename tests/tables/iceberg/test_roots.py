"""Which paths lie inside the roots that a user allows."""

from urllib.parse import unquote

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.discover.roots import Roots
from torch_dataloader_utils.errors import ConfigError, UnsupportedFeatureError

ROOT = "https://host/data"

# What makes parts, climbs, encodes, or ends the path.
PIECES = [
    "data",
    "secret",
    "/",
    "//",
    ".",
    "..",
    "%2E",
    "%2e",
    "%252E",
    "%2F",
    "%5C",
    "\\",
    "?",
    "#",
    "\t",
    ";",
    "%",
    "25",
]


def allows(path: str, root: str = ROOT) -> bool:
    try:
        Roots.of([root]).check(path)
    except UnsupportedFeatureError:
        return False
    return True


@pytest.mark.parametrize(
    "key",
    [
        "/data/../secret/x",
        "/data/%2E%2E/secret/x",
        "/data/.%2e/secret/x",
        "/data/%252E%252E/secret/x",
        "/data/..%2Fsecret/x",
        "/data/..\\secret/x",
        "/data/..%5csecret/x",
        "/data/.\t./secret/x",
        "/data/..;/secret/x",
        "/secret//../data/x",
        "/secret?/../data/x",
        "/secret#/../data/x",
        "/secret%2F..%2Fdata/x",
        "/data%2Fx",
        "/data-2/x",
        "/data/%" + "25" * 10 + "41",
    ],
)
def test_no_spelling_of_a_web_path_leaves_its_root(key: str) -> None:
    assert not allows(f"https://host{key}")
    assert allows(f"https://host{key}", "https://host")


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("https://host/data/x", ROOT),
        ("HTTPS://Host/data/x", "https://hOST/data/"),
        ("https://host/data/x?signature=a/../b", ROOT),
        ("https://host/data/x", "https://host/data?signature=a/../b"),
        ("https://host/my%20data/day=1%2F2/x", "https://host/my data"),
        ("https://host/data/./a..b/x", ROOT),
    ],
)
def test_a_web_path_inside_is_allowed_however_it_is_spelled(path: str, root: str) -> None:
    assert allows(path, root)


@pytest.mark.parametrize("path", ["https://host.evil/data/x", "http://host/data/x", "https://host@evil/data/x"])
def test_another_host_or_scheme_is_refused(path: str) -> None:
    assert not allows(path)
    assert not allows(path, "https://host")


@pytest.mark.slow
@settings(max_examples=effort(300))
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_what_the_client_asks_for_lies_inside_when_it_is_allowed(key: str) -> None:
    path = f"https://host/{key}"
    if allows(path):
        asked = fsspec.filesystem("https").encode_url(path)
        parts = [part for part in unquote(asked.path).split("/") if part not in ("", ".")]
        assert (asked.host, parts[0]) == ("host", "data")
        assert ".." not in parts


def test_buckets_and_local_names_are_taken_as_they_are() -> None:
    assert allows("s3://b/t/%2E%2E/x", "s3a://b/t")
    assert not allows("s3://b/t/../x", "s3://b/t")
    assert not allows("s3://B/t/x", "s3://b/t")
    assert allows("/data/%2E%2E/x", "/data")


def test_a_root_that_climbs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'https://host/data/%2E%2E: write the path without ".."'):
        Roots.of(["https://host/data/%2E%2E"])
