"""Fenced code blocks of a Markdown page.

```python                      runs, after the page's earlier blocks and in their namespace
```python title="train.py"     is written to that file
```python no-run               is shown only: needs a GPU or somebody's cloud
```bash                        lines that begin with `torchrun` run; others are for the reader
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: +(?P<info>[^\n]*))?\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """One block: its language, the rest of its info string, its text without indentation, and its first line."""

    language: str
    info: str
    text: str
    line: int

    @property
    def is_shown_only(self) -> bool:
        """Whether the block is not to be run."""
        return "no-run" in self.info.split()

    @property
    def file_name(self) -> str | None:
        """The file that the block is the text of, if any."""
        match = _TITLE.search(self.info)
        return match[1] if match else None


def code_blocks(page: Path) -> list[CodeBlock]:
    """The blocks of a page, in order."""
    source = page.read_text()
    return [
        CodeBlock(
            language=match["language"],
            info=match["info"] or "",
            text="".join(line.removeprefix(match["indent"]) for line in match["text"].splitlines(keepends=True)),
            line=source.count("\n", 0, match.start("text")) + 1,
        )
        for match in _FENCE.finditer(source)
    ]
