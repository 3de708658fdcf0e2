"""Objects without content: data that was not uploaded, or markers of directories."""

from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.store.moto_server import MotoS3
from torch_dataloader_utils import scan_files
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import CorruptFileError

pytestmark = pytest.mark.slow


def test_markers_of_directories_are_left_out_and_empty_data_is_not(s3: MotoS3, s3_access: StoreAccess) -> None:
    content = BytesIO()
    pq.write_table(pa.table({"x": range(9)}), content)
    s3.put("data/trips.parquet/year=1/part.parquet", content.getvalue())
    for marker in ("data/", "data/trips.parquet", "data/trips.parquet/", "data/trips.parquet/year=1_$folder$"):
        s3.put(marker, b"")
    for path in ("s3://bucket/data", "s3://bucket/data/", "s3://bucket/data/**", "s3://bucket/*/*.parquet"):
        assert scan_files(path, storage_options=s3_access).num_rows == 9
    s3.put("data/trips.parquet/year=1/part-1.parquet", b"")
    for path in ("s3://bucket/data", "s3://bucket/data/**/*.parquet"):
        with pytest.raises(CorruptFileError, match=r"part-1\.parquet is empty"):
            scan_files(path, storage_options=s3_access)
