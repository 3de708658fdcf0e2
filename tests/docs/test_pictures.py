"""The pictures of the concepts are what loaders deliver today."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pictures_are_as_the_library_draws_them(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("draw_concepts", ROOT / "scripts" / "draw_concepts.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "concepts").glob("*.svg")}
    assert drawn == kept, "run python scripts/draw_concepts.py"
