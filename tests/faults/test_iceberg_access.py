"""Tables on a store that misbehaves, under credentials that a catalog gives and takes away."""

import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import QUICK
from tests.faults.s3_server import Rule, S3Server, error
from tests.faults.test_credentials import TokenFile, endpoint, tokens
from tests.tables.iceberg.servers import RestCatalog, rest_catalog
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import Decoding, IcebergDataset, RemoteOptions, scan_iceberg
from torch_dataloader_utils._store.access import without_secrets
from torch_dataloader_utils.errors import ConfigTypeError, CorruptFileError, StoreError, UnsupportedFeatureError
from torch_dataloader_utils.tables.iceberg.catalog import CatalogCredentials

pytestmark = pytest.mark.slow

__all__ = ["tokens"]  # a fixture

REMOTE = RemoteOptions(retry=QUICK, keep_footers=False)
ROWS = [row for row in range(120) if row not in (3, 77)]


@pytest.fixture
def table(tmp_path: Path, server: S3Server) -> TableWriter:
    """Three files of two row groups of 20 rows on the server, two rows deleted by position."""
    writer = TableWriter(tmp_path / "t", path_prefix="s3://bucket/t")
    writer.evolve(field_of(1, "id", "long"))
    files = [writer.append([{"id": i} for i in range(f * 40, f * 40 + 40)], rows_per_group=20) for f in range(3)]
    writer.delete_positions([(files[0], 3), (files[1], 37)])
    upload_table(writer, server)
    return writer


def upload_table(writer: TableWriter, server: S3Server) -> None:
    for path in writer.root.rglob("*.*"):
        server.put(f"t/{path.relative_to(writer.root)}", path.read_bytes())


@pytest.fixture
def rest() -> Iterator[RestCatalog]:
    with rest_catalog() as catalog:
        yield catalog


def vend(rest: RestCatalog, server: S3Server, table: TableWriter, token: str) -> dict[str, str]:
    """The catalog gives `token` for the table from now on; its configuration."""
    rest.tables["ns.t"] = table.metadata
    rest.configs["ns.t"] = {
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
        "s3.session-token": token,
        "s3.endpoint": endpoint(server)["client_kwargs"]["endpoint_url"],
        "s3.region": "us-east-1",
    }
    return {"type": "rest", "uri": rest.uri}


def ids(loader: Any) -> list[int]:
    return sorted(value for batch in loader for value in batch["id"].tolist())


def on_server(server: S3Server, **options: Any) -> Any:
    return IcebergDataset.create_dataloader(
        "s3://bucket/t", storage_options=server.storage_options, remote=REMOTE, batch_size=16, num_workers=0, **options
    )


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_credentials_of_a_catalog_that_expire_within_an_epoch_are_asked_for_again(
    server: S3Server, rest: RestCatalog, table: TableWriter, workers: int
) -> None:
    config = vend(rest, server, table, "vended-one")
    server.accepted_tokens = {"vended-one"}
    loader, dataset = IcebergDataset.create_dataloader(
        "ns.t", config, batch_size=16, num_workers=workers, remote=REMOTE, decoding=Decoding(ahead_bytes=1)
    )
    asked = len(rest.requests)

    def rotate(server: S3Server, request: Any, reply: Any) -> None:
        vend(rest, server, table, "vended-two")
        server.accepted_tokens = {"vended-two"}

    server.rules.append(Rule(rotate, key="t/data", first=1))
    assert ids(loader) == ROWS
    assert {request.token for request in server.requests} == {"vended-one", "vended-two"}
    assert len(rest.requests) == asked + 2  # configuration and table, once
    assert "vended-" not in repr(dataset.pipeline) + str(vars(dataset))


def test_a_catalog_that_gives_nothing_new_is_asked_once_and_the_error_says_expired(
    server: S3Server, rest: RestCatalog, table: TableWriter
) -> None:
    config = vend(rest, server, table, "vended")
    server.accepted_tokens = {"another"}
    with pytest.raises(StoreError, match=r"the credentials have expired .*HTTP 400"):
        IcebergDataset.create_dataloader("ns.t", config, remote=REMOTE)


def test_options_of_the_user_stay_when_the_catalog_gives_new_ones(
    server: S3Server, rest: RestCatalog, table: TableWriter
) -> None:
    config = vend(rest, server, table, "vended-one")
    _, dataset = IcebergDataset.create_dataloader("ns.t", config, storage_options={"key": "mine"}, remote=REMOTE)
    access = dataset.pipeline.reader.spec.access
    assert isinstance(access.credentials, CatalogCredentials)
    vend(rest, server, table, "vended-two")
    assert access.client_options(renews=True) == access.client_options() | {"token": "vended-two"}
    assert access.client_options()["key"] == "mine"
    assert pickle.loads(pickle.dumps(access)).client_options(renews=True)["token"] == "vended-two"


@pytest.mark.parametrize("credentials", [None, dict])
def test_where_secrets_stay_out_other_options_of_the_user_and_the_catalog_stay(
    server: S3Server, rest: RestCatalog, table: TableWriter, credentials: Any
) -> None:
    config = vend(rest, server, table, "vended-one")
    _, dataset = IcebergDataset.create_dataloader(
        "ns.t", config, storage_options={"requester_pays": True}, credentials=credentials, remote=REMOTE
    )
    access = dataset.pipeline.reader.spec.access
    with without_secrets("a store"):
        pickled = pickle.dumps(access)
    assert b"vended-one" not in pickled
    options, found = access.client_options(), pickle.loads(pickled).client_options()
    secrets = {"key", "secret", "token"} if credentials else set()
    assert found == {name: value for name, value in options.items() if name not in secrets}
    assert found["requester_pays"]


@pytest.mark.processes
def test_a_function_of_the_user_comes_before_the_catalog(
    server: S3Server, table: TableWriter, tokens: TokenFile
) -> None:
    loader, _ = IcebergDataset.create_dataloader(
        "s3://bucket/t",
        storage_options=endpoint(server),
        credentials=tokens,
        remote=REMOTE,
        batch_size=16,
        num_workers=1,
        decoding=Decoding(ahead_bytes=1),
    )

    def rotate(server: S3Server, request: Any, reply: Any) -> None:
        Path(tokens.path).write_text("token-two")
        server.accepted_tokens = {"token-two"}

    server.rules.append(Rule(rotate, key="t/data"))
    assert ids(loader) == ROWS
    assert {request.token for request in server.requests} == {"token-one", "token-two"}


def test_retries_of_a_table_follow_the_policy_that_was_passed(server: S3Server, table: TableWriter) -> None:
    server.rules += [Rule(error(503, "SlowDown"), key=key) for key in ("metadata/v", "snap", "m-", "data")]
    assert ids(on_server(server)[0]) == ROWS


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_row_group_of_a_table_that_is_damaged_raises_or_is_left_out(
    server: S3Server, table: TableWriter, on_error: str, tmp_path: Path
) -> None:
    victim = sorted(key for key in server.objects if key.startswith("t/data"))[0]
    data = bytearray(server.objects[victim][0])
    damaged = 60  # in the first page of the first row group
    data[damaged : damaged + 40] = bytes(255 - byte for byte in data[damaged : damaged + 40])
    server.put(victim, bytes(data))
    if on_error == "raise":
        with pytest.raises(CorruptFileError, match="row group 0"):
            ids(on_server(server)[0])
        return
    with pytest.warns(UserWarning, match="left out 1 of 6 row groups with 20 rows"):
        loader, dataset = on_server(server, on_error="skip")
    assert ids(loader) == [row for row in ROWS if row >= 20]
    assert "left out 1 of 6" in dataset.plan.explain()


def test_progress_is_told_for_each_data_file(server: S3Server, table: TableWriter) -> None:
    seen: list[tuple[int, int]] = []
    scan_iceberg(
        "s3://bucket/t",
        storage_options=server.storage_options,
        remote=REMOTE,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_remote_table_that_names_a_file_of_this_machine_is_refused_unread(
    server: S3Server, table: TableWriter, tmp_path: Path
) -> None:
    private = tmp_path / "elsewhere" / "private.parquet"
    private.parent.mkdir()
    pq.write_table(pa.table({"id": [999]}), private)
    table.live = [replace(table.live[0], path=f"file://{private}", arguments={**table.live[0].arguments})]
    table.evolve(field_of(1, "id", "long"))
    table.append([{"id": 1}])
    upload_table(table, server)
    options = {"storage_options": server.storage_options, "remote": REMOTE}
    with pytest.raises(UnsupportedFeatureError, match=r"private\.parquet is named by.*s3://bucket/.*allowed_roots="):
        scan_iceberg("s3://bucket/t", **options)
    roots = ["s3://bucket/t", str(private.parent)]
    assert scan_iceberg("s3://bucket/t", **options, allowed_roots=roots).num_files == 2
    with pytest.raises(UnsupportedFeatureError, match="lies outside"):
        scan_iceberg("s3://bucket/t", **options, allowed_roots=["s3://bucket/t", str(private.parent) + "-2"])


def test_another_bucket_is_refused_and_roots_narrow_the_own_one(server: S3Server, table: TableWriter) -> None:
    assert ids(on_server(server, allowed_roots=["s3a://bucket/t/"])[0]) == ROWS
    for root in ("s3://bucket/t/data", "s3://bucket-2/t", "gs://bucket/t", "/"):
        with pytest.raises(UnsupportedFeatureError, match="outside of where its files may be"):
            on_server(server, allowed_roots=[root])
    with pytest.raises(ConfigTypeError, match="one string"):
        on_server(server, allowed_roots="s3://bucket/t")


def test_links_and_parents_do_not_leave_a_local_root(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "t")
    table.evolve(field_of(1, "id", "long"))
    table.append([{"id": 1}])
    root = str(table.root)
    assert scan_iceberg(root, allowed_roots=[root]).num_rows == 1
    assert scan_iceberg(f"{root}/../t", allowed_roots=[root]).num_rows == 1
    data = table.root / "data"
    data.rename(tmp_path / "outside")
    data.symlink_to(tmp_path / "outside")
    with pytest.raises(UnsupportedFeatureError, match="outside of where"):
        scan_iceberg(root, allowed_roots=[root])
    inventory = scan_iceberg(root)
    assert inventory.num_rows == 1
    with pytest.raises(UnsupportedFeatureError, match="named by the inventory"):
        IcebergDataset(root, inventory=inventory, allowed_roots=[root])
    assert len(IcebergDataset(root, inventory=inventory)) == 1


def test_secrets_of_a_catalog_are_in_no_message(
    server: S3Server, rest: RestCatalog, table: TableWriter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "torch_dataloader_utils")
    config = vend(rest, server, table, "canary-1b7e") | {"token": "canary-9d00"}
    server.accepted_tokens = {"another"}
    with pytest.raises(StoreError) as caught:
        IcebergDataset.create_dataloader("ns.t", config, remote=REMOTE)
    assert "canary" not in str(caught.value) + caplog.text


def test_data_files_without_a_footer_are_left_out_with_the_rows_that_the_manifest_knows(
    server: S3Server, table: TableWriter
) -> None:
    victim = sorted(key for key in server.objects if key.startswith("t/data"))[2]
    server.put(victim, server.objects[victim][0][:100])
    with pytest.raises(CorruptFileError, match=victim):
        on_server(server)
    with pytest.warns(UserWarning, match="left out 1 of 3 files with 40 rows: their metadata does not decode"):
        loader, _ = on_server(server, on_error="skip")
    assert ids(loader) == [row for row in ROWS if row < 80]
    with pytest.warns(UserWarning, match="left out 1 of 3 files"):
        scanned = scan_iceberg("s3://bucket/t", storage_options=server.storage_options, remote=REMOTE, on_error="skip")
    assert scanned.num_rows == len([row for row in ROWS if row < 80])


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "rules"),
    [("t", [(403, "AccessDenied")]), ("t", [(405, "MethodNotAllowed")]), ("t[1]", [])],
)
def test_files_of_a_directory_that_cannot_be_listed_are_looked_up(
    server: S3Server, tmp_path: Path, name: str, rules: list[tuple[int, str]]
) -> None:
    writer = TableWriter(tmp_path / name, path_prefix=f"s3://bucket/{name}")
    writer.evolve(field_of(1, "id", "long"))
    for number in range(10):
        writer.append([{"id": number}])
    for path in writer.root.rglob("*.*"):
        server.put(f"{name}/{path.relative_to(writer.root)}", path.read_bytes())
    server.rules += [Rule(error(status, code), key="^$", count=None) for status, code in rules]
    metadata = f"s3://bucket/{name}/metadata/{Path(writer.metadata).name}"
    options = {"storage_options": server.storage_options, "remote": REMOTE, "num_workers": 0, "batch_size": 4}
    assert ids(IcebergDataset.create_dataloader(metadata, **options)[0]) == list(range(10))
