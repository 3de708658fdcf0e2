"""Whether files of an inventory are among those that a path names."""

import pytest

from torch_dataloader_utils.datasets.files import lies_in


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "trips" / "year=2024").mkdir(parents=True)
    (tmp_path / "trips" / "year=2024" / "a.parquet").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [
        "trips",
        "trips/",
        "./trips/year=2024/a.parquet",
        "~/trips",
        "trips/*/*.parquet",
        "trips/year=*",
        "**/a.parquet",
        "file://{here}/trips",
        "{here}/other/../trips",
        "/",
    ],
)
def test_local_paths_have_many_spellings(here, path):
    assert lies_in(str(here / "trips/year=2024/a.parquet"), path.format(here=here))


@pytest.mark.parametrize(
    "path", ["tri", "trips/year=2023", "trips/year=2024/a", "other/*.parquet", "nowhere", "s3://trips", "memory://x"]
)
def test_other_local_paths_are_elsewhere(here, path):
    assert not lies_in(str(here / "trips/year=2024/a.parquet"), path)


def test_links_lead_to_the_directory_that_they_name(here):
    (here / "link").symlink_to("trips")
    (here / "trips" / "b.parquet").symlink_to("year=2024/a.parquet")
    assert lies_in(str(here / "trips/b.parquet"), "link")
    assert lies_in(str(here / "link/b.parquet"), "trips")
    assert not lies_in(str(here / "link/b.parquet"), "trips/year=2024/gone")


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("s3://bucket/trips/a.parquet", "s3://bucket/trips/"),
        ("s3://bucket/trips/a.parquet", "s3a://bucket"),
        ("s3://bucket/trips/a.parquet", "s3://bucket/trips/*.parquet"),
        ("s3://bucket/trips/a.parquet", "simplecache::s3://bucket/trips"),
        ("zip://d/a.csv::s3://bucket/d.zip", "zip://*/*.csv::s3://bucket/d.zip"),
        ("memory://d/a.parquet", "memory:///d"),
        ("https://host/d/a.parquet", "https://host/d/?token=x"),
    ],
)
def test_urls_have_many_spellings(file, path):
    assert lies_in(file, path)


@pytest.mark.parametrize("path", ["s3://bucket/val", "s3://other/trips", "s3://bucket/tri", "trips"])
def test_other_urls_are_elsewhere(path):
    assert not lies_in("s3://bucket/trips/a.parquet", path)
