"""Every file and every name of code that a page about the design has exists."""

import re
from itertools import product
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))
PLACES = ("src", "tests", "benchmarks", "examples", "scripts", "docs")
# Of other libraries, which tests do not import.
FOREIGN = {
    "BatchEncoding",
    "ComputeError",
    "DataLoaderShard",
    "FileMetaData.append_row_groups",
    "ObjectRef.future",
    "PROTOCOL.md",
    "SLURM_NTASKS",
    "max_task_retries",
}
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"(?:[\w.{},*-]+/)*[\w.{},*-]+\.(?:py|pyi|c|h|sh|md|toml|ipynb|yml)")
_NAME = re.compile(r"[A-Za-z_]\w+(?:\.[A-Za-z_]\w+)*")
_ALTERNATIVES = re.compile(r"\{([^}]*)\}")


def spelled_out(path: str) -> list[str]:
    """The files of one name with alternatives: tables/{reader,projection}.py gives two."""
    parts = _ALTERNATIVES.split(path)
    choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


@pytest.fixture(scope="module")
def files() -> list[Path]:
    found = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.is_file()]
    return [path.relative_to(ROOT) for path in [*found, *(path for path in ROOT.iterdir() if path.is_file())]]


@pytest.fixture(scope="module")
def words(files: list[Path]) -> set[str]:
    kinds = (".py", ".pyi", ".c", ".h", ".sh", ".toml", "")
    here = Path(__file__).relative_to(ROOT)
    code = [path for path in files if path.suffix in kinds and path.parts[0] != "docs" and path != here]
    texts = [(ROOT / path).read_text() for path in code]
    named = {word for path in files for word in (*path.parts, path.stem)}
    return named.union(*(re.findall(r"\w+", text) for text in texts))


def is_there(name: str, words: set[str]) -> bool:
    """Whether code has all parts of the name, or the name is one of an installed library."""
    if set(name.split(".")) <= words or name in FOREIGN:
        return True
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_names_of_a_page_exist(page: Path, files: list[Path], words: set[str]) -> None:
    gone = []
    for code in _CODE.findall(page.read_text()):
        if code in FOREIGN:
            continue
        if _FILE.fullmatch(code):
            gone += [path for path in spelled_out(code) if not any(file.match(path) for file in files)]
        elif (name := code.partition("(")[0]) and _NAME.fullmatch(name):
            gone += [] if is_there(name, words) else [name]
    assert not gone, f"{page.name} has files or names that do not exist: {gone}"
