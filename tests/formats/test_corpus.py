"""Files no one here wrote: exact rows, an error of ours that names the file, or a refusal. Nothing else."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.engine import needs_engine
from tests.formats.files import make_spec, parquet_tasks
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.formats.parquet import decode
from torch_dataloader_utils.tables.reader import make_reader

ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpora" / "parquet-testing"
pytestmark = pytest.mark.skipif(not CORPUS.exists(), reason=f"the corpus of foreign files is not at {CORPUS}")

# From the README of parquet-testing and from RELIABILITY: what must not be read as if nothing were wrong.
MUST_FAIL = {
    "ARROW-GH-41317.parquet": "CorruptFileError",
    "ARROW-GH-41321.parquet": "CorruptFileError",
    "ARROW-GH-45185.parquet": "CorruptFileError",
    "ARROW-RS-GH-6229-DICTHEADER.parquet": "CorruptFileError",
    "ARROW-RS-GH-6229-LEVELS.parquet": "CorruptFileError",
    "PARQUET-1481.parquet": "CorruptFileError",
    "datapage_v1-corrupt-checksum.parquet": "CorruptFileError",
    "rle-dict-uncompressed-corrupt-checksum.parquet": "CorruptFileError",
    "ARROW-GH-47662.parquet": "CorruptFileError",
    "incorrect_map_schema.parquet": "UnsupportedFeatureError",
    "large_string_map.brotli.parquet": "UnsupportedFeatureError",
    "int96_from_spark.parquet": "SchemaError",
}
EXACT = {"repeated_no_annotation.parquet": [6], "sort_columns.parquet": [3, 3], "dict-page-offset-zero.parquet": [39]}
OURS = {"CorruptFileError", "RowCountError", "SchemaError", "UnsupportedFeatureError"}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict[str, Any]]:
    found = {}
    for folder in ("bad_data", "data"):
        child = subprocess.run(
            [sys.executable, "-m", "tests.formats.corpus_child", str(CORPUS / folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        answers = [json.loads(line) for line in child.stdout.splitlines()]
        assert child.returncode == 0, f"died after {answers[-1:]}: {child.stderr[-3000:]}"
        found |= {answer["file"]: answer for answer in answers}
    return found


@pytest.mark.slow
def test_every_file_has_one_of_the_three_answers(verdicts: dict[str, dict[str, Any]]) -> None:
    assert set(verdicts) == {path.name for path in CORPUS.glob("*/*.parquet")}
    for name, answer in verdicts.items():
        if answer["error"] is None:
            assert answer["rows_are_exact"], name
        else:
            kind, message = answer["error"]
            assert kind in OURS, answer
            assert name in message
            assert "row group" in message or "the footer" in message  # a footer is of the whole file


@needs_engine
def test_many_files_can_be_read_by_one_call(verdicts: dict[str, dict[str, Any]]) -> None:
    together = [name for name, answer in verdicts.items() if answer.get("together")]
    print(len(together), len(verdicts))
    assert len(together) > len(verdicts) / 10


@needs_engine
def test_most_chunks_of_numbers_are_decoded_by_the_compiled_decoder(verdicts: dict[str, dict[str, Any]]) -> None:
    chunks = sum((Counter(answer["chunks"]) for answer in verdicts.values()), Counter())
    numbers = chunks.total() - chunks["type"]
    print(chunks)
    assert chunks["compiled"] > 0.75 * numbers


@pytest.mark.parametrize("name", MUST_FAIL)
def test_bad_files_are_not_read_as_if_they_were_good(verdicts: dict[str, dict[str, Any]], name: str) -> None:
    assert verdicts[name]["error"][0] == MUST_FAIL[name]


def test_columns_of_different_lengths_are_told_whichever_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_BYTES_AT_ONCE", 1)
    path = CORPUS / "bad_data" / "ARROW-GH-41317.parquet"
    task, _ = parquet_tasks(path)
    reader = make_reader(make_spec(pq.read_schema(path), columns=("timestamp_ns_no_tz", "timestamp_us_no_tz")))
    with pytest.raises(CorruptFileError, match="timestamp_us_no_tz has 0"):
        reader.read(task)


@pytest.mark.parametrize("name", EXACT)
def test_odd_but_valid_files_give_their_rows(verdicts: dict[str, dict[str, Any]], name: str) -> None:
    assert verdicts[name]["seen"] == EXACT[name]


def test_few_files_are_refused(verdicts: dict[str, dict[str, Any]]) -> None:
    # A reader that refuses everything would pass the tests above.
    refused = {name for name, answer in verdicts.items() if answer["error"] is not None}
    assert refused == set(MUST_FAIL)
