"""Names of files are no URLs: each is read as the file that it names, or refused by name, whatever it is made of."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.faults.conftest import QUICK
from tests.faults.s3_server import S3Server
from torch_dataloader_utils import DeltaDataset, RemoteOptions
from torch_dataloader_utils._store import StoreAccess, open_store
from torch_dataloader_utils.discover.roots import Roots
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError
from torch_dataloader_utils.tables.delta.paths import path_to_open

BACKENDS = ["fsspec", "obstore"] if importlib.util.find_spec("obstore") else ["fsspec"]
PARTS = [
    "::",
    "%00",
    "%2F",
    "%25",
    "#",
    "?",
    "/",
    "..",
    ".",
    "@",
    ":",
    "&",
    "=",
    "+",
    " ",
    "\\",
    "é",
    "'",
    '"',
    "<",
    "~",
]
PARTS += ["://", "s3://", "file:", "zip", "{x}", "a", "b", "p", "[1]", "?versionId=a", "::file://", "%2e%2e", ";", "|"]
# An object whose name ends in a slash marks a directory.
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map(lambda parts: f"{''.join(parts)}x")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    made = S3Server()
    yield made
    made.close()


@pytest.fixture(scope="module", params=BACKENDS)
def access(request: pytest.FixtureRequest, s3: S3Server) -> StoreAccess:
    return StoreAccess.of(
        s3.storage_options, remote=RemoteOptions(backend=request.param, retry=QUICK, keep_footers=False)
    )


def is_refused(name: str) -> bool:
    """Whether some client takes a part of the name for something else."""
    return "?versionId=" in name or "::" in name or not {"", ".", ".."}.isdisjoint(name.split("/"))


def check_all_read(directory: str, contents: dict[str, bytes], access: StoreAccess | None = None) -> None:
    """Read every file of a directory by its listed URL, and by its URL as the user writes it; or see a refusal."""
    store = open_store(directory, access)
    try:
        listed = {entry.path: entry.stat for entry in store.list_files(directory).entries}
    except UnsupportedFeatureError:
        assert any(is_refused(url.partition("/d/")[2]) for url in contents)
        return
    assert listed.keys() == contents.keys()
    for url, stat in listed.items():
        data = contents[url]
        assert bytes(store.ranges(url, [(0, len(data))], stat.identity)[0]) == data
        assert bytes(store.tail(url, 4).data) == data[-4:]
        assert store.stat(url) == stat


@pytest.mark.slow
@settings(max_examples=effort(24))
@given(st.lists(NAMES, min_size=1, max_size=2))
@example(["a//b"])
@example(["a::file:///etc/passwd", "a"])
@example(["a?versionId=a", "a"])
def test_an_object_is_read_as_itself_or_refused_by_name(s3: S3Server, access: StoreAccess, names: list[str]) -> None:
    s3.reset()
    contents = {s3.put(f"d/{name}", f"content of {name}".encode()): f"content of {name}".encode() for name in names}
    check_all_read("s3://bucket/d/", contents, access)


@settings(max_examples=effort(60))
@given(st.lists(NAMES, min_size=1, max_size=3))
def test_a_file_in_memory_is_read_as_itself_or_refused_by_name(names: list[str]) -> None:
    directory, memory = f"/{uuid4().hex}/d", fsspec.filesystem("memory")
    for name in names:
        memory.store[f"{directory}/{name}"] = MemoryFile(memory, f"{directory}/{name}", name.encode())
    check_all_read(f"memory:/{directory}/", {f"memory:/{directory}/{name}": name.encode() for name in names})
    memory.rm(directory, recursive=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd")


@settings(max_examples=effort(60))
@given(st.lists(NAMES.map(lambda name: name.replace("/", "-")), max_size=3))
def test_a_local_file_is_read_as_itself(place: Path, names: list[str]) -> None:
    directory = place / uuid4().hex
    directory.mkdir()
    for name in names:
        (directory / name).write_bytes(name.encode())
    check_all_read(str(directory), {f"{directory}/{name}": name.encode() for name in names})


def log_of(path: str, size: int) -> bytes:
    """A Delta log that adds one file of one column."""
    field = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "x",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": [field]}),
                "partitionColumns": [],
                "configuration": {},
            }
        },
        {"add": add},
    ]
    return "\n".join(map(json.dumps, actions)).encode()


def data() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1, 2, 3]}), sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("name", ["a::b", "a::file:x", "a#b", "a?b", "100%", "a%00b", "é b"])
def test_an_odd_name_in_a_log_is_the_name_of_an_object(s3: S3Server, access: StoreAccess, name: str) -> None:
    s3.reset()
    url, content = "s3://bucket/t", data()
    s3.put(f"t/{name}.parquet", content)
    s3.put("t/_delta_log/00000000000000000000.json", log_of(f"{quote(name)}.parquet", len(content)))
    loader, _ = DeltaDataset.create_dataloader(url, num_workers=0, storage_options=access)
    assert [value for batch in loader for value in batch["id"].tolist()] == [1, 2, 3]


@pytest.mark.parametrize(
    "path",
    [
        "zip://a.parquet::file:///etc/hosts",
        "simplecache::file:///etc/hosts",
        "a::file:///etc/hosts",
        "file::simplecache::file:///etc/hosts",
        "ftp://host/a::file:///etc/hosts",
        "a.parquet%00",
    ],
)
@pytest.mark.parametrize("root", ["/t", "ftp://host/t", "hdfs://host/t", "s3://bucket/t"])
def test_no_name_in_a_log_chooses_a_client(root: str, path: str) -> None:
    try:
        found = path_to_open(root, path)
        Roots.near(root).check(found)
    except (UnsupportedFeatureError, CorruptFileError):
        return
    assert found == f"{root}/{path}"
    assert root.startswith("s3://") or "://" not in found
