"""URLs that name a server to connect to, whose clients know files by their names on it: ftp, sftp, smb, hdfs."""

import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.arrow import HadoopFileSystem
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.github import GithubFileSystem
from fsspec.registry import _registry
from fsspec.spec import AbstractFileSystem

from torch_dataloader_utils import RemoteOptions, StructuredDataset, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._store import StoreAccess, open_store
from torch_dataloader_utils.errors import ConfigError, FileChangedError

PLAIN = RemoteOptions(keep_footers=False)


class Servers(AbstractFileSystem):
    """A client of servers that are directories below `root`, by name."""

    cachable = False

    def __init__(self, root: str, host: str = "default", org: str = "", repo: str = "", sha: str = "", **options: Any):
        super().__init__()
        self.place = Path(root, org, repo, sha) if org else Path(root, host)

    def _at(self, path: str) -> Path:
        key = self._strip_protocol(path)
        if not key.startswith(self.root_marker):
            raise FileNotFoundError(f"{path} in the home directory")
        return self.place / key.lstrip("/")

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        above = self._strip_protocol(path).rstrip("/")
        below = [
            f"{above}/{each.name}" if above or self.root_marker else each.name for each in self._at(path).iterdir()
        ]
        return [self._about(name) for name in below] if detail else below

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return self._about(path)

    def _about(self, path: str) -> dict[str, Any]:
        found = self._at(path).stat()
        kind = "directory" if self._at(path).is_dir() else "file"
        return {"name": self._strip_protocol(path), "size": found.st_size, "type": kind, "mtime": found.st_mtime}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        return self._at(path).read_bytes()[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._at(path).write_bytes(value)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return self._at(path).open(mode)


class Hdfs(Servers):
    root_marker = "/"
    _strip_protocol = HadoopFileSystem._strip_protocol
    _get_kwargs_from_urls = staticmethod(HadoopFileSystem._get_kwargs_from_urls)


class Ftp(Servers):
    root_marker = "/"
    _strip_protocol = FTPFileSystem._strip_protocol
    _get_kwargs_from_urls = staticmethod(FTPFileSystem._get_kwargs_from_urls)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """From the listing of its directory, which is kept."""
        key, above = self._strip_protocol(path), self._parent(self._strip_protocol(path))
        if key == "/":
            return {"name": "/", "size": 0, "type": "directory"}
        if above not in self.dircache:
            self.dircache[above] = self.ls(above)
        found = [about for about in self.dircache[above] if about["name"] == key]
        if not found:
            raise FileNotFoundError(path)
        return found[0]

    def invalidate_cache(self, path: str | None = None) -> None:
        if path is None:
            self.dircache.clear()
        else:
            self.dircache.pop(path, None)


class Github(Servers):
    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return GithubFileSystem._strip_protocol(path)

    _get_kwargs_from_urls = staticmethod(GithubFileSystem._get_kwargs_from_urls)


class Azure(Servers):
    """Names begin with a container; the account is in the URL alone, as with adlfs."""

    root_marker = ""

    def __init__(self, root: str, account_name: str | None = None, **options: Any):
        assert account_name, "adlfs needs an account"
        super().__init__(root, host=account_name, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        authority, slash, key = path.removeprefix("abfs://").strip("/").partition("/")
        return authority.partition("@")[0] + slash + key

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        account = path.removeprefix("abfs://").partition("/")[0].partition("@")[2].partition(".")[0]
        return {"account_name": account} if account else {}


def write(root: Path, name: str, rows: range) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": list(rows)}), root / name)


@pytest.fixture(params=["hdfs", "ftp"])
def scheme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Of the two hosts "one" and "two", which have files of the same names."""
    monkeypatch.setitem(_registry, request.param, {"hdfs": Hdfs, "ftp": Ftp}[request.param])
    for host, first in (("one", 0), ("two", 1000)):
        write(tmp_path / host, "d/f0.parquet", range(first, first + 10))
        write(tmp_path / host, "d/e/f1.parquet", range(first + 10, first + 20))
    return request.param


def rows(path: Any, root: Path, **options: Any) -> list[int]:
    options = {"num_workers": 0, **options}
    loader, _ = StructuredDataset.create_dataloader(path, storage_options={"root": str(root)}, remote=PLAIN, **options)
    return sorted(value for batch in loader for value in batch["x"].tolist())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("one/d", range(20)),
        ("one/d/", range(20)),
        ("one", range(20)),
        ("one/d/f0.parquet", range(10)),
        ("one/d/f?.parquet", range(10)),
        ("one/*/*.parquet", range(10)),
        ("one/**/f1.parquet", range(10, 20)),
        ("two:8020/d", range(1000, 1020)),
        ("me@two/d", range(1000, 1020)),
    ],
)
def test_files_of_a_server_are_read(scheme: str, tmp_path: Path, path: str, expected: range) -> None:
    assert rows(f"{scheme}://{path}", tmp_path) == list(expected)


@pytest.mark.processes
def test_worker_processes_read_files_of_several_servers_with_the_same_names(scheme: str, tmp_path: Path) -> None:
    paths = [f"{scheme}://one/d", f"{scheme}://two/d"]
    expected = [*range(20), *range(1000, 1020)]
    assert rows(paths, tmp_path) == expected
    assert rows(paths, tmp_path, num_workers=2, multiprocessing_context="fork") == expected


def test_a_file_that_was_replaced_is_noticed(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://one/d/f0.parquet"
    store = open_store(url, StoreAccess.of({"root": str(tmp_path)}, remote=PLAIN))
    identity = store.stat(url).identity
    write(tmp_path / "one", "d/f0.parquet", range(50))
    with pytest.raises(FileChangedError, match="not the file that was planned"):
        store.ranges(url, [(0, 4)], identity)


@pytest.mark.parametrize("name", ["blob_id", "xet_hash", "sha", "hex", "modificationTime"])
def test_a_file_of_the_same_size_is_noticed_by_whatever_its_client_calls_a_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    class Versions(Hdfs):
        """As hf, github, git and webhdfs tell of a file: by a digest of its content, or a time that no other has."""

        def _about(self, path: str) -> dict[str, Any]:
            about = super()._about(path)
            return {"name": about["name"], "size": about["size"], "type": about["type"], name: about["mtime"]}

    def write_plain(first: int) -> int:
        """The bytes that it takes, whatever the rows are."""
        pq.write_table(pa.table({"x": range(first, first + 10)}), path, compression="none", use_dictionary=False)
        return path.stat().st_size

    monkeypatch.setitem(_registry, "hdfs", Versions)
    path = tmp_path / "one" / "f.parquet"
    path.parent.mkdir()
    size = write_plain(0)
    loader, _ = StructuredDataset.create_dataloader(
        "hdfs://one/f.parquet", storage_options={"root": str(tmp_path)}, remote=PLAIN, num_workers=0, batch_size=4
    )
    assert write_plain(100) == size
    with pytest.raises(FileChangedError, match="not the file that was planned"):
        list(loader)


def test_a_url_without_a_server_means_the_configured_one(scheme: str, tmp_path: Path) -> None:
    write(tmp_path / "default", "d/f0.parquet", range(5))
    assert rows(f"{scheme}:///d/*.parquet", tmp_path) == [0, 1, 2, 3, 4]


def test_an_inventory_of_a_server_is_saved_there_and_holds_whole_urls(scheme: str, tmp_path: Path) -> None:
    options = {"storage_options": {"root": str(tmp_path)}, "remote": PLAIN}
    inventory = scan_files(f"{scheme}://me@one:21/d", **options)
    assert list(inventory.files.paths) == [f"{scheme}://me@one:21/d/{name}" for name in ("e/f1.parquet", "f0.parquet")]
    save_inventory(inventory, f"{scheme}://two/saved", **options)
    loaded = load_inventory(f"{scheme}://two/saved", **options)
    assert loaded.fingerprint() == inventory.fingerprint()
    assert rows(None, tmp_path, inventory=loaded) == list(range(20))


def test_servers_behind_a_cache_are_kept_apart(scheme: str, tmp_path: Path) -> None:
    options = {scheme: {"root": str(tmp_path)}}
    paths = [f"simplecache::{scheme}://{host}/d" for host in ("one", "two")]
    loader, _ = StructuredDataset.create_dataloader(paths, storage_options=options, remote=PLAIN, num_workers=0)
    assert sorted(value for batch in loader for value in batch["x"].tolist()) == [*range(20), *range(1000, 1020)]


def test_a_password_is_refused_wherever_in_a_list_it_stands(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds a password") as caught:
        rows([f"{scheme}://one/d", f"{scheme}://me:canary@two/d"], tmp_path)
    assert "canary" not in str(caught.value)


def test_archives_of_a_list_are_read_each(tmp_path: Path) -> None:
    for name, first in (("1.zip", 0), ("2.zip", 3)):
        write(tmp_path, "a.parquet", range(first, first + 3))
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.write(tmp_path / "a.parquet", "a.parquet")
    paths = [f"zip://a.parquet::file://{tmp_path}/{name}" for name in ("1.zip", "2.zip")]
    loader, _ = StructuredDataset.create_dataloader(paths, num_workers=0, remote=PLAIN)
    assert sorted(value for batch in loader for value in batch["x"].tolist()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.processes
def test_accounts_of_azure_are_kept_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(_registry, "abfs", Azure)
    folders = [f"abfs://box@{account}.dfs.core.windows.net/d" for account in ("one", "two")]
    for number, account in enumerate(("one", "two")):
        write(tmp_path, f"{account}/box/d/a.parquet", range(10 * number, 10 * number + 10))
    for end in ("", "/*.parquet", "/a.parquet"):
        paths = [f"{folder}{end}" for folder in folders]
        assert rows(paths, tmp_path, num_workers=2, multiprocessing_context="fork") == list(range(20))
        found = scan_files(paths, storage_options={"root": str(tmp_path)}, remote=PLAIN)
        assert list(found.files.paths) == [f"{folder}/a.parquet" for folder in folders]
    plain = scan_files("abfs://box/d", storage_options={"root": str(tmp_path), "account_name": "two"}, remote=PLAIN)
    assert list(plain.files.paths) == ["abfs://box/d/a.parquet"]


def test_a_branch_of_github_is_read_in_the_form_of_fsspec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(_registry, "github", Github)
    write(tmp_path, "org/repo/main/d/a.parquet", range(3))
    url = "github://org:repo@main/d"
    assert rows(url, tmp_path) == rows(f"{url}/*.parquet", tmp_path) == rows(f"{url}/a.parquet", tmp_path) == [0, 1, 2]
    options = {"storage_options": {"root": str(tmp_path)}, "remote": PLAIN}
    save_inventory(scan_files(url, **options), tmp_path / "saved")
    assert list(load_inventory(tmp_path / "saved").files.paths) == [f"{url}/a.parquet"]


@pytest.mark.slow
def test_threads_build_ranks_first_at_a_client_with_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    together, overlaps = Barrier(2), []

    def cat_file(self: Any, path: str, start: int, end: int) -> bytes:
        try:
            together.wait(0.5)
            overlaps.append(path)
        except BrokenBarrierError:
            pass
        return bytes(end - start)

    monkeypatch.setattr(FTPFileSystem, "_connect", lambda self: setattr(self, "ftp", BytesIO()))
    monkeypatch.setattr(FTPFileSystem, "cat_file", cat_file)
    store = open_store("ftp://host/a", StoreAccess.of(remote=PLAIN))
    with ThreadPoolExecutor(2) as pool:
        read = pool.map(lambda name: store.ranges(f"ftp://host/{name}", [(0, 4)]), ("a", "b"))
        assert [bytes(data) for [data] in read] == [bytes(4)] * 2
    assert overlaps == []
