"""The view of a value in notebooks: `_repr_html_` of plans, inventories, loaders and metrics."""

from base64 import b64encode
from collections.abc import Iterable
from html import escape


def html_of(title: str, facts: Iterable[tuple[str, object]], picture: str = "") -> str:
    """Return a title, a table of names and values, and a picture; HTML without scripts, with styles of its own only.

    Args:
        title: Text; title and facts are escaped.
        facts: (name, value) pairs; values are printed.
        picture: A whole SVG file, or "".
    """
    cell = 'style="text-align:left;padding:0 1em 0 0;vertical-align:top'
    rows = "".join(
        f'<tr><td {cell};opacity:.65">{escape(name)}</td><td {cell}">{escape(str(value))}</td></tr>'
        for name, value in facts
    )
    # In an image, its styles and ids do not affect the page.
    source = f"data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}"
    image = f'<img alt="who reads what" style="width:100%;max-width:860px" src="{source}"/>' if picture else ""
    return f"<div><b>{escape(title)}</b><table>{rows}</table>{image}</div>"
