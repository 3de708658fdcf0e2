"""Files of others, through the front door: exact rows, an error of ours that names the file, or a refusal."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpora" / "parquet-testing"
pytestmark = pytest.mark.skipif(not CORPUS.exists(), reason=f"the corpus of foreign files is not at {CORPUS}")

MUST_FAIL = {
    "ARROW-GH-41317.parquet",
    "ARROW-GH-41321.parquet",
    "ARROW-GH-45185.parquet",
    "ARROW-RS-GH-6229-DICTHEADER.parquet",
    "ARROW-RS-GH-6229-LEVELS.parquet",
    "PARQUET-1481.parquet",
    "datapage_v1-corrupt-checksum.parquet",
    "rle-dict-uncompressed-corrupt-checksum.parquet",
    "large_string_map.brotli.parquet",
    "int96_from_spark.parquet",
}
DATA_ERRORS = {"CorruptFileError", "RowCountError", "SchemaError", "UnsupportedFeatureError"}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict[str, Any]]:
    child = subprocess.run(
        [sys.executable, "-m", "tests.faults.hostile_child", str(CORPUS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    answers = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, f"died after {answers[-1:]}: {child.stderr[-3000:]}"
    return {answer["file"]: answer for answer in answers}


@pytest.mark.slow
def test_every_file_gets_a_verdict(verdicts: dict[str, dict[str, Any]]) -> None:
    assert set(verdicts) == {path.name for path in CORPUS.glob("*/*.parquet")}
    for name, answer in verdicts.items():
        if answer["error"] is None:
            assert answer["rows"] == answer["whole"] == answer["planned"], answer
        else:
            kind, message = answer["error"]
            assert kind in DATA_ERRORS, answer
            assert name in message


def test_what_is_wrong_is_never_read_as_if_it_were_right(verdicts: dict[str, dict[str, Any]]) -> None:
    failed = {name for name, answer in verdicts.items() if answer["error"] is not None}
    assert failed >= MUST_FAIL


def test_few_good_files_are_refused(verdicts: dict[str, dict[str, Any]]) -> None:
    failed = {name for name, answer in verdicts.items() if answer["error"] is not None}
    assert failed - MUST_FAIL <= {"ARROW-GH-47662.parquet", "incorrect_map_schema.parquet"}
