"""Verdicts on foreign files, end to end through `create_dataloader`, in a process with little memory and time."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.process_limits import limit_process
from torch_dataloader_utils import Decoding, StructuredDataset
from torch_dataloader_utils.errors import LoaderError

CPU_SECONDS = 90


def verdict(path: Path) -> dict[str, Any]:
    """The rows that arrive, or the error of ours; anything else ends the process."""
    try:
        loader, dataset = StructuredDataset.create_dataloader(
            str(path), batch_size=256, num_workers=0, output_format="arrow", decoding=Decoding(threads=1)
        )
        planned = dataset.plan.inventory.num_rows
        rows = sum(batch.num_rows for batch in loader)
    except LoaderError as error:
        return {"error": [type(error).__name__, str(error)]}
    whole = pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False).num_rows
    return {"error": None, "rows": rows, "planned": planned, "whole": whole}


def main() -> None:
    """One line a file."""
    warnings.simplefilter("ignore")
    limit_process(CPU_SECONDS)
    for path in sorted(Path(sys.argv[1]).glob("*/*.parquet")):
        print(json.dumps({"file": path.name, **verdict(path)}), flush=True)


if __name__ == "__main__":
    main()
