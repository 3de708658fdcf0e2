"""What users install: wheel and sdist build from a copy of the tree, are typed and complete, and import lightly."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import torch_dataloader_utils
from torch_dataloader_utils.cli import main

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "torch_dataloader_utils"

BUILD = """
import sys
from setuptools import build_meta
target = sys.argv[1]  # setuptools writes its own arguments there
print(build_meta.build_wheel(target), build_meta.build_sdist(target))
"""

IMPORT = """
import sys
import torch_dataloader_utils
heavy = sorted({"torch", "pyarrow", "numpy", "fsspec", "pyiceberg", "accelerate", "lightning", "transformers", "ray"}
               & set(sys.modules))
print(torch_dataloader_utils.__file__, heavy)
"""

FOLDERS = (".ci", ".github", "benchmarks", "docs", "examples", "scripts", "src", "tests")
MADE = re.compile(r"__pycache__|\.egg-info|\.so$|^benchmarks/(\.data|results)/")
# Paths of the tree, without what builds and runs leave there.
SOURCES = sorted(
    name
    for path in [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    if path.is_file() and not MADE.search(name := str(path.relative_to(ROOT))) and name != ".git"
)


FREE_THREADED = 'import sysconfig\nsysconfig.get_config_vars()["Py_GIL_DISABLED"] = 1\n'


def build(work: Path, **environment: str) -> Path:
    """A directory with the wheel and the sdist, built in a copy of the tree, because building writes into it."""
    for file in SOURCES:
        (work / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, work / file)
    target = work / "dist"
    target.mkdir()
    command = [sys.executable, "-c", BUILD, str(target)]
    done = subprocess.run(
        command, cwd=work, env={**os.environ, **environment}, timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist."""
    return build(tmp_path_factory.mktemp("build"), EPOCHPLAN_URL="https://example.org/epochplan")


def modules() -> set[str]:
    """The files that must be in a distribution, as paths below the package's parent."""
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    return {str(path.relative_to(PACKAGE.parent)) for path in files}


def test_the_wheel_has_every_module_and_is_typed(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
        scripts = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert names >= modules() | {"torch_dataloader_utils/py.typed"}
    assert shutil.which("cc") is None or "torch_dataloader_utils/_engine/_numbers.abi3.so" in names
    assert not any(name.startswith(("tests", "examples", "benchmarks")) for name in names)
    assert "Name: epochplan" in metadata.splitlines()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Project-URL: Repository, https://example.org/epochplan" in metadata
    assert "Project-URL: Help, https://example.org/epochplan/blob/main/docs/troubleshooting.md" in metadata
    assert "](https://example.org/epochplan/blob/main/docs/start.md)" in metadata
    assert "](https://example.org/epochplan/raw/main/docs/run.svg)" in metadata
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", metadata) == []
    assert "tdu = " in scripts


def test_free_threaded_python_gets_the_wheel_without_the_compiled_decoder(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(FREE_THREADED)
    built = build(tmp_path / "tree", PYTHONPATH=str(start))
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert modules() <= set(archive.namelist())


def test_the_sdist_has_every_file_of_the_tree_so_that_its_tests_run(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert set(SOURCES) - names == {".gitignore"}


def test_the_version_is_that_of_the_wheel(dist: Path) -> None:
    assert f"-{torch_dataloader_utils.__version__}-" in next(dist.glob("*.whl")).name


def test_the_wheel_imports_without_torch_or_pyarrow(dist: Path) -> None:
    wheel = next(dist.glob("*.whl"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", IMPORT],  # without site-packages: nothing else can be imported
        env={**os.environ, "PYTHONPATH": str(wheel)},
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.split() == [f"{wheel}/torch_dataloader_utils/__init__.py", "[]"]


def test_importing_the_package_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], cwd=ROOT, check=True, timeout=300, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.split()[1] == "[]"


def test_another_system_than_posix_is_refused_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("refused", PACKAGE / "__init__.py")
    module = module_from_spec(spec)
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ImportError, match=r"Linux and macOS, and this is 'nt'.*WSL"):
        spec.loader.exec_module(module)


def test_the_older_distribution_in_the_same_directory_is_refused_at_import(tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    init = shutil.copy(PACKAGE / "__init__.py", tmp_path)
    spec = spec_from_file_location("refused", init)
    with pytest.raises(ImportError, match=r"torch-dataloader-utils 0\.2.*pip uninstall --yes epochplan torch-data"):
        spec.loader.exec_module(module_from_spec(spec))


def test_the_shell_names_the_older_distribution_that_was_installed_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(torch_dataloader_utils, "__version__")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "pip uninstall --yes epochplan torch-dataloader-utils" in capsys.readouterr().err


WITHOUT_PANDAS = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from datetime import datetime
import pyarrow as pa
import pyarrow.parquet as pq
from torch_dataloader_utils import StructuredDataset, pack_tokens

table = pa.table({"i": pa.array([1, None], pa.uint16()), "b": [True, None], "f": [0.5, None], "l": [[1], [2, 3]],
                  "t": [datetime(2024, 1, 1), None], "s": ["a", None]})
pq.write_table(table, "a.parquet")
for output_format in ("torch", "numpy", "arrow", "dict"):
    nulls = None if output_format in ("arrow", "dict") else {"fill": 0}
    loader, _ = StructuredDataset.create_dataloader("a.parquet", output_format=output_format, nulls=nulls)
    assert len(next(iter(loader))["i"]) == 2
loader, _ = StructuredDataset.create_dataloader("a.parquet", pack=pack_tokens("l", 2))
assert len(list(loader)) == 1
print("pandas" in sys.modules)
"""


def test_nothing_needs_pandas_which_is_no_dependency(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS], cwd=tmp_path, timeout=300, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_no_message_advises_to_install_what_the_index_does_not_have_or_has_of_others() -> None:
    advice = re.compile(r"pip install[^\n]*(torch-dataloader-utils|epochplan)")
    assert [path.name for path in PACKAGE.rglob("*.py") if advice.search(path.read_text())] == []
