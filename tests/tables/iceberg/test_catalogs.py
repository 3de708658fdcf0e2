"""Catalogs and tables without one: what can be opened, and what an error says of the rest."""

import json
import logging
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform

from tests.effort import effort
from tests.tables.iceberg.reading import in_order, read_rows
from tests.tables.iceberg.servers import RestCatalog, hive_metastore, rest_catalog, sqlite_catalog
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import IcebergDataset, scan_iceberg
from torch_dataloader_utils._store import Secret
from torch_dataloader_utils.errors import (
    ConfigError,
    CorruptFileError,
    LoaderError,
    NoDataError,
    StoreError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.tables.iceberg.catalog import CatalogCredentials, TablePlace, look_up
from torch_dataloader_utils.tables.iceberg.storage_properties import storage_options, with_present_names

EVENTS = Schema(field_of(1, "region_id", "int"), field_of(2, "v", "long"))
CANARY = "canary-5ecret-v4lue"


def events() -> pa.Table:
    return pa.table(
        {"region_id": pa.array([i % 10 for i in range(200)], pa.int32()), "v": pa.array(range(200), pa.int64())}
    )


@pytest.mark.slow
def test_an_embedded_sqlite_catalog_and_tables_that_pyiceberg_writes(tmp_path: Path) -> None:
    config = sqlite_catalog(tmp_path)
    catalog = load_catalog("default", **config)
    catalog.create_namespace("db")
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="region_id"))
    table = catalog.create_table("db.events", EVENTS, partition_spec=spec)
    table.append(events())
    table.append(events())
    table.delete("v < 5")
    wanted = table.scan().to_arrow().to_pylist()
    assert in_order(read_rows("db.events", config, num_ranks=2, batch_size=16)) == in_order(wanted)
    assert in_order(read_rows("any.db.events", config)) == in_order(wanted)
    filtered = read_rows("db.events", config, filters=pc.field("region_id") >= 5, columns=["region_id"])
    assert sorted(row["region_id"] for row in filtered) == sorted(r["region_id"] for r in wanted if r["region_id"] >= 5)
    catalog.close()


@pytest.mark.slow
@given(
    is_long=st.booleans(),
    width=st.sampled_from([2, 3, 10, 1000]),
    near=st.lists(st.tuples(st.integers(0, 2), st.integers(-12, 12)), min_size=1, max_size=6),
    literal=st.tuples(st.integers(0, 2), st.integers(-12, 12)),
    operator=st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "isin"]),
    is_negated=st.booleans(),
)
@example(is_long=False, width=3, near=[(0, 0), (1, 5)], literal=(0, 0), operator="==", is_negated=False)
@example(is_long=True, width=3, near=[(0, 0), (1, 5)], literal=(1, 0), operator="<", is_negated=False)
@settings(max_examples=effort(10))
@pytest.mark.filterwarnings("ignore:The epoch has no steps")
def test_truncated_partitions_lose_no_row_near_the_ends_of_an_integer(
    tmp_path_factory: pytest.TempPathFactory,
    is_long: bool,
    width: int,
    near: list[tuple[int, int]],
    literal: tuple[int, int],
    operator: str,
    is_negated: bool,
) -> None:
    greatest = 2**63 - 1 if is_long else 2**31 - 1
    kind = pa.int64() if is_long else pa.int32()

    def value(place: tuple[int, int]) -> int:
        return min(max([-greatest - 1, 0, greatest][place[0]] + place[1], -greatest - 1), greatest)

    field, against = pc.field("k"), pa.scalar(value(literal), kind)
    kept = {
        "==": field == against,
        "!=": field != against,
        "<": field < against,
        "<=": field <= against,
        ">": field > against,
        ">=": field >= against,
        "isin": field.isin(pa.array([value(literal)], kind)),
    }[operator]
    kept = ~kept if is_negated else kept
    rows = pa.table({"k": pa.array([value(place) for place in near], kind)})
    config = sqlite_catalog(tmp_path_factory.mktemp("lake"))
    catalog = load_catalog("default", **config)
    catalog.create_namespace("db")
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=TruncateTransform(width), name="part"))
    catalog.create_table("db.t", Schema(field_of(1, "k", "long" if is_long else "int")), partition_spec=spec).append(
        rows
    )
    catalog.close()
    wanted = rows.filter(kept).to_pylist()
    assert in_order(read_rows("db.t", config, filters=kept, allow_empty=True)) == in_order(wanted)


def test_other_truncated_partitions_are_pruned(tmp_path: Path) -> None:
    config = sqlite_catalog(tmp_path)
    catalog = load_catalog("default", **config)
    catalog.create_namespace("db")
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=TruncateTransform(10), name="part"))
    table = catalog.create_table("db.t", Schema(field_of(1, "k", "int")), partition_spec=spec)
    table.append(pa.table({"k": pa.array([-(2**31), 5, 15, 25], pa.int32())}))
    catalog.close()
    assert scan_iceberg("db.t", config, filters=pc.field("k") < 10).num_files == 2


def test_a_table_that_a_catalog_does_not_have_and_a_catalog_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match=r"no table db\.nope"):
        scan_iceberg("db.nope", sqlite_catalog(tmp_path))
    with pytest.raises(ConfigError, match="does not make a catalog"):
        scan_iceberg("db.nope", {"type": "nonsense", "token": CANARY})
    with pytest.raises(StoreError) as error:
        scan_iceberg("db.t", {"type": "rest", "uri": "http://127.0.0.1:9", "token": CANARY})
    assert CANARY not in str(error.value)


@pytest.mark.parametrize(
    ("table", "config", "message"),
    [
        ("events", None, 'Write its namespace too: "namespace.table"'),
        (("db", "events"), None, "table is a tuple: pass its name"),
        ("", None, "table is '': pass its name"),
        ("db.events", "prod", r'catalog_config is a str.* \{"name": "prod"\}'),
    ],
)
def test_what_is_no_name_and_no_catalog_says_what_to_pass(
    tmp_path: Path, table: Any, config: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        scan_iceberg(table, config or sqlite_catalog(tmp_path))


def test_a_misspelled_option_of_tables_names_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'snapshot_id'"):
        IcebergDataset.create_dataloader("db.events", sqlite_catalog(tmp_path), snapshotid=3)


class ClosedCatalog(SqlCatalog):
    """A plug-in that counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1
        super().close()


@pytest.mark.parametrize("table", ["db.events", "db.none"])
def test_a_catalog_that_was_asked_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    monkeypatch.setattr(ClosedCatalog, "closed", 0)
    config = sqlite_catalog(tmp_path)
    with closing(load_catalog("default", **config)) as catalog:
        catalog.create_namespace("db")
        catalog.create_table("db.events", EVENTS).append(events())
    plugin = {**config, "py-catalog-impl": f"{__name__}.ClosedCatalog"}
    del plugin["type"]
    with nullcontext() if table == "db.events" else pytest.raises(NoDataError):
        assert scan_iceberg(table, plugin).num_rows == 200
    assert ClosedCatalog.closed == 1


class UnclosedCatalog(SqlCatalog):
    """A plug-in that fails when it is closed."""

    def close(self) -> None:
        super().close()
        raise OSError("the server has gone away")


@pytest.mark.parametrize("table", ["db.events", "db.none"])
def test_what_a_catalog_answered_counts_where_it_cannot_be_closed(tmp_path: Path, table: str) -> None:
    config = sqlite_catalog(tmp_path)
    with closing(load_catalog("default", **config)) as catalog:
        catalog.create_namespace("db")
        catalog.create_table("db.events", EVENTS).append(events())
    plugin = {**config, "py-catalog-impl": f"{__name__}.UnclosedCatalog"}
    del plugin["type"]
    with nullcontext() if table == "db.events" else pytest.raises(NoDataError):
        assert scan_iceberg(table, plugin).num_rows == 200


def test_a_catalog_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = {"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        with pytest.raises(StoreError, match=r"did not answer within 0\.2 seconds when asked for db\.t"):
            look_up("db.t", config, patience_seconds=0.2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format-version": 4}, UnsupportedFeatureError, r"format version 4.*newer pyiceberg"),
        ({"current-schema-id": CANARY}, CorruptFileError, "does not parse"),
    ],
)
def test_metadata_newer_than_pyiceberg_are_unsupported_and_others_damaged(
    tmp_path: Path, rest: RestCatalog, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"))
    table.append([{"id": 1}])
    path = Path(table.metadata)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    rest.tables["ns.newer"] = table.metadata
    for place, config in ((table.metadata, None), ("ns.newer", {"type": "rest", "uri": rest.uri})):
        with pytest.raises(error, match=message) as raised:
            scan_iceberg(place, config)
        assert CANARY not in str(raised.value)


def test_a_table_that_is_gone_when_credentials_expire_is_no_missing_file(rest: RestCatalog) -> None:
    renewal = CatalogCredentials(
        place=TablePlace(table="ns.dropped", catalog_config=Secret({"type": "rest", "uri": rest.uri}))
    )
    with pytest.raises(StoreError, match=r"credentials of ns\.dropped have expired, and its catalog gives no new"):
        renewal()


@pytest.mark.parametrize(
    "options",
    [
        {"token": f"{CANARY}\n"},
        {"header.X-Api-Key": f"{CANARY}\n"},
        {"header.Authorization": f"Basic {CANARY}\n"},
        {"uri": f"http://127.0.0.1:9?apikey={CANARY}"},
        {"uri": f"http://user:{CANARY}@127.0.0.1:9"},
        {"auth": {"type": "basic", "basic": {"username": "u", "password": f"{CANARY}\n"}}},
        {"secret": CANARY[:4], "header.X-Api-Key": f"{CANARY}\n"},
        {"uri": f"user:pa@{CANARY}@127.0.0.1:9"},
        {"type": "glue", "glue.endpoint": f"http://user:{CANARY}@127.0.0.1:9", "client.region": "x"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_error_of_a_catalog_shows_a_secret_nor_does_its_traceback(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with pytest.raises(LoaderError) as error:
        scan_iceberg("db.t", {"type": "rest", "uri": "http://127.0.0.1:9", "glue.max-retries": 1, **options})
    assert CANARY[4:] not in "".join(traceback.format_exception(error.value))


def test_what_a_caller_was_handling_is_left_as_it_was() -> None:
    handled = ValueError("a?b=c of the caller")
    try:
        raise handled
    except ValueError:
        with pytest.raises(StoreError):
            scan_iceberg("db.t", {"type": "rest", "uri": "http://127.0.0.1:9"})
    assert str(handled) == "a?b=c of the caller"


def test_a_reply_of_a_catalog_that_does_not_parse_is_not_quoted(rest: RestCatalog) -> None:
    rest.bodies["ns.odd"] = {"config": {"s3.secret-access-key": CANARY}}
    with pytest.raises(CorruptFileError, match="does not parse") as error:
        scan_iceberg("ns.odd", {"type": "rest", "uri": rest.uri})
    assert CANARY not in "".join(traceback.format_exception(error.value))


@pytest.fixture(scope="module")
def rest() -> Iterator[RestCatalog]:
    with rest_catalog() as catalog:
        yield catalog


@pytest.mark.processes
def test_a_rest_catalog_with_credentials_of_each_table(
    tmp_path: Path, rest: RestCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rest.tokens.clear()
    for name in ("one", "two"):
        table = TableWriter(tmp_path / name, path_prefix=f"s3://bucket/{name}")
        table.evolve(field_of(1, "id", "long"))
        table.delete_positions([(table.append([{"id": i} for i in range(8)], rows_per_group=3), 2)])
        rest.tables[f"ns.{name}"] = table.metadata
        rest.configs[f"ns.{name}"] = {"s3.access-key-id": f"key-{name}", "s3.secret-access-key": f"{CANARY}-{name}"}
    config = {"type": "rest", "uri": rest.uri, "token": f"{CANARY}-token"}
    rewrites = {"s3://bucket": str(tmp_path)}
    loaders = {}
    for name in ("one", "two"):
        loader, dataset = IcebergDataset.create_dataloader(
            f"ns.{name}", config, path_rewrites=rewrites, output_format="arrow", batch_size=2, num_workers=2
        )
        loaders[name] = loader
        for text in (repr(dataset), str(vars(dataset)), json.dumps(loader.state_dict()), dataset.plan.explain()):
            assert CANARY not in text
    assert rest.tokens == {f"Bearer {CANARY}-token"}
    seen = len(rest.requests)
    for loader in loaders.values():
        assert sorted(row["id"] for batch in loader for row in batch.to_pylist()) == [0, 1, 3, 4, 5, 6, 7]
    assert len(rest.requests) == seen  # reading, in two processes, asked the catalog nothing
    assert CANARY not in caplog.text


def test_vended_credentials_become_options_of_the_storage_client(tmp_path: Path, rest: RestCatalog) -> None:
    table = TableWriter(tmp_path, path_prefix="s3://bucket/t")
    table.evolve(field_of(1, "id", "long"))
    table.write_metadata()
    rest.tables["ns.t"] = table.metadata
    rest.configs["ns.t"] = {
        "s3.access-key-id": "K",
        "s3.secret-access-key": "S",
        "s3.session-token": "T",
        "s3.region": "r",
    }
    config = {"type": "rest", "uri": rest.uri, "s3.endpoint": "http://e"}
    _, dataset = IcebergDataset.create_dataloader("ns.t", config, allow_empty=True)
    assert dataset.pipeline.reader.spec.access.client_options() == {
        "key": "K",
        "secret": "S",
        "token": "T",
        "client_kwargs": {"endpoint_url": "http://e", "region_name": "r"},
    }
    _, dataset = IcebergDataset.create_dataloader("ns.t", config, allow_empty=True, storage_options={"key": "mine"})
    assert dataset.pipeline.reader.spec.access.client_options()["key"] == "mine"


def test_property_names_of_all_stores() -> None:
    assert storage_options({"gcs.oauth2.token": "t", "gcs.project-id": "p"}, "gs") == {"token": "t", "project": "p"}
    assert storage_options({"adls.account-name": "a", "adls.sas-token": "s"}, "abfss") == {
        "account_name": "a",
        "sas_token": "s",
    }
    signed = {"adls.sas-token.a.dfs.core.windows.net": "of a", "adls.sas-token.b.dfs.core.windows.net": "of b"}
    assert storage_options(signed, "abfss") == {"account_name": "a", "sas_token": "of a"}
    assert storage_options({"adls.account-name": "b", **signed}, "abfss") == {"account_name": "b", "sas_token": "of b"}
    assert storage_options({"adls.sas-token": "s", **signed}, "abfss") == {"account_name": "a", "sas_token": "s"}
    assert storage_options({"s3.anonymous": "true", "s3.connect-timeout": "3"}, "s3a") == {
        "anon": True,
        "config_kwargs": {"connect_timeout": 3.0},
    }
    assert storage_options({"s3.access-key-id": "k"}, "") == {}
    assert with_present_names({"region_name": "r", "type": "glue"}) == {"client.region": "r", "type": "glue"}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    from tests.store.moto_server import running_moto  # needs both

    with running_moto() as (server, _):
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_documented_glue_call_on_two_ranks(aws: str) -> None:
    boto3 = pytest.importorskip("boto3")
    config = {
        "type": "glue",
        "region_name": "eu-west-1",
        "aws_access_key_id": "testing",
        "aws_secret_access_key": CANARY,
        "glue.endpoint": aws,
        "s3.endpoint": aws,
        "warehouse": "s3://lake",
    }
    s3 = boto3.client(
        "s3", endpoint_url=aws, region_name="eu-west-1", aws_access_key_id="testing", aws_secret_access_key=CANARY
    )
    s3.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    catalog = load_catalog("glue", **with_present_names(config))
    catalog.create_namespace("db")
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="region_id"))
    table = catalog.create_table("db.events", EVENTS, partition_spec=spec)
    table.append(events())
    rows = read_rows("db.events", config, filters=pc.field("region_id") >= 5, num_ranks=2, batch_size=8)
    assert sorted(row["v"] for row in rows) == [v for v in range(200) if v % 10 >= 5]
    inventory = scan_iceberg("db.events", config, filters=pc.field("region_id") >= 5)
    assert (inventory.num_files, inventory.num_rows) == (5, 100)
    assert CANARY not in repr(inventory)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_catalog_in_dynamodb(tmp_path: Path, aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", aws)
    keys = {"region_name": "eu-west-1", "aws_access_key_id": "testing", "aws_secret_access_key": CANARY}
    config = {"type": "dynamodb", **keys, "warehouse": f"file://{tmp_path}"}
    catalog = load_catalog("dynamodb", **with_present_names(config))
    catalog.create_namespace("db")
    # pyiceberg does not commit to such a catalog: the table's first metadata are replaced.
    path = Path(catalog.create_table("db.events", EVENTS).metadata_location.removeprefix("file://"))
    table = TableWriter(tmp_path / "events")
    table.evolve(*EVENTS.fields)
    data = table.append(events().to_pylist(), rows_per_group=30)
    table.delete_positions([(data, row) for row in range(5)])
    path.write_text(Path(table.metadata).read_text())
    assert sorted(row["v"] for row in read_rows("db.events", config, num_ranks=2)) == list(range(5, 200))
    add_geometry(path)
    assert len(read_rows("db.events", config, columns=["v"])) == 195
    with pytest.raises(UnsupportedFeatureError, match="column extra holds values of Iceberg type geometry"):
        scan_iceberg("db.events", config)
    with pytest.raises(NoDataError, match=r"no table db\.none"):
        scan_iceberg("db.none", config)


def add_geometry(path: Path) -> None:
    """Give the table of a metadata file a column that pyiceberg refuses."""
    metadata = json.loads(path.read_text())
    for schema in metadata["schemas"]:
        schema["fields"].append({"id": 99, "name": "extra", "type": "geometry(x)", "required": False})
    path.write_text(json.dumps(metadata))


@pytest.mark.slow
def test_a_hive_metastore(tmp_path: Path) -> None:
    pytest.importorskip("thrift", reason="thrift is not installed")
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"))
    table.delete_positions([(table.append([{"id": i} for i in range(8)], rows_per_group=3), 2)])
    with hive_metastore({"db.t": table.metadata}) as uri:
        config = {"type": "hive", "uri": uri}
        rows = read_rows("db.t", config, num_ranks=2, batch_size=2)
        assert sorted(row["id"] for row in rows) == [0, 1, 3, 4, 5, 6, 7]
        add_geometry(Path(table.metadata))
        assert len(read_rows("db.t", config, columns=["id"])) == 7
        with pytest.raises(UnsupportedFeatureError, match="column extra holds values of Iceberg type geometry"):
            scan_iceberg("db.t", config)
        with pytest.raises(NoDataError, match=r"no table db\.none"):
            scan_iceberg("db.none", config)


def test_a_rest_catalog_that_wants_signed_requests_as_s3_tables_do(
    tmp_path: Path, rest: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"))
    table.append([{"id": i} for i in range(8)])
    rest.tables["ns.signed"] = table.metadata
    rest.tokens.clear()
    config = {
        "type": "rest",
        "uri": rest.uri,
        "warehouse": "arn:aws:s3tables:eu-west-1:123456789012:bucket/lake",
        "rest.sigv4-enabled": "true",
        "rest.signing-name": "s3tables",
        "rest.signing-region": "eu-west-1",
    }
    assert len(read_rows("ns.signed", config)) == 8
    assert all("AWS4-HMAC-SHA256" in token and "/eu-west-1/s3tables/" in token for token in rest.tokens)


@pytest.mark.processes
def test_discovery_does_not_import_pyiceberg_before_it_is_used() -> None:
    code = "import sys, torch_dataloader_utils.tables.iceberg.table_scan; print('pyiceberg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_a_missing_pyiceberg_is_an_import_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(ImportError, match=r'pip install "pyiceberg\[sql-sqlite\]" pyroaring'):
        scan_iceberg("/nowhere")
