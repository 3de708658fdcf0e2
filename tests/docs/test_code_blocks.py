"""Every block of the README and the docs runs, page by page, where the data of the demo lies: Python, torchrun, tdu.

Those that cannot are in `SHOWN_ONLY` and `COMMANDS_SHOWN_ONLY`, with the reason.
"""

import ast
import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from examples.demo.data import write_trips

from tests.cli.shell import tdu
from tests.docs.code_blocks import CodeBlock, code_blocks
from tests.gloo_threads import check_ended, python_path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIRST_PAGES = (
    "README.md",
    "start.md",
    "resume.md",
)  # what a newcomer runs is in `make test`, all others in `make full`

# (page, words of the block): what it needs that is not here.
SHOWN_ONLY = {
    ("docs/start.md", "s3://bucket/trips/"): "a bucket",
    ("docs/how-to/delta.md", "s3://lake/events"): "a bucket and somebody's profile",
    ("docs/how-to/iceberg.md", '"type": "glue"'): "a catalog of AWS",
    ("docs/how-to/migrate.md", "from streaming import"): "mosaicml-streaming, which refuses the numpy of the tests",
    ("docs/how-to/pack-tokens.md", "flash_attn_varlen_func"): "a GPU",
    ("docs/how-to/pack-tokens.md", "branch_sums(likelihoods"): "a model with FlexAttention",
    ("docs/how-to/ray.md", "s3://bucket/texts"): "a bucket and a Ray cluster",
    ("docs/how-to/remote-stores.md", "hf://datasets/owner"): "the Hugging Face Hub",
    ("docs/how-to/rewrite.md", "class RayExecutor"): "a Ray cluster; tests/on_ray/test_shuffle.py has one",
    ("docs/how-to/tokens.md", "s3://bucket/corpus"): "a bucket",
    ("docs/how-to/trainers.md", "integrations.torchrec"): "TorchRec and a GPU",
    (
        "docs/how-to/trainers.md",
        "horovod",
    ): "Horovod, which does not build with this torch; tests/seed has a stand-in for it",
}
# Words of a `tdu` line: the same.
COMMANDS_SHOWN_ONLY = {"://": "a bucket", "--catalog": "a catalog", " /nvme": "a cache that a job has filled"}


@pytest.fixture(scope="session")
def demo_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds .demo as `make demo` leaves it."""
    home = tmp_path_factory.mktemp("demo")
    write_trips(home / ".demo" / "trips", home / ".demo" / "trips.orc")
    return home


# Trainers warn of what the pages say, and of other packages.
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore::UserWarning:lightning", "ignore:.*set_vital")
@pytest.mark.parametrize(
    "page",
    [page if page.name in FIRST_PAGES else pytest.param(page, marks=pytest.mark.full) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_runs(page: Path, demo_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [block for block in code_blocks(page) if block.language in ("python", "bash") and not block.is_shown_only]
    (tmp_path / ".demo").symlink_to(demo_data / ".demo")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__page__"}
    for block in blocks:
        if block.language == "bash":
            run_commands(block)
        elif block.file_name:
            Path(block.file_name).write_text(block.text)
        else:
            # Empty lines put the page's own line numbers into a traceback.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)


def run_commands(block: CodeBlock) -> None:
    """Run the lines of a shell block that start torchrun or tdu."""
    for line in block.text.replace("\\\n", "").splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program == "tdu" and not any(words in line for words in COMMANDS_SHOWN_ONLY):
            assert tdu(*arguments).stdout
        if program != "torchrun":
            continue
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(*sys.path)}
        done = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        check_ended(done.stderr)


def test_blocks_that_are_only_shown_are_those_that_cannot_run() -> None:
    shown = [
        (str(page.relative_to(ROOT)), block) for page in PAGES for block in code_blocks(page) if block.is_shown_only
    ]
    for page, block in shown:
        words = [words for on, words in SHOWN_ONLY if on == page and words in block.text]
        assert len(words) == 1, f"{page}:{block.line}: let it run, or say in SHOWN_ONLY what it needs"
    assert len(shown) == len(SHOWN_ONLY)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_that_are_only_shown_parse_and_import_names_that_exist(page: Path) -> None:
    for block in code_blocks(page):
        if block.language != "python" or not block.is_shown_only:
            continue
        for node in ast.walk(ast.parse(block.text, f"{page}:{block.line}")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_dataloader_utils"):
                try:
                    module = import_module(node.module or "")
                except ImportError as error:
                    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(
                        "torch_dataloader_utils"
                    ):
                        raise
                    pytest.skip(f"an extra is not installed: {error}")
                assert all(hasattr(module, name.name) for name in node.names)
