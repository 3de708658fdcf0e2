"""`tdu cache`: what a cache on this host's disk holds."""

from pathlib import Path

from tests.cache.test_host_cache import SPAN, Origin, files, key, open_cache, read
from tests.cli.shell import tdu, tdu_json


def test_show_verify_clear(tmp_path: Path) -> None:
    cache, origin = open_cache(tmp_path), Origin()
    for group in range(3):
        read(cache, group, origin)
    (tmp_path / "other").write_text("not ours")
    seen = tdu_json("cache", "show", tmp_path)
    assert (seen["entries"], seen["ranks"]) == (3, 0)
    assert seen["entry_bytes"] == sum(path.stat().st_size for path in files(tmp_path))
    assert "3 ranges" in tdu("cache", "show", tmp_path).stdout
    assert tdu_json("cache", "verify", tmp_path) == {"whole": 3, "damaged": 0}
    files(tmp_path)[0].write_bytes(b"damaged")
    assert "2 whole, 1 damaged" in tdu("cache", "verify", tmp_path).stdout
    for group in range(3):
        read(cache, group, origin)
    assert len(origin.asked) == 4
    assert tdu_json("cache", "clear", tmp_path)["removed_bytes"] > 3 * SPAN[1]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert cache.ranges(key(1), [SPAN], origin.fetch, 60) == origin.fetch([SPAN])


def test_a_directory_without_a_cache_is_named(tmp_path: Path) -> None:
    assert "has no cache of this user" in tdu("cache", "show", tmp_path, code=2).stderr
