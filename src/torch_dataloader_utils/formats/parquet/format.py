"""`PARQUET`: the format of Parquet files."""

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils.formats.file_format import Format
from torch_dataloader_utils.formats.parquet.decode import decode_parquet, list_items, parquet_columns
from torch_dataloader_utils.formats.parquet.footer import parquet_schema
from torch_dataloader_utils.formats.parquet.scan import scan_parquet, scan_together
from torch_dataloader_utils.formats.parquet.sidecar import scan_sidecar
from torch_dataloader_utils.formats.parquet.together import NumberGroups

PARQUET = Format(
    number=FileFormat.PARQUET,
    names=("parquet",),
    endings=("pq",),
    first_bytes=b"PAR1",
    scan=scan_parquet,
    scan_together=scan_together,
    decode=decode_parquet,
    decode_rows=decode_parquet,
    decode_parts=parquet_columns,
    decode_together=NumberGroups.of,
    read_schema=parquet_schema,
    scan_sidecar=scan_sidecar,
    list_items=list_items,
    has_statistics=True,
    is_columnar=True,
)
