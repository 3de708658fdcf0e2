"""The format of Arrow IPC files and streams, which Feather version 2 is too."""

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils.formats.arrow.decode import decode_arrow
from torch_dataloader_utils.formats.arrow.scan import scan_arrow
from torch_dataloader_utils.formats.file_format import Format

ARROW = Format(number=FileFormat.ARROW, names=("arrow",), endings=("feather",), scan=scan_arrow, decode=decode_arrow)
