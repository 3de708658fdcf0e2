"""Files that were made to do harm: exact rows or a clear error, in bounded time and memory."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.faults.generated_child import CASES
from tests.faults.test_hostile import ROOT
from torch_dataloader_utils import _engine

pytestmark = pytest.mark.slow

# Kind of error, and a part of its message; None for exact rows.
WANTED: dict[str, tuple[str, str] | int] = {
    "good": 3,
    "columns": ("UnsupportedFeatureError", "200,000 leaf columns, the limit is 100,000"),
    "more-columns-than-thrift-takes": ("UnsupportedFeatureError", "Exceeded size limit"),
    "groups": ("UnsupportedFeatureError", "1,000,000 row groups, the limit is 100,000"),
    "deep": ("UnsupportedFeatureError", "more than 100 levels" if _engine.IS_BUILT else "increasing schema depth"),
    "long-footer": ("CorruptFileError", "the footer claims 73,400,328 bytes of a file of"),
    "rows-below-zero": ("CorruptFileError", "row group 0 has -5 rows"),
    "file-rows-below-zero": ("CorruptFileError", "the footer says -1 rows"),
    "values-below-zero": ("RowCountError", "gave 0 of 3 stored rows"),
    "length-below-zero": ("CorruptFileError", "in -9 bytes"),
    "offset-below-zero": ("CorruptFileError", "at -4"),
    "offset-outside": ("CorruptFileError", "at 1099511627776"),
    "length-outside": ("CorruptFileError", "in 1099511627776 bytes"),
    "2^40-rows": ("CorruptFileError", "1099511627776 rows"),
    "2^31-rows": ("UnsupportedFeatureError", "would decode to at least 17179869168 bytes"),
    "200-million-rows": ("RowCountError", "gave 3 of 200000000 stored rows"),
    "fewer-rows-than-said": ("RowCountError", "gave 3 of 4 stored rows"),
    "page-of-2^30-values": 3,
    "bomb-that-says-so": ("UnsupportedFeatureError", "would decode to at least 8589934592 bytes"),
    "bomb-that-lies": (64 << 20) // 8,
    "dictionary-bomb": ("UnsupportedFeatureError", "needs more memory than there is"),
    "small-dictionary": 1000,
}
# What decodes in full, or runs into the memory limit of its process; all others stop at the footer.
LARGE = {"groups": 1500, "bomb-that-lies": 1000, "dictionary-bomb": 4096, "columns": 800}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict[str, Any]]:
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.faults.generated_child"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    answers = [json.loads(line) for line in child.stdout.splitlines()]
    return {answer["case"]: answer for answer in answers}


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_gets_exact_rows_or_a_clear_error(verdicts: dict[str, dict[str, Any]], name: str) -> None:
    assert name in verdicts, "the process died, or exceeded 30 s"
    answer, wanted = verdicts[name], WANTED[name]
    if isinstance(wanted, int):
        assert answer["error"] is None, answer
        assert answer["rows"] == answer["planned"] == answer["whole"] == wanted
    else:
        kind, message = answer["error"]
        assert kind == wanted[0]
        assert wanted[1] in message
        assert f"{name}.parquet" in message
    assert answer["grown_mib"] < LARGE.get(name, 200)
