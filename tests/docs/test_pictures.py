"""The pictures of the site are what the library plans and delivers today."""

import importlib.util
from pathlib import Path

import pytest

from tests.engine import needs_engine

pytestmark = [pytest.mark.slow, needs_engine]  # `tdu doctor` says what reads the columns

ROOT = Path(__file__).parents[2]


def test_pictures_are_as_the_library_draws_them(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("draw_concepts", ROOT / "scripts" / "draw_concepts.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    assert pictures(tmp_path) == pictures(ROOT / "docs"), "run python -m scripts.draw_concepts"


def pictures(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.svg")}
