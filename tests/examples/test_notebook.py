"""The notebook of examples/: its cells run in order, and show what the notebook keeps: tables and pictures."""

import ast
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_look.ipynb"


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """What a notebook would show of this cell: the value of its last line, or None."""
    tree = ast.parse(source)
    shown = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), namespace)
    return None if shown is None else eval(compile(shown, str(NOTEBOOK), "eval"), namespace)


def test_cells_run_and_show_what_they_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As where Jupyter starts it: in the notebook's own directory, of a checkout.
    shutil.copytree(NOTEBOOK.parent / "demo", tmp_path / "examples" / "demo")
    monkeypatch.chdir(tmp_path / "examples")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not Path(each or ".", "examples", "demo").exists()])
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [
        "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    shown = [value for value in (run_cell(cell, namespace) for cell in cells) if value is not None]
    pages = [ElementTree.fromstring(f"<all>{value._repr_html_()}</all>") for value in shown]
    titles = [next(page.iter("b")).text or "" for page in pages]
    kept = [next(page.iter("b")).text or "" for page in kept_pages()]
    for each in (titles, kept):
        assert [title.split()[0] for title in each] == ["Inventory", "Plan", "<TableDataLoader", "Metrics"]
    assert kept[:2] == titles[:2], "run the notebook again and keep its outputs"
    assert [len(list(page.iter("img"))) for page in pages] == [0, 1, 1, 0]
    assert "40,030" in (pages[0].findtext(".//table") or "".join(pages[0].itertext()))


def kept_pages() -> list[ElementTree.Element]:
    """What the cells showed when the notebook was run last."""
    outputs = [output for cell in json.loads(NOTEBOOK.read_text())["cells"] for output in cell.get("outputs", ())]
    results = [output["data"]["text/html"] for output in outputs if output["output_type"] == "execute_result"]
    return [ElementTree.fromstring(f"<all>{''.join(html)}</all>") for html in results]
