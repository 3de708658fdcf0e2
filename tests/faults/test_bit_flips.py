"""Bytes that change on the way or at rest: an error or exact rows, never other values."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.s3_server import Rule, S3Server
from tests.faults.tables import assert_rows, parquet_bytes, table, upload
from tests.faults.test_retries import loader_of
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import CorruptFileError, DataError


def flip(at: int) -> Any:
    """Flips a bit of the body of a reply, counted from its start."""

    def act(server: S3Server, request: Any, reply: Any) -> None:
        body = bytearray(reply.body)
        body[at % len(body)] ^= 16
        reply.body = bytes(body)

    return act


@pytest.mark.parametrize("at", [100, 700, 1500, 2300])
def test_a_flip_in_a_reply_is_an_error_that_names_the_row_group(server: S3Server, access: StoreAccess, at: int) -> None:
    upload(server, compression="none", use_dictionary=False)
    loader = loader_of(access)
    # Of every reply: which requests come first depends on what other tests have left in the cache of footers.
    server.rules.append(Rule(flip(at), key="^data/", count=None))
    with pytest.raises(CorruptFileError, match=r"s3://bucket/data/\d\.parquet row group \d"):
        list(loader)


def test_row_groups_that_arrive_flipped_are_left_out_and_counted(server: S3Server, access: StoreAccess) -> None:
    upload(server, compression="none", use_dictionary=False)

    def flip_first_group(server: S3Server, request: Any, reply: Any) -> None:
        if request.span and request.span[0] < 1000:
            flip(900)(server, request, reply)

    server.rules.append(Rule(flip_first_group, key="data/1", first=1, count=None))
    with pytest.warns(UserWarning, match="left out 1 of 9 row groups with 100 rows"):
        loader = loader_of(access, on_error="skip")
    rows = np.concatenate([batch["row"].numpy() for batch in loader])
    assert sorted(rows.tolist()) == [*range(300), *range(400, 900)]


@pytest.mark.cases(1)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_no_flip_in_the_data_of_a_file_gives_other_values(tmp_path: Path, compression: str) -> None:
    whole = parquet_bytes(table(0, 40), 20, compression=compression)
    data_bytes = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    verdicts = {"error": 0, "exact": 0}
    for at in range(4, data_bytes, 3):
        path = tmp_path / f"{at}.parquet"
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            loader, _ = StructuredDataset.create_dataloader(path, batch_size=64, num_workers=0, output_format="numpy")
            batches = list(loader)
        except DataError as error:
            verdicts["error"] += path.name in str(error)
        else:
            assert_rows(batches, 40)
            verdicts["exact"] += 1
    assert sum(verdicts.values()) == len(range(4, data_bytes, 3))
    assert verdicts["error"] > 2 * verdicts["exact"]  # flips in what no reader looks at, such as page statistics


FOOTER_FLIPS = """
import os, sys, warnings
from pathlib import Path
from tests.faults.tables import parquet_bytes, table
from torch_dataloader_utils import Decoding, StructuredDataset
from torch_dataloader_utils.errors import DataError

warnings.simplefilter("ignore")
whole = parquet_bytes(table(0, 40), 20, compression="none")
first = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
path = Path(sys.argv[1])

def judge():
    try:
        loader, _ = StructuredDataset.create_dataloader(
            path, batch_size=64, num_workers=0, output_format="arrow", decoding=Decoding(threads=1)
        )
        return sum(batch.num_rows for batch in loader) == 40
    except DataError as error:
        return path.name in str(error)

for at in range(first + int(sys.argv[2]), len(whole), 24):
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if judge() else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("start", [0, 7, 20])
def test_a_flip_in_a_footer_never_gives_another_count_without_an_error(tmp_path: Path, start: int) -> None:
    # Values cannot be vouched for: Parquet has no checksum over its footer.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FOOTER_FLIPS, str(tmp_path / "a.parquet"), str(start)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    codes = [int(line) for line in done.stdout.split()]
    assert done.returncode == 0
    assert len(codes) > 20
    # pyarrow 26 ends the process on size statistics that contradict each other: no error can be caught there.
    assert codes.count(-signal.SIGABRT) == done.stderr.count("parquet::ParquetException")
    assert set(codes) <= {0, -signal.SIGABRT}
