"""What holds for every data set holds for Delta tables: equal steps, resume, ranks, remote stores, the shell."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from deltalake import DeltaTable, write_deltalake

from tests.cli.shell import one_line, tdu, tdu_json
from tests.tables.delta.reading import in_order, read_rows
from tests.tables.delta.tables import LONG, STRING, HandTable, add, column, remove
from tests.tables.passes import OPTIONS, check_ranks, check_resume
from torch_dataloader_utils import (
    CheckpointMismatchError,
    DataFileInfo,
    DeltaDataset,
    IcebergDataFileInfo,
    RemoteOptions,
    RetryPolicy,
    RoundRobinSplitStrategy,
    StructuredDataset,
    load_inventory,
    save_inventory,
    scan_delta,
    scan_files,
)
from torch_dataloader_utils.errors import ConfigError, NoDataError, NullValueError, StoreError, UnsupportedFeatureError

GONE = {7, 100, 101, 259}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> HandTable:
    """Files with and without deletion vectors, in two partitions."""
    table = HandTable(tmp_path_factory.mktemp("spine"))
    table.create([column("id", LONG), column("p", STRING)], features=["deletionVectors"], partitions=["p"])
    for file in range(4):
        rows = pa.table({"id": [100 * file + i for i in range(60)]})
        path = table.file(rows, row_group_size=9)
        deleted = [row - 100 * file for row in GONE if row // 100 == file]
        vector = {"deletionVector": table.vector(sorted(deleted))} if deleted else {}
        table.commit(add(path, partitionValues={"p": f"p{file % 2}"}, **vector))
    return table


def live_ids() -> list[int]:
    return [100 * file + i for file in range(4) for i in range(60) if 100 * file + i not in GONE]


@pytest.mark.parametrize("mode", [None, "id", "name"])
def test_nulls_of_tables_are_known_at_build(tmp_path: Path, mode: str | None) -> None:
    """Of files without deleted rows; a file that lacks a column has nothing but nulls of it."""
    table = HandTable(tmp_path)
    numbers = (1, 2, 3) if mode else (None, None, None)
    physical = ("c1", "c2", "p") if mode else ("a", "b", "p")
    columns = [column(*each) for each in zip("abp", (LONG,) * 3, numbers, physical, strict=True)]
    table.create(columns, features=["deletionVectors"], partitions=["p"], mode=mode)
    kept = pa.schema([pa.field(physical[0], pa.int64(), metadata={"PARQUET:field_id": "1"})])
    rows = pa.table({physical[0]: [1, None, 3]}).cast(kept)
    table.commit(add(table.file(rows), partitionValues={physical[2]: None}))
    deleted = table.file(rows)
    table.commit(add(deleted, partitionValues={physical[2]: "1"}, deletionVector=table.vector([1])))
    counts = {"a": 1, "b": 3, "p": 3}
    with pytest.raises(NullValueError) as caught:
        DeltaDataset.create_dataloader(str(tmp_path), num_workers=0)
    for name, count in counts.items():
        assert f"column '{name}' (int64) has {count} null" in str(caught.value)
    first = pc.field("p") == 1
    assert len(DeltaDataset.create_dataloader(str(tmp_path), columns=["a"], filters=first, num_workers=0)[0]) == 1


@pytest.mark.parametrize("mode", [None, "id", "name"])
def test_nulls_inside_structs_are_known_at_build(tmp_path: Path, mode: str | None) -> None:
    table = HandTable(tmp_path)
    numbers, physical = ((1, 2), ("c1", "c2")) if mode else ((None, None), ("user", "age"))
    age = column("age", LONG, numbers[1], physical[1])
    table.create([column("user", {"type": "struct", "fields": [age]}, numbers[0], physical[0])], mode=mode)
    inner = pa.field(physical[1], pa.int64(), metadata={"PARQUET:field_id": "2"})
    outer = pa.field(physical[0], pa.struct([inner]), metadata={"PARQUET:field_id": "1"})
    users = [{physical[1]: 1}, {physical[1]: None}, None]
    table.commit(add(table.file(pa.table([pa.array(users, outer.type)], schema=pa.schema([outer])))))
    with pytest.raises(NullValueError, match=r"column 'user\.age' \(int64\) has 2 nulls"):
        DeltaDataset.create_dataloader(str(tmp_path), num_workers=0)


def test_rows_say_where_they_lie(table: HandTable) -> None:
    rows = read_rows(str(table.root), num_ranks=2, batch_size=7, columns=["_pos", "id", "_file"])
    assert sorted(row["id"] for row in rows) == live_ids()
    assert all(row["_pos"] == row["id"] % 100 for row in rows)
    assert len({(row["_file"], row["id"] // 100) for row in rows}) == 4
    with pytest.raises(ConfigError, match="'_row_id', a column of Iceberg tables"):
        read_rows(str(table.root), columns=["_row_id"])


def test_ranks_take_equal_steps_and_together_every_live_row_once(table: HandTable) -> None:
    check_ranks(partial(DeltaDataset.create_dataloader, table.root), live_ids())


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_pass_gives_the_rest_in_threads_and_in_processes(table: HandTable, num_workers: int) -> None:
    check_resume(partial(DeltaDataset.create_dataloader, table.root), live_ids(), num_workers)


def test_a_state_is_bound_to_its_version(table: HandTable) -> None:
    loader, _ = DeltaDataset.create_dataloader(table.root, **OPTIONS)
    state = loader.state_dict()
    other, _ = DeltaDataset.create_dataloader(table.root, version=table.version - 1, **OPTIONS)
    with pytest.raises(CheckpointMismatchError, match=rf"version {table.version}.* pass version={table.version} to"):
        other.load_state_dict(state)
    same, _ = DeltaDataset.create_dataloader(table.root, version=table.version, **OPTIONS)
    same.load_state_dict(state)


def test_the_same_files_with_other_deletes_are_other_data(tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    path, vector = table.file(pa.table({"id": range(20)})), table.vector([1])
    table.create([column("id", LONG)], add(path, deletionVector=vector), features=["deletionVectors"])
    loader, _ = DeltaDataset.create_dataloader(tmp_path, **OPTIONS)
    state = loader.state_dict()
    table.commit(remove(path, deletionVector=vector), add(path, deletionVector=table.vector([2])))
    loader, _ = DeltaDataset.create_dataloader(tmp_path, **OPTIONS)
    with pytest.raises(CheckpointMismatchError, match="version 0"):
        loader.load_state_dict(state)


def test_an_inventory_is_scanned_once_for_many_loaders(table: HandTable, tmp_path: Path) -> None:
    inventory = scan_delta(table.root)
    assert inventory.num_rows == len(live_ids())
    assert inventory.notes == ("deletes: 4 rows by deletion vectors",)
    loader, _ = DeltaDataset.create_dataloader(table.root, inventory=inventory, **OPTIONS)
    assert sorted(value for batch in loader for value in batch["id"].tolist()) == live_ids()
    with pytest.raises(UnsupportedFeatureError, match="scan the table again"):
        save_inventory(inventory, tmp_path / "inventory.parquet")


def test_an_inventory_of_another_version_than_the_options_choose_is_refused(table: HandTable) -> None:
    inventory = scan_delta(table.root, version=2)
    for options in ({"version": 1}, {"from_version": 1}):
        with pytest.raises(ConfigError, match="inventory is of version=2, and the options beside it choose another"):
            DeltaDataset.create_dataloader(table.root, inventory=inventory, **options)
    DeltaDataset.create_dataloader(table.root, inventory=inventory, version=2)
    files = scan_files(str(table.root / "*.parquet"), allow_bare_files=True)
    with pytest.raises(ConfigError, match="not of a table that DeltaDataset reads"):
        DeltaDataset.create_dataloader(table.root, inventory=files)


def test_a_table_of_plain_files_is_saved_as_an_inventory(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": range(30), "p": ["a", "b", None] * 10}), partition_by=["p"])
    inventory = scan_delta(tmp_path / "t")
    assert not inventory.files.extras
    save_inventory(inventory, tmp_path / "saved.parquet")
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path / "t", inventory=load_inventory(tmp_path / "saved.parquet"), output_format="arrow", num_workers=0
    )
    rows = [row for batch in loader for row in batch.to_pylist()]
    assert in_order(rows) == in_order(read_rows(tmp_path / "t"))


@pytest.mark.processes
def test_the_data_set_works_in_a_plain_dataloader(table: HandTable) -> None:
    dataset = DeltaDataset(table.root, **{**OPTIONS, "num_workers": 2})
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(value for batch in loader for value in batch["id"].tolist()) == live_ids()


def test_split_strategies_are_given_data_files(table: HandTable) -> None:
    given: list[DataFileInfo] = []

    class Seen(RoundRobinSplitStrategy):
        def generate(self, files: Any, *arguments: Any, **named: Any) -> Any:
            given.extend(files)
            return super().generate(files, *arguments, **named)

    loader, _ = DeltaDataset.create_dataloader(table.root, split_strategy=Seen(), num_workers=0)
    assert loader.plan.is_exact
    assert not any(isinstance(file, IcebergDataFileInfo) for file in given)
    assert sum(file.record_count or 0 for file in set(given)) == len(live_ids())


def test_partitions_and_statistics_leave_files_out_unread(table: HandTable, tmp_path: Path) -> None:
    found = scan_delta(table.root, filters=pc.field("p") == "p1")
    assert (found.num_files, found.rows_are_known) == (2, True)
    for number in range(5):
        write_deltalake(
            tmp_path, pa.table({"x": [10 * number, 10 * number + 5], "s": [f"s{number}"] * 2}), mode="append"
        )
    for filters, files in [
        (pc.field("x") > 32, 2),
        (pc.field("x") == 20, 1),
        (pc.field("s") == "s3", 1),
        (pc.field("s") > "s0", 4),
        (~(pc.field("x") < 30), 2),
    ]:
        assert scan_delta(tmp_path, filters=filters).num_files == files
    gone = DeltaTable(tmp_path).file_uris(file_pruning_predicate="x = 5")
    for uri in gone:
        Path(uri).unlink()
    # A file that the log rules out is not looked at.
    assert [row["x"] for row in read_rows(tmp_path, filters=pc.field("x") == 20)] == [20]
    with pytest.raises(NoDataError, match="it was removed"):
        read_rows(tmp_path)


def test_a_directory_of_a_table_says_what_reads_it(table: HandTable) -> None:
    with pytest.raises(UnsupportedFeatureError, match="Read it with open_loader, DeltaDataset"):
        StructuredDataset.create_dataloader(table.root)


JOB = """
import json, os, signal, sys
from torch_dataloader_utils import DeltaDataset

path, rank, ranks, state, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
loader, dataset = DeltaDataset.create_dataloader(
    path, batch_size=7, columns=["id"], shuffle=True, shuffle_rows=30, split_rows=20, num_workers=0, num_ranks=ranks,
    rank=rank, version=json.loads(sys.argv[6]),
)
if os.path.exists(state):
    with open(state) as file:
        loader.load_state_dict(json.load(file))
for number, batch in enumerate(loader, start=1):
    print(json.dumps(batch["id"].tolist()), flush=True)
    if number == steps:
        if rank == 0:
            with open(state, "w") as file:
                json.dump(loader.state_dict(), file)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run_job(path: Path, state: Path, *, ranks: int, steps: int, version: int) -> list[int]:
    ids = []
    for rank in reversed(range(ranks)):  # rank 0 writes the state, the last of them
        arguments = [path, rank, ranks, state, steps, version]
        done = subprocess.run(
            [sys.executable, "-c", JOB, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert done.returncode == (-signal.SIGKILL if steps else 0), done.stderr
        ids += [value for line in done.stdout.splitlines() for value in json.loads(line)]
    return ids


@pytest.mark.full
@pytest.mark.processes
def test_a_killed_job_goes_on_on_other_ranks_while_the_table_moves(table: HandTable, tmp_path: Path) -> None:
    state, version = tmp_path / "state.json", table.version
    ids = run_job(table.root, state, ranks=2, steps=5, version=version)
    moved = HandTable(table.root, version=version)
    moved.commit(add(moved.file(pa.table({"id": [1000, 1001]})), partitionValues={"p": "p0"}))
    try:
        ids += run_job(table.root, state, ranks=3, steps=0, version=version)
    finally:
        (moved.log / f"{moved.version:020}.json").unlink()
    assert sorted(ids) == live_ids()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(storage options of fsspec, of deltalake) of a running server, with a table at s3://BUCKET/t."""
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    from tests.store.moto_server import BUCKET, options_for, running_moto

    with running_moto() as (server, _):
        endpoint = f"http://127.0.0.1:{server.server_port}"
        theirs = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }
        url = f"s3://{BUCKET}/a table/t"
        for number in range(3):
            rows = pa.table({"id": [10 * number + i for i in range(10)], "p": ["x", "ä/="] * 5})
            write_deltalake(url, rows, mode="append", partition_by=["p"], storage_options=theirs)
        DeltaTable(url, storage_options=theirs).create_checkpoint()
        DeltaTable(url, storage_options=theirs).delete("id = 3")
        yield url, options_for(server.server_port)


@pytest.mark.slow
def test_a_table_on_s3(bucket: Any) -> None:
    url, options = bucket
    assert sorted(row["id"] for row in read_rows(url, storage_options=options)) == [i for i in range(30) if i != 3]
    assert sorted(row["id"] for row in read_rows(url, storage_options=options, version=0)) == list(range(10))
    found = read_rows(url, storage_options=options, filters=pc.field("p") == "ä/=", timestamp=1 << 50)
    assert sorted(row["id"] for row in found) == [i for i in range(30) if i % 2 and i != 3]


@pytest.mark.slow
def test_credentials_are_asked_for_and_never_shown(bucket: Any) -> None:
    url, options = bucket
    secret = {name: options[name] for name in ("key", "secret")}
    others = {name: value for name, value in options.items() if name not in secret}
    loader, dataset = DeltaDataset.create_dataloader(
        url, storage_options=others, credentials=lambda: secret, num_workers=0, columns=["id"]
    )
    assert sum(len(batch["id"]) for batch in loader) == 29
    assert "test-secret" not in f"{dataset!r}{loader.state_dict()}"


def test_options_of_another_client_are_an_error_that_says_which_are_known(bucket: Any) -> None:
    with pytest.raises(ConfigError, match=r"'AWS_ACCESS_KEY_ID'.*Pass what the fsspec client takes, such as key"):
        read_rows(bucket[0], storage_options={"AWS_ACCESS_KEY_ID": "canary"})


def test_a_store_that_is_not_there_is_an_error_without_secrets(bucket: Any) -> None:
    url, options = bucket
    wrong = {**options, "key": "canary-5ecret", "client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}}
    with pytest.raises(StoreError) as caught:
        read_rows(url, storage_options=wrong, remote=RemoteOptions(retry=RetryPolicy(most_seconds=0)))
    assert "canary" not in str(caught.value)


def test_every_command_reads_delta_tables(table: HandTable) -> None:
    where = [table.root, "--format", "delta"]
    rows = len(live_ids())
    assert tdu_json("scan", *where)["num_rows"] == rows
    assert tdu_json("scan", *where, "--snapshot", 1)["num_rows"] == 59
    assert tdu_json("scan", *where, "--filter", "p == 'p1'")["num_rows"] == 60 + 58
    assert tdu_json("plan", *where, "--ranks", 4, "--batch-size", 10)["steps"]
    report = tdu_json("verify", *where, "--ranks", 4)
    assert (report["ok"], report["rows_read"]) == (True, rows)
    (batch,) = tdu_json("head", *where, "--batch-size", 5, "--columns", "id")["batches"]
    assert len(batch["rows"]) == 5
    assert "--catalog is for Iceberg tables" in one_line(tdu("scan", *where, "--catalog", "prod", code=2))


def test_wrong_options_are_errors_of_ours(table: HandTable) -> None:
    for options in ({"version": -1}, {"version": "3"}, {"timestamp": "2024"}, {"from_version": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            DeltaDataset.create_dataloader(table.root, **options)
    with pytest.raises(ConfigError, match="'ib', which is not a column"):
        DeltaDataset.create_dataloader(table.root, columns=["ib"])
