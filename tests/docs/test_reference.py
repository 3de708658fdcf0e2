"""Every public name has a place in the reference."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
# Where users import from, besides torch_dataloader_utils.integrations.<trainer>, which may not be installed.
PUBLIC = ["", ".blending", ".formats", ".megatron.corpora", ".megatron.schedules", ".samples", ".wrappers"]
_DIRECTIVE = re.compile(r"^::: (torch_dataloader_utils[\w.]*)$", re.M)
# What the site would run together into a paragraph, and what it would fold into a note with a title.
_PICTURE_AT_THE_MARGIN = re.compile(r"^\S.* {3,}\S", re.M)
_WORDS_BEFORE_A_BLOCK = re.compile(r"^\w[\w -]*: .*\n +\S", re.M)


def resolve(path: str) -> Any:
    """The module or object of a dotted path."""
    try:
        return import_module(path)
    except ImportError:
        parent, _, name = path.rpartition(".")
        return getattr(resolve(parent), name)


@pytest.fixture(scope="module")
def documented() -> list[Any]:
    """Everything that the pages show: what a directive names, and the public names of modules."""
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    paths = [path for path in _DIRECTIVE.findall(pages) if ".integrations." not in path]
    shown: list[Any] = []
    for thing in map(resolve, paths):
        names = getattr(thing, "__all__", vars(thing)) if isinstance(thing, ModuleType) else []
        shown += [thing, *(getattr(thing, name) for name in names)]
    return shown


@pytest.mark.parametrize("module", [f"torch_dataloader_utils{name}" for name in PUBLIC])
def test_every_public_name_is_in_the_reference(module: str, documented: list[Any]) -> None:
    package = import_module(module)
    missing = [name for name in package.__all__ if not any(getattr(package, name) is each for each in documented)]
    assert not missing, f"add them to a page of docs/reference: {missing}"


def test_the_site_can_show_docstrings_as_they_are_written(documented: list[Any]) -> None:
    members = [member for thing in documented if isinstance(thing, type) for member in vars(thing).values()]
    for thing in [*documented, *members]:
        text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
        for pattern in (_PICTURE_AT_THE_MARGIN, _WORDS_BEFORE_A_BLOCK):
            found = pattern.search(text)
            assert not found, f"{thing}: indent pictures, write fields under Attributes:, not {found[0]!r}"


def test_every_trainer_has_a_place_in_the_reference() -> None:
    trainers = Path(import_module("torch_dataloader_utils.integrations").__path__[0])
    page = (REFERENCE / "integrations.md").read_text()
    for module in trainers.glob("[!_]*.py"):
        assert f"::: torch_dataloader_utils.integrations.{module.stem}." in page
