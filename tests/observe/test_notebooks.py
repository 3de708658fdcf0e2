"""What notebooks show: HTML that is well-formed and escaped whatever the names, and a bar that is one output."""

import sys
from base64 import b64decode
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cli.test_scan import inventory_of
from tests.stream.tables import write_table
from torch_dataloader_utils import StructuredDataset, plan_epoch
from torch_dataloader_utils._runtime.notebook import html_of

# What XML 1.0 can hold; control characters of a name are no matter of HTML.
words = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=30)


@example(title="<b>&amp;</b>", facts=[("<td>", '"><script>')])
@given(title=words, facts=st.lists(st.tuples(words, words), max_size=5))
def test_names_and_values_stay_text(title, facts):
    page = ElementTree.fromstring(html_of(title, facts))
    assert [cell.text or "" for cell in page.iter("td")] == [each for fact in facts for each in fact]
    assert (page.findtext("b") or "") == title


def test_a_source_cannot_write_html():
    inventory = replace(inventory_of([10, 20]), source="<script>alert(1)</script>", notes=("<b>no</b>",))
    for value in (inventory, plan_epoch(inventory)):
        assert "<script>" not in value._repr_html_()
        assert "<b>no" not in value._repr_html_()


def test_the_picture_of_a_plan_is_that_of_its_first_ranks_and_left_out_where_it_is_large():
    page = ElementTree.fromstring(plan_epoch(inventory_of([100] * 40), num_ranks=20, num_workers=2)._repr_html_())
    picture = b64decode(next(page.iter("img")).attrib["src"].partition(",")[2]).decode()
    assert "rank 7 · worker 1" in picture
    assert "rank 8" not in picture
    many = plan_epoch(inventory_of([10] * 5_000))._repr_html_()
    assert "<img" not in many
    assert len(many) < 5_000


@pytest.fixture
def outputs(monkeypatch):
    """What a kernel of Jupyter would show: lists of the states of each output."""
    shown = []

    def display(html, *, display_id):
        assert display_id
        states = [html]
        shown.append(states)
        return SimpleNamespace(update=states.append)

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    module.HTML, module.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_a_pass_in_a_notebook_is_one_bar(tmp_path, outputs):
    write_table(tmp_path, [[40, 30], [35]])
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=16, num_workers=0, show_progress=True)
    list(loader)
    (states,) = outputs
    bars = [ElementTree.fromstring(f"<p>{state}</p>").find("progress").attrib for state in states]
    assert bars[0]["value"] == "0"
    assert (bars[-1]["value"], bars[-1]["max"]) == ("105", "105")
    assert states[-1].endswith("done")


def test_ipython_in_a_terminal_is_no_notebook(tmp_path, outputs, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    write_table(tmp_path, [[40]])
    loader, _ = StructuredDataset.create_dataloader(tmp_path, num_workers=0, show_progress=True)
    list(loader)
    assert not outputs
