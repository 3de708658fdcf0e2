"""Inventories saved to a store: over HTTP, while requests fail."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.store.moto_server import Failure, MotoS3
from torch_dataloader_utils import load_inventory, save_inventory, scan_files
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import StoreError


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
