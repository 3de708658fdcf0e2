"""The page of troubleshooting has each class of errors, and its messages are those of the code."""

import ast
import re
from pathlib import Path

import torch_dataloader_utils.errors as errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
# Bases, which are not raised by their own name often, and say what their classes say.
_BASES = {"LoaderError", "DataError"}


def text_of(node: ast.expr) -> str:
    """The text of a message, with … for each value."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(text_of, parts))
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
    return "…"


def messages() -> list[str]:
    """Every text of the library that is not a docstring."""
    nodes = [node for path in (ROOT / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    kinds = ast.Constant | ast.JoinedStr | ast.BinOp
    return [text_of(node) for node in nodes if isinstance(node, kinds) and node not in docstrings]


def test_each_class_has_a_section() -> None:
    classes = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.LoaderError)
    }
    assert set(re.findall(r"^## (\w+Error)$", PAGE, re.M)) == classes - _BASES


def test_each_message_is_one_of_the_library() -> None:
    own = PAGE[PAGE.index("## ConfigError") :]
    quoted = re.findall(r"^\| `([^`]+)` \|", own, re.M)
    known = "\0".join(messages())
    patterns = [(text, r"[^\0]*?".join(map(re.escape, text.split("…")))) for text in quoted]
    assert len(quoted) > 25
    assert [text for text, pattern in patterns if not re.search(pattern, known)] == []
