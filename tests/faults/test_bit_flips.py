"""Bytes that change on the way or at rest: an error or exact rows, never other values."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine import needs_engine
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


@pytest.mark.slow
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


@pytest.mark.slow
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
import io, logging, sys, warnings
from pathlib import Path
import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
from torch_dataloader_utils import Decoding, StructuredDataset, Vocabulary
from torch_dataloader_utils.errors import ConfigError, DataError

warnings.simplefilter("ignore")
logging.disable()
folder, step = Path(sys.argv[1]), int(sys.argv[2])
table = pa.table({"t": ["a", "b", "c", "d"], "i": pa.array([1, None, 3, 4], pa.int32()), "l": [[1], [], None, [2, 3]]})
data, beside = folder / "data" / "a.parquet", folder / "beside" / "a.parquet"

def written(path, **options):
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, row_group_size=3, store_schema=False, compression="none", **options)
    return path.read_bytes()

def rows(path, filters=None):
    loader, _ = StructuredDataset.create_dataloader(
        path, batch_size=64, num_workers=0, output_format="arrow", decoding=Decoding(threads=1), filters=filters
    )
    return sum(batch.num_rows for batch in loader)

def each_flip(whole, path, judge):
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for bit in range(8 * footer, 8 * len(whole), step):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            verdict = judge()
        except ConfigError:  # of a column that is called otherwise now
            verdict = "error"
        except DataError as error:
            verdict = "error" if str(path.parent) in str(error) else f"names no file: {error!r}"
        print(path.name, bit, verdict, flush=True)

whole = written(data)
each_flip(whole, data, lambda: "exact" if rows(data) == 4 else "other rows")
# Bounds may be others then, and there is nothing to compare them with.
each_flip(whole, data, lambda: rows(data, (pc.field("i") > 2) & (pc.field("t") < "d")) < 5 and "exact")
each_flip(whole, folder / "v.parquet", lambda: len(Vocabulary.load(folder / "v.parquet")) and "exact")
written(beside)
metadata = pq.read_metadata(beside)
metadata.set_file_path("a.parquet")
sidecar = io.BytesIO()
metadata.write_metadata_file(sidecar)
directory = beside.parent
each_flip(sidecar.getvalue(), directory / "_metadata", lambda: "exact" if rows(directory) == 4 else "other rows")
"""


@pytest.mark.processes
@needs_engine
@pytest.mark.parametrize("step", [151, pytest.param(1, marks=pytest.mark.full)])
def test_a_flip_of_any_bit_of_a_footer_ends_in_rows_or_an_error_of_ours(tmp_path: Path, step: int) -> None:
    """On every road to pyarrow, which ends the process where a footer contradicts itself."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FOOTER_FLIPS, str(tmp_path), str(step)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3000,
    )
    verdicts = [tuple(line.split(maxsplit=2)) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (verdicts[-1:], done.stderr)
    assert len(verdicts) > 20_000 // step
    assert {verdict for _, _, verdict in verdicts} == {"exact", "error"}
