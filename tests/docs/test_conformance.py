"""The conformance matrix: a few cells each time, all of them in `make full`."""

from importlib import import_module

import pytest
from scripts.conformance.matrix import DIFFERENT, EXACT, OURS, Case, Format, Written, judge, section

from tests.effort import TIER

FEW = {
    "parquet": ["encoding: delta byte array", "type: maps"],
    "iceberg": ["position and equality deletes together"],
    "delta": ["deletion vectors in the log"],
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("module", FEW)
def test_this_library_gives_the_rows_that_were_written(module, tmp_path):
    pytest.importorskip("fastparquet")
    of = import_module(f"scripts.conformance.{module}").FORMAT
    cases = [case for case in of.cases if TIER == "full" or case.feature in FEW[module]]
    assert len(cases) >= len(FEW[module])
    for number, case in enumerate(cases):
        verdict = judge(case, of, tmp_path / str(number))
        assert verdict.cells[OURS] != DIFFERENT, case
        assert TIER == "full" or verdict.cells[OURS] == EXACT


def test_other_rows_and_refusals_are_shown(tmp_path):
    def refuse(place):
        raise ValueError(f"{place}/x is | not read")

    written = Written("there", [{"row": 1}, {"row": 2}])
    case = Case("a feature", "a program", lambda folder: written)
    of = Format("A format", [case], lambda place: [{"row": 2}, {"row": 1}], {"one": refuse, "two": lambda place: []})
    verdict = judge(case, of, tmp_path / "case")
    assert verdict.cells == {OURS: EXACT, "one": "refused: ValueError: is / not read", "two": DIFFERENT}
    text = section(of, [verdict])
    assert "| a feature | a program | 2 | exact | refused: ValueError: is / not read | **other rows** |" in text
    assert "This library reads 1 exactly, refuses 0." in text
