"""Messages about a row group show no signature of a presigned URL."""

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._core.row_group_task import RowGroupTask


def test_a_task_names_its_file_without_query_and_password():
    task = RowGroupTask(
        path="https://me:pw@host/a.parquet?X-Amz-Signature=canary",
        file_size=1,
        identity="1-1",
        file_format=FileFormat.PARQUET,
        ordinal=3,
        first_row=0,
        physical_rows=1,
        live_rows=1,
        byte_offset=0,
        byte_length=1,
    )
    assert task.where == "https://host/a.parquet row group 3"
