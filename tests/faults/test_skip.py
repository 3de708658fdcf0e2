"""on_error="skip": bad row groups are named and left out before the plan, and every rank takes the same steps."""

import io
import logging
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.s3_server import Rule, S3Server, error
from tests.faults.tables import parquet_bytes, table, upload
from torch_dataloader_utils import StructuredDataset, pack_tokens, scan_files
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import ConfigError, CorruptFileError, NoDataError, StoreError


def write(folder: Path, damaged: dict[int, list[int]]) -> None:
    """Four files of three row groups of 50 rows; the row groups in `damaged` have a byte flipped in a page."""
    for file in range(4):
        data = bytearray(parquet_bytes(table(file * 150, 150), 50, compression="none", use_dictionary=False))
        for group in damaged.get(file, []):
            row = np.int64(file * 150 + group * 50 + 20).tobytes() + np.int64(file * 150 + group * 50 + 21).tobytes()
            data[data.index(row)] ^= 1
        (folder / f"{file}.parquet").write_bytes(data)


def ranks(folder: Path, num_ranks: int, **options: Any) -> list[Any]:
    return [
        StructuredDataset.create_dataloader(
            str(folder), batch_size=16, num_workers=0, num_ranks=num_ranks, rank=rank, shuffle=True, **options
        )[0]
        for rank in range(num_ranks)
    ]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_bad_row_groups_are_left_out_with_equal_steps(
    tmp_path: Path, num_ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {1: [0, 2], 3: [1]})
    with pytest.raises(CorruptFileError, match="row group"):
        [list(loader) for loader in ranks(tmp_path, num_ranks)]
    with pytest.warns(
        UserWarning, match=r"left out 3 of 12 row groups with 150 rows; .*1\.parquet row group 0: Corrupt"
    ):
        loaders = ranks(tmp_path, num_ranks, on_error="skip")
    left_out = {row for start in (150, 250, 500) for row in range(start, start + 50)}
    batches = [list(loader) for loader in loaders]
    assert len({len(each) for each in batches}) == 1
    rows = [row for each in batches for batch in each for row in batch["row"].tolist()]
    assert sorted(rows) == sorted(set(range(600)) - left_out)
    assert "left out 3 of 12" in loaders[0].plan.explain()
    named = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("1.parquet row group 0" in message for message in named) == num_ranks


def test_a_state_is_bound_to_what_was_left_out(tmp_path: Path) -> None:
    write(tmp_path, {1: [0]})
    with pytest.warns(UserWarning, match="left out 1"):
        (loader,) = ranks(tmp_path, 1, on_error="skip")
    batches = iter(loader)
    seen = [row for _ in range(5) for row in next(batches)["row"].tolist()]
    with pytest.warns(UserWarning, match="left out 1"):
        (again,) = ranks(tmp_path, 1, on_error="skip")
    again.load_state_dict(loader.state_dict())
    seen += [row for batch in again for row in batch["row"].tolist()]
    assert sorted(seen) == [*range(150), *range(200, 600)]


def test_good_data_is_not_touched(tmp_path: Path) -> None:
    write(tmp_path, {})
    (skipping,) = ranks(tmp_path, 1, on_error="skip")
    (raising,) = ranks(tmp_path, 1)
    assert skipping.state_dict() == raising.state_dict()


def test_nothing_left_is_an_error_and_so_is_another_word(tmp_path: Path) -> None:
    write(tmp_path, {file: [0, 1, 2] for file in range(4)})
    with pytest.raises(NoDataError, match="not one of 12 row groups"):
        ranks(tmp_path, 1, on_error="skip")
    with pytest.raises(ConfigError, match="on_error='ignore'"):
        ranks(tmp_path, 1, on_error="ignore")


def test_storage_that_fails_is_not_bad_data(server: S3Server, access: StoreAccess) -> None:
    upload(server)
    server.rules.append(Rule(error(403, "AccessDenied"), key="data/1", first=1, count=None))
    with pytest.raises(StoreError, match="AccessDenied"):
        StructuredDataset.create_dataloader("s3://bucket/data", storage_options=access, on_error="skip")


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("damage", ["cut", "footer", "empty-head", "lying-counts"])
def test_files_whose_footer_does_not_decode_are_left_out_with_equal_steps(
    tmp_path: Path, num_ranks: int, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {3: [1]})
    for name in ("0.parquet", "2.parquet"):  # the first one would have given the schema
        path = tmp_path / name
        path.write_bytes(damaged(path.read_bytes(), damage))
    with pytest.raises(CorruptFileError, match=r"0\.parquet"):
        ranks(tmp_path, 1)
    with pytest.warns(UserWarning, match="left out") as warned:
        loaders = ranks(tmp_path, num_ranks, on_error="skip")
    assert {each.filename for each in warned} == {__file__}
    texts = [str(each.message) for each in warned]
    assert any(
        "left out 2 of 4 files with uncounted rows" in text and "0.parquet: CorruptFileError" in text for text in texts
    )
    assert any("left out 1 of 6 row groups with 50 rows" in text for text in texts)
    batches = [list(loader) for loader in loaders]
    assert len({len(each) for each in batches}) == 1
    rows = [row for each in batches for batch in each for row in batch["row"].tolist()]
    assert sorted(rows) == [*range(150, 300), *range(450, 500), *range(550, 600)]
    assert "left out 2 of 4 files" in loaders[0].plan.explain()
    assert any("2.parquet" in record.message for record in caplog.records if record.levelno == logging.WARNING)


def damaged(data: bytes, how: str) -> bytes:
    """A Parquet file whose metadata cannot be used."""
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    match how:
        case "cut":
            return data[: len(data) // 2]
        case "footer":
            return data[: -footer_bytes - 8] + bytes(255 - byte for byte in data[-footer_bytes - 8 : -8]) + data[-8:]
        case "empty-head":
            return b"not parquet at all"
        case _:
            return data[:-8] + (len(data) * 2).to_bytes(4, "little") + data[-4:]


def test_a_directory_of_damaged_files_alone_is_no_data(tmp_path: Path) -> None:
    for file in range(3):
        (tmp_path / f"{file}.parquet").write_bytes(b"no parquet")
    with pytest.raises(NoDataError, match=r"not one of 3 files can be read.*0\.parquet"):
        ranks(tmp_path, 1, on_error="skip")


@pytest.mark.processes
def test_a_pool_of_processes_leaves_out_the_same_files(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "2.parquet").write_bytes(b"no parquet here")
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.warns(UserWarning, match="left out 1 of 4 files"),
    ):
        inventory = scan_files(tmp_path, executor=pool, on_error="skip")
    assert inventory.num_rows == 450
    with pytest.raises(ConfigError, match="on_error='ignore'"):
        scan_files(tmp_path, on_error="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_packs_leave_out_bad_row_groups_and_files_with_equal_steps(tmp_path: Path, num_ranks: int) -> None:
    for file in range(3):
        tokens = [[file * 1000 + row] * 4 for row in range(60)]
        sink = io.BytesIO()
        pq.write_table(
            pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32()))}),
            sink,
            row_group_size=20,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )
        data = bytearray(sink.getvalue())
        if file == 1:
            data[data.index(np.int32([1025] * 4).tobytes())] ^= 1  # row group 1
        (tmp_path / f"{file}.parquet").write_bytes(data if file != 2 else data[:-20])
    packing = pack_tokens("tokens", 7)
    with pytest.warns(UserWarning, match="left out 1 of") as warned:
        loaders = ranks(tmp_path, num_ranks, on_error="skip", pack=packing)
    assert any("left out 1 of 6 row groups with 20 rows" in str(each.message) for each in warned)
    batches = [list(loader) for loader in loaders]
    assert len({len(each) for each in batches}) == 1
    seen = {int(token) for each in batches for batch in each for token in np.unique(batch["tokens"])}
    assert seen - {0} == {*range(1, 60), *range(1000, 1020), *range(1040, 1060)}
