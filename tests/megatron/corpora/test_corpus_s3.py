"""Corpora built from a store, into a store, while requests fail: S3's protocol, over HTTP."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.store.moto_server import Failure, MotoS3, Silence
from torch_dataloader_utils._store import RemoteOptions, StoreAccess, write
from torch_dataloader_utils.errors import ConfigError, FileChangedError, NoDataError, StoreError
from torch_dataloader_utils.megatron.corpora import CorpusReport, IndexedDataset, build_corpus
from torch_dataloader_utils.megatron.corpora.corpus_build.part_sources import plan_parts
from torch_dataloader_utils.megatron.corpora.corpus_build.part_store import open_parts
from torch_dataloader_utils.megatron.corpora.corpus_build.parts import PART_KEY_LETTERS, CorpusOptions

pytestmark = pytest.mark.slow

DOCUMENTS = [[row] * (1 + row % 4) for row in range(30)]
OUT = "s3://bucket/corpora/out"


def _table(documents: Any) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"tokens": pa.array(documents), **{f"other{i}": range(len(documents)) for i in range(50)}})
    pq.write_table(table, sink, row_group_size=4)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.fixture
def data(s3: MotoS3) -> str:
    for number in range(3):
        s3.put(f"data/{number}.parquet", _table(DOCUMENTS[10 * number : 10 * number + 10]))
    s3.put("data/_SUCCESS", b"")
    s3.requests.clear()
    return "s3://bucket/data"


def _build(data: str, access: StoreAccess, out: str | Path = OUT, **options: Any) -> CorpusReport:
    return build_corpus(data, out, column="tokens", part_bytes=1, storage_options=access, **options)


def _documents(access: StoreAccess) -> list[list[int]]:
    return [sequence.tolist() for sequence in IndexedDataset(OUT, storage_options=access)]


@pytest.mark.cases(1)
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_corpus_in_s3_is_that_of_a_local_disk(
    s3: MotoS3, s3_access: StoreAccess, data: str, tmp_path: Path, outputs: int
) -> None:
    local = _build(data, s3_access, tmp_path / "out", output_count=outputs)
    with ThreadPoolExecutor(4) as executor:
        report = _build(data, s3_access, executor=executor, output_count=outputs)
    assert replace(report, prefixes=()) == replace(local, prefixes=())
    for ours, theirs in zip(report.prefixes, local.prefixes, strict=True):
        for ending in ("bin", "idx"):
            key = f"{ours}.{ending}".removeprefix("s3://bucket/")
            assert s3.get(key) == Path(f"{theirs}.{ending}").read_bytes()
    assert len([key for key in s3.names() if key.startswith("corpora")]) == 2 * outputs


def test_sources_cost_one_listing_a_tail_a_footer_and_the_column_alone(
    s3: MotoS3, s3_access: StoreAccess, data: str, tmp_path: Path
) -> None:
    for number in range(3):  # content of its own: footers that another test has read stay in memory
        s3.put(f"data/{number}.parquet", _table([[1000 + number]] * 10))
    s3.requests.clear()
    _build(data, s3_access, tmp_path / "out")
    reads = [path for method, path, _ in s3.requests if method == "GET" and ".parquet" in path]
    # A footer for the plan, another one for this process's reader, and the column of each row group.
    assert len(reads) == 3 + 3 + 9
    assert [path for method, path, _ in s3.requests if method == "HEAD"] == ["/bucket/data?"]


def test_requests_that_fail_on_either_side_are_sent_again(s3: MotoS3, s3_access: StoreAccess, data: str) -> None:
    s3.failures += [
        Failure("GET", "parquet", first=2, count=2),
        Failure("PUT", r"\.bin", first=3, count=2),
        Failure("PUT", r"out\.idx", count=1),
        Failure("DELETE", "parts", first=1, count=2),
        Failure("GET", "list-type", count=1),
    ]
    _build(data, s3_access)
    assert _documents(s3_access) == DOCUMENTS


@pytest.mark.cases(1)
@pytest.mark.parametrize("broken", [r"parts/\w+\.bin", r"parts/\w+\.json", r"out\.bin", r"out\.idx"])
def test_an_upload_that_fails_for_good_is_gone_on_with(
    s3: MotoS3, s3_access: StoreAccess, data: str, broken: str
) -> None:
    s3.put("corpora/out.idx", b"of an older corpus")
    first = 4 if "parts" in broken else 0
    s3.failures.append(Failure("PUT", broken, first=first, status="403 Forbidden", code="AccessDenied"))
    with pytest.raises(StoreError, match=r"AccessDenied.*The parts that are done stay; run the same call again"):
        _build(data, s3_access, overwrite=True)
    # Neither an older corpus with new tokens, nor half of a new one.
    assert ("corpora/out.idx" in s3.names()) is ("parts" in broken)
    s3.failures.clear()
    report = _build(data, s3_access, overwrite=True)
    assert report.reused_parts == (4 if "parts" in broken else 9)
    assert _documents(s3_access) == DOCUMENTS
    assert [key for key in s3.names() if "parts" in key] == []


def test_parts_that_lost_a_file_or_have_a_damaged_receipt_are_built_again(
    s3: MotoS3, s3_access: StoreAccess, data: str
) -> None:
    s3.failures.append(Failure("PUT", r"out\.idx", status="403 Forbidden", code="AccessDenied"))
    with pytest.raises(StoreError, match="AccessDenied"):
        _build(data, s3_access)
    s3.failures.clear()
    damages = [b"", b"{", b"\xff", b"[]", b'{"document_count": 1}']
    names = [name for name in s3.names() if name.endswith(".json")]
    counts = json.loads(s3.get(names[-1]))
    damages += [json.dumps({**counts, "token_count": wrong}).encode() for wrong in ("5", -1)]
    for name, damage in zip(names, damages, strict=False):
        s3.put(name, damage)
    s3.client.delete_object(Bucket="bucket", Key=names[-1].replace(".json", ".bin"))
    assert _build(data, s3_access).reused_parts == 9 - len(damages) - 1
    assert _documents(s3_access) == DOCUMENTS


@pytest.mark.cases(1)
@pytest.mark.parametrize(("status", "kind"), [("404 Not Found", NoDataError), ("412 Precondition", FileChangedError)])
def test_parts_that_are_gone_or_replaced_while_they_are_joined_say_what_to_do(
    s3: MotoS3, s3_access: StoreAccess, data: str, status: str, kind: type[Exception]
) -> None:
    code = "NoSuchKey" if kind is NoDataError else "PreconditionFailed"
    method = "HEAD" if kind is NoDataError else "GET"
    s3.failures.append(
        Failure(method, r"parts/\w+\.idx", first=9 if kind is NoDataError else 0, status=status, code=code)
    )
    with pytest.raises(kind, match=r"The parts that are done stay; run the same call again"):
        _build(data, s3_access)
    s3.failures.clear()
    assert _build(data, s3_access).reused_parts == 9


@pytest.mark.cases(1)
def test_a_build_of_two_corpora_that_failed_at_the_second_is_gone_on_with(
    s3: MotoS3, s3_access: StoreAccess, data: str
) -> None:
    s3.failures.append(Failure("PUT", r"00001-of-00002\.idx", status="403 Forbidden", code="AccessDenied"))
    with pytest.raises(StoreError, match="AccessDenied"):
        _build(data, s3_access, output_count=2)
    s3.failures.clear()
    with pytest.raises(ConfigError, match="00000-of-00002 exists"):  # another build
        _build(data, s3_access, output_count=2, eod=9)
    report = _build(data, s3_access, output_count=2)
    assert report.reused_parts == 9
    made = [IndexedDataset(prefix, storage_options=s3_access) for prefix in report.prefixes]
    assert [each.tolist() for dataset in made for each in dataset] == DOCUMENTS


def test_a_build_that_another_one_overtook_leaves_no_parts(s3: MotoS3, s3_access: StoreAccess, data: str) -> None:
    def overtake(done: int, total: int, _: int) -> None:
        if done == 2:
            _build(data, s3_access)

    with pytest.raises((FileChangedError, NoDataError)):
        _build(data, s3_access, on_progress=overtake)
    assert not any("out.parts" in name for name in s3.names())
    assert _documents(s3_access) == DOCUMENTS


def test_a_large_corpus_is_joined_in_blocks_over_the_borders_of_parts(
    s3: MotoS3, s3_access: StoreAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "BLOCK_BYTES", 5 << 20)
    tokens = np.random.default_rng(0).integers(0, 1 << 30, (40, 100_000), dtype=np.int32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), 100_000)
    pq.write_table(pa.table({"tokens": column}), tmp_path / "x.parquet", row_group_size=7, compression=None)
    s3.failures.append(Failure("PUT", r"out\.bin\?.*partNumber=2", count=2))
    _build(str(tmp_path / "x.parquet"), s3_access)
    assert s3.get("corpora/out.bin") == tokens.tobytes()
    assert len(IndexedDataset(OUT, storage_options=s3_access)) == 40


def test_expired_credentials_are_renewed_on_both_sides(s3: MotoS3, data: str) -> None:
    options, credentials, asked = s3.expiring()
    s3.failures += [
        Failure("GET", "parquet", count=1, status="400 Bad Request", code="ExpiredToken"),
        Failure("PUT", "bin", count=1, status="400 Bad Request", code="ExpiredToken"),
    ]
    remote = RemoteOptions(backend="fsspec")  # one client on both sides, which asks once when it opens
    build_corpus(data, OUT, column="tokens", storage_options=options, credentials=credentials, remote=remote)
    assert len(asked) == 3
    assert s3.get("corpora/out.bin")


def test_a_source_that_is_replaced_after_the_plan_is_an_error(s3: MotoS3, s3_access: StoreAccess, data: str) -> None:
    parts = plan_parts(data, "tokens", 1, None, s3_access, output_prefix="out")
    s3.put("data/0.parquet", _table([[7]] * 10))
    with pytest.raises(FileChangedError, match=r"0\.parquet is not the file that was planned"):
        list(parts[0].read())


def test_a_part_carries_little_and_no_secret_that_shows(s3: MotoS3, s3_access: StoreAccess, data: str) -> None:
    parts = plan_parts(data, "tokens", 1, None, s3_access, output_prefix="out")
    options = CorpusOptions(
        column="tokens", dtype="int32", tokenizer=None, eod=None, vocabulary_size=None, skip_nulls=False
    )
    assert max(len(pickle.dumps((part, options))) for part in parts) < 4096
    assert "test-secret" not in repr(parts)


def test_ctrl_c_does_not_wait_for_a_store_that_does_not_remove_parts(s3: MotoS3, s3_access: StoreAccess) -> None:
    s3.put(f"corpora/out.parts/{'0' * PART_KEY_LETTERS}.json", b"")
    with Silence() as silence:
        s3.failures.append(Failure("DELETE", "parts", count=1, meanwhile=silence.interrupt_and_wait))
        with pytest.raises(KeyboardInterrupt):
            open_parts(OUT, s3_access).remove()
        assert not silence.outlasted
