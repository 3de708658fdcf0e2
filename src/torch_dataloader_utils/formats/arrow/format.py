"""`ARROW`: the format of Arrow IPC files and streams. Feather version 2 is the file format too."""

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils.formats.arrow.decode import decode_arrow
from torch_dataloader_utils.formats.arrow.scan import scan_arrow
from torch_dataloader_utils.formats.file_format import Format

ARROW = Format(
    number=FileFormat.ARROW,
    names=("arrow",),
    endings=("feather", "arrows", "ipc"),
    first_bytes=b"ARROW1",  # of files; streams have none
    scan=scan_arrow,
    decode=decode_arrow,
)
