"""Pages that the site makes of files outside of docs/."""

import re

from tests.docs.mkdocs_hook import ROOT, changes, notebook


def test_links_of_the_changes_lead_to_pages() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", changes())
    assert len(links) > 5
    made = {"first-look.md"}
    assert [link for link in links if link not in made and not (ROOT / "docs" / link).is_file()] == []


def test_the_notebook_is_a_page_with_its_outputs() -> None:
    page = notebook()
    assert page.startswith("# A first look\n")
    assert page.count("```python\n") == 6
    assert page.count('<div class="output">') >= 4
    outputs = re.findall(r'<div class="output">.*?</div>\n\n', page, re.S)
    assert not any("\n\n" in output.rstrip("\n") for output in outputs)
