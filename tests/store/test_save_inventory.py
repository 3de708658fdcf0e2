"""Inventories saved to a store: over HTTP, while requests fail."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.store.moto_server import Failure, MotoS3
from torch_dataloader_utils import RemoteOptions, RetryPolicy, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import ConfigTypeError, StoreError


@pytest.mark.full
def test_saving_is_tried_again_and_a_store_that_fails_for_good_is_a_store_error(
    s3: MotoS3, s3_access: StoreAccess, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"x": range(9)}), tmp_path / "a.parquet", row_group_size=4)
    inventory, url = scan_files(tmp_path), "s3://bucket/saved/i.parquet"
    s3.failures.append(Failure("PUT", r"/i\.parquet", count=1))
    save_inventory(inventory, url, s3_access)
    assert load_inventory(url, s3_access).fingerprint() == inventory.fingerprint()
    s3.failures.append(Failure("PUT", r"/i\.parquet"))
    with pytest.raises(StoreError, match=r"saved/i\.parquet"):
        save_inventory(inventory, url, s3_access)


@pytest.mark.slow
def test_scanning_saving_and_loading_take_a_function_for_credentials_and_a_retry_policy(s3: MotoS3) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": range(9)}), sink)
    s3.put("data/a.parquet", sink.getvalue().to_pybytes())
    options, credentials, asked = s3.expiring()
    # By default another client writes than reads.
    remote = RemoteOptions(backend="fsspec", retry=RetryPolicy(most_seconds=0), keep_footers=False)
    inventory = scan_files("s3://bucket/data", storage_options=options, credentials=credentials, remote=remote)
    assert (inventory.num_rows, len(asked)) == (9, 1)
    url = "s3://bucket/saved/i.parquet"
    save_inventory(inventory, url, options, credentials=credentials, remote=remote)
    assert len(asked) == 2
    loaded = load_inventory(url, options, credentials=credentials, remote=remote)
    assert (loaded.fingerprint(), len(asked)) == (inventory.fingerprint(), 3)
    s3.failures.append(Failure("GET", ""))
    for use in (scan_files, load_inventory):
        with pytest.raises(StoreError, match="; 1 attempt in "):
            use("s3://bucket/saved/i.parquet", storage_options=options, credentials=credentials, remote=remote)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"credentials": {"key": "k"}}, "credentials is a dict: pass a function"),
        ({"remote": {"connections": 8}}, r"remote is a dict: pass RemoteOptions\(\.\.\.\)"),
    ],
)
def test_access_of_another_type_is_refused_before_a_store_is_asked(
    tmp_path: Path, option: dict[str, Any], says: str
) -> None:
    pq.write_table(pa.table({"x": range(9)}), tmp_path / "a.parquet")
    inventory = scan_files(tmp_path)
    for use in (
        lambda: scan_files(tmp_path / "nowhere", **option),
        lambda: save_inventory(inventory, tmp_path / "nowhere" / "i.parquet", **option),
        lambda: load_inventory(tmp_path / "nowhere", **option),
    ):
        with pytest.raises(ConfigTypeError, match=says):
            use()
