"""Data sets of the Hugging Face Hub, through its real client and a server that speaks its protocol as far as needed."""

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from random import randbytes
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import QUICK
from tests.faults.test_other_stores import serving, span_of
from torch_dataloader_utils import RemoteOptions, StructuredDataset, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._store.hub import HubFile
from torch_dataloader_utils.errors import NoDataError, StoreError

pytest.importorskip("huggingface_hub")

REPOSITORY = "datasets/team/rows"
REMOTE = RemoteOptions(retry=QUICK, keep_footers=False)
Reply = tuple[int, dict[str, str], bytes]


def parquet(start: int, rows: int) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"row": range(start, start + rows), "text": [randbytes(20_000) for _ in range(rows)]})
    pq.write_table(table, sink, row_group_size=50)
    return sink.getvalue()


@dataclass
class Hub:
    """commits: files by path, by commit; the branch main is at the last. refusals: replies that come before others."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refusals: list[Reply] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    token: str = ""
    large: bool = True  # files come from another address, as those of LFS do

    def push(self, files: dict[str, bytes]) -> str:
        commit = sha1(str(len(self.commits)).encode()).hexdigest()
        self.commits[commit] = files
        return commit

    def commit_of(self, revision: str) -> str | None:
        found = list(self.commits)[-1] if revision in ("", "main") else revision
        return found if found in self.commits else None

    def __call__(self, path: str, headers: dict[str, str]) -> Reply:
        parts = urlsplit(path)
        self.requests.append((parts.path, headers))
        if self.token and "/cdn/" not in parts.path and headers.get("authorization") != f"Bearer {self.token}":
            return 401, {}, b'{"error": "Invalid credentials"}'
        if self.refusals and "/resolve/" in parts.path:
            return self.refusals.pop(0)
        if found := re.fullmatch(rf"/api/{REPOSITORY}(?:/revision/([^/]+))?", parts.path):
            return self.revision(unquote(found[1] or ""))
        if found := re.fullmatch(rf"/api/{REPOSITORY}/tree/([^/]+)/?(.*)", parts.path):
            return self.tree(unquote(found[1]), unquote(found[2]), "recursive=True" in parts.query)
        if found := re.fullmatch(rf"/(cdn|{REPOSITORY}/resolve)/([^/]+)/(.+)", parts.path):
            return self.content(found[1] == "cdn", unquote(found[2]), unquote(found[3]), headers)
        return 404, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Repository not found"}'

    def revision(self, revision: str) -> Reply:
        commit = self.commit_of(revision)
        if commit is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b'{"error": "Invalid rev id"}'
        return 200, {}, json.dumps({"id": "team/rows", "sha": commit, "tags": []}).encode()

    def tree(self, revision: str, folder: str, recursive: bool) -> Reply:
        below = f"{folder}/" if folder else ""
        files = self.commits[self.commit_of(revision) or ""]
        entries: dict[str, dict[str, Any]] = {}
        for name, content in files.items():
            if not name.startswith(below):
                continue
            child = below + name[len(below) :].partition("/")[0]
            if child != name:
                entries[child] = {"type": "directory", "path": child, "oid": "0" * 40, "size": 0}
            if child == name or recursive:
                oid = sha1(content).hexdigest()
                entries[name] = {"type": "file", "path": name, "oid": oid, "size": len(content)}
        if not entries:
            return 404, {"X-Error-Code": "EntryNotFound"}, b'{"error": "Entry not found"}'
        return 200, {}, json.dumps(list(entries.values())).encode()

    def content(self, is_cdn: bool, revision: str, name: str, headers: dict[str, str]) -> Reply:
        if self.large and not is_cdn:
            return 302, {"Location": f"/cdn/{self.commit_of(revision)}/{name}"}, b""
        data = self.commits[self.commit_of(revision) or ""][name]
        start, stop = span_of(headers["range"])
        return 206, {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}, data[start:stop]


@contextmanager
def hub_with(files: dict[str, bytes]) -> Iterator[tuple[Hub, dict[str, Any]]]:
    hub = Hub()
    hub.push(files)
    with serving(hub) as (address, _):
        yield hub, {"endpoint": address, "token": False}


FILES = {f"train/{index}.parquet": parquet(index * 100, 100) for index in range(3)} | {"README.md": b"# rows"}


def rows_of(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch["row"].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["train", "train/*.parquet", "train/1.parquet"])
@pytest.mark.parametrize("large", [True, False])
def test_a_data_set_is_read_exactly_and_only_the_ranges_that_are_wanted(path: str, large: bool) -> None:
    with hub_with(FILES) as (hub, options):
        hub.large = large
        loader, _ = StructuredDataset.create_dataloader(
            f"hf://{REPOSITORY}/{path}", columns=["row"], batch_size=32, storage_options=options, remote=REMOTE
        )
        hub.requests.clear()
        assert rows_of(loader) == list(range(100, 200) if "1" in path else range(300))
        spans = [span_of(headers["range"]) for _, headers in hub.requests if "range" in headers]
        assert 0 < sum(stop - start for start, stop in spans) < 0.1 * sum(map(len, FILES.values()))


@pytest.mark.slow
def test_the_inventory_holds_the_commit_so_that_a_push_changes_nothing(tmp_path: Any) -> None:
    with hub_with(FILES) as (hub, options):
        first = next(iter(hub.commits))
        inventory = scan_files(f"hf://{REPOSITORY}/train", storage_options=options, remote=REMOTE)
        assert inventory.files.paths[0] == f"hf://{REPOSITORY}@{first}/train/0.parquet"
        save_inventory(inventory, tmp_path / "rows.inventory")
        hub.push({"train/0.parquet": parquet(7000, 100)})
        loader, _ = StructuredDataset.create_dataloader(
            f"hf://{REPOSITORY}/train",
            inventory=load_inventory(tmp_path / "rows.inventory"),
            storage_options=options,
            remote=REMOTE,
        )
        assert rows_of(loader) == list(range(300))
        now, _ = StructuredDataset.create_dataloader(f"hf://{REPOSITORY}/train", storage_options=options, remote=REMOTE)
        assert rows_of(now) == list(range(7000, 7100))
        pinned, _ = StructuredDataset.create_dataloader(
            f"hf://{REPOSITORY}@{first}/train", storage_options=options, remote=REMOTE
        )
        assert rows_of(pinned) == list(range(300))


@pytest.mark.slow
def test_a_rate_limit_is_waited_for_and_a_broken_reply_is_asked_for_again() -> None:
    with hub_with(FILES) as (hub, options):
        loader, _ = StructuredDataset.create_dataloader(
            f"hf://{REPOSITORY}/train", storage_options=options, remote=REMOTE
        )
        hub.refusals = [
            (429, {"Retry-After": "1"}, b""),
            (503, {}, b""),
            (206, {"Content-Range": "bytes 0-3/9"}, b"1234"),
        ]
        assert rows_of(loader) == list(range(300))
        assert loader.metrics().retries >= 3


@pytest.mark.slow
def test_a_private_data_set_needs_its_token_which_the_content_server_does_not_get() -> None:
    with hub_with(FILES) as (hub, options):
        hub.token = "secret-of-the-hub"
        with pytest.raises((StoreError, NoDataError), match="401") as refused:
            scan_files(f"hf://{REPOSITORY}/train", storage_options=options, remote=REMOTE)
        assert "secret-of-the-hub" not in str(refused.value)
        loader, _ = StructuredDataset.create_dataloader(
            f"hf://{REPOSITORY}/train", storage_options={**options, "token": hub.token}, remote=REMOTE
        )
        assert rows_of(loader) == list(range(300))
        assert "secret-of-the-hub" not in repr(loader)


def test_what_is_not_there_is_said_so() -> None:
    with hub_with(FILES) as (_, options):
        for place in (f"{REPOSITORY}/nothing", "datasets/team/nothing/train", f"{REPOSITORY}@no-branch/train"):
            with pytest.raises((NoDataError, StoreError), match=re.escape(f"hf://{place}")):
                scan_files(f"hf://{place}", storage_options=options, remote=REMOTE)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("key", "repository", "revision", "path"),
    [
        ("datasets/a/b/c/d.parquet", "a/b", "", "c/d.parquet"),
        ("datasets/a/b@v1.0/c", "a/b", "v1.0", "c"),
        ("datasets/a/b@feature%2Fx/c", "a/b", "feature/x", "c"),
        ("datasets/a/b@refs/convert/parquet/c", "a/b", "refs/convert/parquet", "c"),
        (f"a/b@{COMMIT}/c", "a/b", COMMIT, "c"),
        ("spaces/a/b", "a/b", "", ""),
    ],
)
def test_keys_are_taken_apart(key: str, repository: str, revision: str, path: str) -> None:
    file = HubFile.of(key)
    assert file is not None
    assert (file.repository, file.revision, file.path) == (repository, revision, path)
    assert HubFile.of(file.key) == file
    assert file.is_at_commit == (revision == COMMIT)


def test_a_bucket_is_no_repository() -> None:
    assert HubFile.of("buckets/a/b/c.parquet") is None
