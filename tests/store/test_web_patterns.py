"""Patterns and directories of web servers, whose directories are pages with links."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.web_server import WebServer, web_server
from torch_dataloader_utils import StructuredDataset, scan_files
from torch_dataloader_utils._store import RemoteOptions, RetryPolicy, StoreAccess, open_store
from torch_dataloader_utils._store.client import open_client
from torch_dataloader_utils.errors import CorruptFileError, NoDataError, StoreError

SORTED, TOP, UP = "?C=N;O=D", "#top", "/"  # what pages link to besides their entries


def page(*links: str) -> bytes:
    return "".join(f'<a href="{link}">.</a>' for link in (SORTED, TOP, UP, *links)).encode()


def table(*values: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": values}), sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        pages = {
            "": page("data/", "other.parquet"),
            "data": page("/data/year=1/", "year=2/", "top.parquet", "note.txt"),
            "data/year=1": page("/data/", "a.parquet", "c[1].parquet"),
            "data/year=2": page("../", "b.parquet"),
        }
        server.files |= pages | {f"{name}/": text for name, text in pages.items() if name}
        server.files |= {
            "other.parquet": table(0),
            "data/top.parquet": table(1),
            "data/note.txt": b"no table",
            "data/year=1/a.parquet": table(2, 3),
            "data/year=1/c[1].parquet": table(4),
            "data/year=2/b.parquet": table(5, 6, 7),
        }
        yield server


ALL = ["data/top.parquet", "data/year=1/a.parquet", "data/year=1/c[1].parquet", "data/year=2/b.parquet"]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("data/*/*.parquet", ALL[1:]),
        ("data/**/*.parquet", ALL),
        ("*.parquet", ["other.parquet"]),
        ("*/year=1/a.*", ["data/year=1/a.parquet"]),
        ("data/*/c[1].*", ["data/year=1/c[1].parquet"]),
        ("data/year=*", ALL[1:]),
        ("data/*/", ALL[1:]),
        ("*/year=1/", ALL[1:3]),
        ("data/", ["data/note.txt", *ALL]),
        ("data/top.parquet", ["data/top.parquet"]),
    ],
)
def test_files_are_found_by_the_links_of_pages(web: WebServer, path: str, wanted: list[str]) -> None:
    url = web.url(path)
    listing = open_store(url).list_files(url)
    assert [entry.path for entry in listing.entries] == [web.url(each) for each in wanted]
    assert [entry.stat.size for entry in listing.entries] == [len(web.files[each]) for each in wanted]


def test_rows_and_partition_values_of_directories_are_read(web: WebServer) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        path=web.url("data/*/*.parquet"), partitioning="hive", num_workers=0
    )
    (batch,) = loader
    assert batch["x"].tolist() == [2, 3, 4, 5, 6, 7]
    assert batch["year"].tolist() == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("path", ["nothing/*.parquet", "data/*.orc", "nothing/", "data/top*/", "data//*"])
def test_what_matches_nothing_is_named(web: WebServer, path: str) -> None:
    with pytest.raises(NoDataError, match="matches no file"):
        scan_files(web.url(path))


@pytest.mark.full
def test_a_page_that_fails_for_good_loses_no_directory(web: WebServer) -> None:
    access = StoreAccess(remote=RemoteOptions(retry=RetryPolicy(most_seconds=4, first_delay_seconds=0.01)))
    url = web.url("data/*/*.parquet")
    wanted = open_store(url, access).list_files(url)
    web.requests.clear()
    web.faults[2] = 503
    assert open_store(url, access).list_files(url) == wanted
    web.requests.clear()
    web.faults |= dict.fromkeys(range(2, 200), 503)
    with pytest.raises(StoreError, match="503"):
        open_store(url, access).list_files(url)


def test_a_page_is_no_table(web: WebServer) -> None:
    with pytest.raises(CorruptFileError, match="not a Parquet file"):
        scan_files(web.url("data"))


def test_a_session_that_the_user_makes_has_the_times_that_the_user_gives_it(web: WebServer) -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def get_client(**options: object) -> object:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600), **options)

    url = web.url("other.parquet")
    assert open_store(url, StoreAccess.of({"get_client": get_client})).stat(url).size == len(web.files["other.parquet"])


def test_a_server_that_takes_no_connection_is_given_up_within_the_limit_of_a_first_contact() -> None:
    default = pytest.importorskip("aiohttp.client").DEFAULT_TIMEOUT
    filesystem = open_client("http://host/a", "http", StoreAccess.of())
    timeout = filesystem.client_kwargs["timeout"]
    assert (timeout.total, timeout.sock_connect) == (default.total, 15)
