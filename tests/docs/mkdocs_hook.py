"""Lets code blocks carry `no-run` (see code_blocks.py), which the site's Markdown does not allow after a language."""

import re
from typing import Any

_MARK = re.compile(r"^(\s*```python) (no-run|notest)$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page without the marks; called by mkdocs for every page."""
    return _MARK.sub(r"\1", markdown)
