"""Objects that are replaced, cut or deleted while an epoch is read: an error that says so, rows of one version only."""

from typing import Any

import numpy as np
import pytest

from tests.faults.s3_server import Rule, S3Server, error, replace_object
from tests.faults.tables import parquet_bytes, table, upload
from torch_dataloader_utils import Decoding, StructuredDataset
from torch_dataloader_utils._store import StoreAccess, open_store
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import FileChangedError

PLANNED = parquet_bytes(table(300, 300), compression="none")
OTHER_ROWS = next(
    data
    for first in range(1_000, 2_000)
    if len(data := parquet_bytes(table(first, 300), compression="none")) == len(PLANNED)
)
SHORTER = parquet_bytes(table(300, 100), compression="none")


def loader_of(access: StoreAccess, **options: Any) -> Any:
    options = {"batch_size": 50, "num_workers": 0, "decoding": Decoding(ahead_bytes=1), **options}
    return StructuredDataset.create_dataloader("s3://bucket/data", storage_options=access, **options)


def receive(loader: Any, rows: list[int]) -> None:
    for batch in loader:
        rows += batch["row"].tolist()


@pytest.mark.processes
@pytest.mark.parametrize("new", [OTHER_ROWS, SHORTER, None], ids=["same-size", "shorter", "deleted"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_object_that_changes_mid_epoch_is_an_error_after_rows_of_the_old_one_only(
    server: S3Server, access: StoreAccess, new: bytes | None, workers: int
) -> None:
    upload(server, compression="none")
    assert len(OTHER_ROWS) == len(PLANNED) == len(server.objects["data/1.parquet"][0])
    loader, _ = loader_of(access, num_workers=workers)
    # The first request after the plan that asks for file 1 still gets the old object, and all others do not.
    server.rules.append(Rule(replace_object("data/1.parquet", new), key="data/1"))
    seen: list[int] = []
    with pytest.raises(FileChangedError, match=r"s3://bucket/data/1\.parquet.*[Pp]lan the data set again"):
        receive(loader, seen)
    assert seen == list(range(len(seen)))
    assert 300 <= len(seen) < 600
    assert loader.state_dict()["fingerprint"]


def test_the_state_of_a_run_that_met_a_changed_file_goes_on_once_the_file_is_back(
    server: S3Server, access: StoreAccess
) -> None:
    total = upload(server, compression="none")
    loader, _ = loader_of(access)
    old = server.objects["data/1.parquet"][0]
    server.rules.append(Rule(replace_object("data/1.parquet", OTHER_ROWS), key="data/1"))
    seen: list[int] = []
    with pytest.raises(FileChangedError):
        receive(loader, seen)
    state = loader.state_dict()
    server.put("data/1.parquet", old)
    again, _ = loader_of(access)
    again.load_state_dict(state)
    seen += np.concatenate([batch["row"].numpy() for batch in again]).tolist()
    assert seen == list(range(total))


def test_a_change_between_listing_and_footer_is_noticed_by_the_scan(server: S3Server, access: StoreAccess) -> None:
    upload(server)
    # The listing is answered, then the object is another one.
    server.rules.append(Rule(replace_object("data/1.parquet", OTHER_ROWS), key="^$", first=1))
    with pytest.raises(FileChangedError, match="data/1"):
        scan_files("s3://bucket/data", storage_options=access)


def test_a_text_that_changes_while_its_lines_are_counted_is_noticed_by_the_scan(
    server: S3Server, access: StoreAccess
) -> None:
    url = server.put("data/a.csv", b"a,b\n1,2\n3,4\n")
    server.rules.append(Rule(replace_object("data/a.csv", b"a,b\n1,2,3,4,5\n"), key="data/a"))
    with pytest.raises(FileChangedError, match=r"data/a\.csv is not the file that was planned"):
        scan_files(url, "csv", storage_options=access)


def test_a_store_that_ignores_conditions_is_noticed_by_its_etag(server: S3Server, access: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    store = open_store(url, access)
    planned = store.stat(url).identity

    def ignore_condition(server: S3Server, request: Any, reply: Any) -> None:
        data, etag = server.objects["a"]
        reply.status, reply.body = 206, data[:4]
        reply.headers = {"ETag": f'"{etag}"', "Content-Range": "bytes 0-3/10"}

    server.put("a", b"abcdefghij")
    server.rules.append(Rule(ignore_condition))
    with pytest.raises(FileChangedError, match="not the file that was planned"):
        store.ranges(url, [(0, 4)], planned)


@pytest.mark.slow
def test_a_reply_that_is_cut_goes_on_in_the_same_object_or_not_at_all(
    server: S3Server, watchful_access: StoreAccess
) -> None:
    url = server.put("big", bytes(1 << 20))

    def cut_and_replace(server: S3Server, request: Any, reply: Any) -> None:
        reply.stall_after = 500_000
        server.put("big", b"x" * (1 << 20))

    server.rules.append(Rule(cut_and_replace))
    with pytest.raises(FileChangedError):
        open_store(url, watchful_access).ranges(url, [(0, 1 << 20)])


def test_an_object_that_vanishes_from_a_listing_page_is_not_planned(server: S3Server, access: StoreAccess) -> None:
    total = upload(server, files=5)
    server.page_keys = 2
    inventory = scan_files("s3://bucket/data", storage_options=access)
    assert inventory.num_rows == total
    assert list(inventory.files.paths) == sorted(inventory.files.paths)
    assert inventory.fingerprint() == scan_files("s3://bucket/data", storage_options=access).fingerprint()


def test_a_412_of_a_broken_server_is_never_taken_for_data(server: S3Server, access: StoreAccess) -> None:
    url = server.put("a", b"0123456789")
    server.rules.append(Rule(error(412, "PreconditionFailed"), count=None))
    with pytest.raises(FileChangedError):
        open_store(url, access).ranges(url, [(0, 4)], "planned")
    assert len(server.requests) == 1
