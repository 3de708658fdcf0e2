"""What the site needs beyond mkdocs.

That is patterns in `nav`, code blocks that carry `no-run` (see code_blocks.py), the version, and two pages that are
made of files outside of docs/: the changes and the notebook. mkdocs calls the functions by their names.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_MARK = re.compile(r"^(\s*```python) no-run$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """The configuration with each `folder/*.md` in `nav` replaced by the folder's pages that `nav` does not name.

    A section that is empty then is left out.
    """
    docs = Path(config["docs_dir"])
    config["nav"] = _expand(config["nav"], docs, named=set(_named(config["nav"])))
    package = (ROOT / "src" / "torch_dataloader_utils" / "__init__.py").read_text()
    config["extra"]["release"] = re.findall(r'^__version__ = "(.+)"$', package, re.M)[0]
    return config


def on_files(files: Any, config: Any) -> Any:
    """The files with the pages changes.md and first-look.md."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "changes.md", content=changes()))
    files.append(File.generated(config, "first-look.md", content=notebook()))
    return files


def changes() -> str:
    """CHANGELOG.md with links as the pages of docs/ write them; other files have no page."""
    text = (ROOT / "CHANGELOG.md").read_text()
    text = text.replace("](docs/", "](").replace("](examples/first_look.ipynb)", "](first-look.md)")
    return re.sub(r"\[([^]]+)\]\((?:[A-Z]+\.md|(?:examples|benchmarks|tests)/[^)]*)\)", r"\1", text)


def notebook() -> str:
    """The notebook of examples/ as Markdown: its text, its code, and what the cells showed."""
    parts = []
    for cell in json.loads((ROOT / "examples" / "first_look.ipynb").read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", ())))
            shown = "".join(data.get("text/html", ())) or f"<pre>{html.escape(text)}</pre>"
            # Markdown ends a block of HTML at an empty line.
            parts.append('<div class="output">' + re.sub(r"\n\s*\n", "\n", shown) + "</div>")
    return "\n\n".join(parts)


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
