"""What the site needs beyond mkdocs: patterns in `nav`, and code blocks that carry `no-run` (see code_blocks.py).

mkdocs calls the functions by their names.
"""

import re
from pathlib import Path
from typing import Any

_MARK = re.compile(r"^(\s*```python) no-run$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """The configuration with each `folder/*.md` in `nav` replaced by the folder's pages that `nav` does not name.

    A section that is empty then is left out.
    """
    docs = Path(config["docs_dir"])
    config["nav"] = _expand(config["nav"], docs, named=set(_named(config["nav"])))
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page without the marks: the site's Markdown does not allow a word after a language."""
    return _MARK.sub(r"\1", markdown)


def _named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [name for item in (nav.values() if isinstance(nav, dict) else nav) for name in _named(item)]


def _expand(nav: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _expand(item, docs, named) for title, item in nav.items()}
    if not isinstance(nav, list):
        return nav
    expanded: list[Any] = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            pages = sorted(str(page.relative_to(docs)) for page in docs.glob(item))
            expanded += [page for page in pages if page not in named]
        else:
            expanded.append(_expand(item, docs, named))
    return [item for item in expanded if not (isinstance(item, dict) and [] in item.values())]
