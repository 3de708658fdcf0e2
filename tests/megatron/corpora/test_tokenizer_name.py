"""Parts of an earlier run are bound to a tokenizer by its name or fingerprint."""

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.megatron.corpora import IndexedDataset, build_corpus
from torch_dataloader_utils.samples import TokenizerFile
from torch_dataloader_utils.samples.tokenizers import name_tokenizer, tokenizer_version


class Repeat:
    """One token for all letters."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return [[self.token] * len(text) for text in texts]

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        return self(texts)


class Named(Repeat):
    @property
    def fingerprint(self) -> str:
        return f"token {self.token}"


def repeat(texts: list[str], token: int = 1) -> list[list[int]]:
    return Repeat(token)(texts)


def _as_lambda(token: int) -> Any:
    return lambda texts: repeat(texts, token)


def _as_closure(token: int) -> Any:
    def tokenize(texts: list[str]) -> list[list[int]]:
        return repeat(texts, token)

    return tokenize


def _as_wrapper(token: int) -> Any:
    return functools.wraps(repeat)(_as_closure(token))


def _as_partial(token: int) -> Any:
    return functools.partial(repeat, token=token)


def _as_method(token: int) -> Any:
    return Repeat(token).tokenize


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(4):
        pq.write_table(pa.table({"text": ["ab", "c"]}), tmp_path / "data" / f"{number}.parquet")
    return tmp_path / "data"


def _stop_after_two(done: int, total: int, tokens: int) -> None:
    if done == 2:
        raise KeyboardInterrupt


def _go_on(source: Path, first: Any, second: Any) -> tuple[int, set[int]]:
    """Parts that the second tokenizer took from the first one's run, and the tokens of the corpus."""
    out = str(source.parent / "out")
    with pytest.raises(KeyboardInterrupt):
        build_corpus(source, out, column="text", tokenizer=first, on_progress=_stop_after_two)
    report = build_corpus(source, out, column="text", tokenizer=second)
    assert not Path(f"{out}.parts").exists()
    return report.reused_parts, {token for sequence in IndexedDataset(out) for token in sequence.tolist()}


@pytest.mark.parametrize("make", [_as_lambda, _as_closure, _as_wrapper, _as_partial, _as_method, Repeat])
def test_parts_of_a_tokenizer_that_is_like_others_are_not_taken(
    source: Path, make: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert _go_on(source, make(11), make(22)) == (0, {22})
    warnings_given = [record.message for record in caplog.records]
    assert len(warnings_given) == 2
    assert "all 4 parts again" in warnings_given[0]
    assert "set its attribute fingerprint" in warnings_given[0]


def test_parts_of_a_tokenizer_with_a_name_are_taken(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert _go_on(source, repeat, repeat) == (2, {1})
    assert caplog.records == []


def test_parts_of_a_tokenizer_with_a_fingerprint_are_taken(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert _go_on(source, Named(11), Named(11)) == (2, {11})
    assert caplog.records == []


def test_parts_of_another_fingerprint_are_not_taken(source: Path) -> None:
    assert _go_on(source, Named(11), Named(22)) == (0, {22})


def test_a_tokenizer_is_known_by_its_fingerprint_or_its_name() -> None:
    assert name_tokenizer(repeat) == f"{__name__}.repeat"
    assert name_tokenizer(Repeat.tokenize) == f"{__name__}.Repeat.tokenize"
    partial = _as_partial(3)
    partial.fingerprint = "three"
    assert name_tokenizer(partial) == "three"
    partial.fingerprint = Named(3).tokenize
    with pytest.raises(ConfigTypeError, match="fingerprint of the tokenizer is a method: give"):
        name_tokenizer(partial)


def test_an_edited_module_makes_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    versions = []
    for token in (1, 2, 1):
        (tmp_path / "edited.py").write_text(f"def tokenize(texts): return [[{token}] for _ in texts]")
        module = importlib.import_module("edited")
        versions.append(tokenizer_version(module.tokenize))
    assert versions[0] == versions[2] != versions[1]
    module.tokenize.fingerprint = 7
    assert tokenizer_version(module.tokenize) == "7"
    del module.tokenize.fingerprint, module.__file__
    assert tokenizer_version(module.tokenize) is None
    assert tokenizer_version(len) is None


_SCRIPT = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from torch_dataloader_utils.megatron.corpora import build_corpus


def tokenize(texts):
    return [[len(text)] for text in texts]


if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        build_corpus(sys.argv[1], sys.argv[2], column="text", tokenizer=tokenize, executor=executor)
"""


@pytest.mark.full
@pytest.mark.processes
def test_a_function_of_a_script_has_one_name_in_all_processes(source: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(source), str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=300)
    assert [sequence.tolist() for sequence in IndexedDataset(str(tmp_path / "out"))] == [[2], [1]] * 4


@pytest.mark.parametrize("tokenizer", [3, "tokenizer.json"])
def test_what_is_no_tokenizer_is_refused_before_anything_is_read(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigTypeError, match=r"tokenizer is .*: pass TokenizerFile\(path\), or a function"):
        build_corpus(tmp_path / "nowhere", tmp_path / "out", column="text", tokenizer=tokenizer)


def test_the_signature_of_a_url_is_not_repeated() -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(ConfigError, match=r"^https://host/t\.json is not a tokenizer\.json .* on this machine"):
        TokenizerFile("https://host/t.json?sig=hunter2")(["a"])
