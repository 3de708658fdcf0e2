import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.megatron.corpora.corpora import read_corpus
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptFileError,
    DataError,
    FileChangedError,
    MissingDependencyError,
    NoDataError,
    NullValueError,
    SchemaError,
)
from torch_dataloader_utils.megatron.corpora import CorpusReport, IndexedDataset, build_corpus
from torch_dataloader_utils.megatron.corpora.corpus_build.part_store import LocalParts
from torch_dataloader_utils.megatron.corpora.corpus_build.parts import CorpusPart, divide_parts
from torch_dataloader_utils.samples import TokenizerFile

Lists = list[list[int] | None]


def _write(path: Path, documents: Sequence[Any], *, kind: pa.DataType | None = None, rows: int = 3) -> Path:
    table = pa.table({"id": list(range(len(documents))), "tokens": pa.array(documents, kind or pa.list_(pa.int32()))})
    if path.suffix == ".orc":
        orc.write_table(table, path)
    else:
        pq.write_table(table, path, row_group_size=rows)
    return path


def _numbers(start: int, count: int) -> list[list[int]]:
    return [[start + i] * (1 + i % 4) for i in range(count)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(3):
        _write(tmp_path / "data" / f"{number}.parquet", _numbers(100 * number, 7 + number))
    (tmp_path / "data" / "_SUCCESS").touch()
    return tmp_path / "data"


ALL = [document for number in range(3) for document in _numbers(100 * number, 7 + number)]


@pytest.mark.slow
def test_rows_become_documents_in_order(directory: Path, tmp_path: Path) -> None:
    report = build_corpus(directory, tmp_path / "out", column="tokens", eod=9, vocabulary_size=1000, part_bytes=1)
    out = str(tmp_path / "out")
    assert read_corpus(out) == [[*document, 9] for document in ALL]
    assert IndexedDataset(out).dtype.name == "uint16"
    assert report == CorpusReport(
        prefixes=(out,),
        document_count=len(ALL),
        token_count=sum(map(len, ALL)) + len(ALL),
        null_documents=0,
        empty_documents=0,
        reused_parts=0,
    )
    assert {path.name for path in tmp_path.iterdir()} == {"data", "out.bin", "out.idx"}


def _dask_client() -> Any:
    distributed = pytest.importorskip("distributed")
    return distributed.Client(processes=False, dashboard_address=None, n_workers=1, threads_per_worker=2)


EXECUTORS: dict[str, Callable[[], Any]] = {
    "threads": lambda: ThreadPoolExecutor(2),
    "processes": lambda: ProcessPoolExecutor(2, mp_context=get_context("fork")),
    "dask": _dask_client,
}


@pytest.mark.processes
@pytest.mark.parametrize("kind", EXECUTORS)
def test_any_executor_gives_the_same_bytes(directory: Path, tmp_path: Path, kind: str) -> None:
    build_corpus(directory, tmp_path / "alone", column="tokens")
    seen: list[tuple[int, int, int]] = []
    with EXECUTORS[kind]() as executor:
        build_corpus(
            directory,
            tmp_path / "pool",
            column="tokens",
            part_bytes=1,
            executor=executor,
            on_progress=lambda *state: seen.append(state),
        )
    for suffix in ("idx", "bin"):
        assert (tmp_path / f"pool.{suffix}").read_bytes() == (tmp_path / f"alone.{suffix}").read_bytes()
    assert [state[0] for state in seen] == list(range(1, len(seen) + 1))
    assert seen[-1] == (len(seen), len(seen), sum(map(len, ALL)))


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int64()), pa.large_list(pa.uint16()), pa.list_(pa.int8())],
)
@pytest.mark.parametrize("suffix", ["parquet", "orc"])
def test_list_columns_of_all_kinds(tmp_path: Path, kind: pa.DataType, suffix: str) -> None:
    if suffix == "orc" and kind == pa.large_list(pa.uint16()):
        pytest.skip("ORC has no unsigned integers")
    _write(tmp_path / f"x.{suffix}", [[1, 2], [], [3]], kind=kind)
    report = build_corpus(tmp_path / f"x.{suffix}", tmp_path / "out", column="tokens")
    assert read_corpus(str(tmp_path / "out")) == [[1, 2], [3]]
    assert (report.document_count, report.empty_documents) == (2, 1)


def test_fixed_size_lists(tmp_path: Path) -> None:
    _write(tmp_path / "x.parquet", [[1, 2], [3, 4], None], kind=pa.list_(pa.int32(), 2))
    report = build_corpus(tmp_path / "x.parquet", tmp_path / "out", column="tokens", skip_nulls=True)
    assert read_corpus(str(tmp_path / "out")) == [[1, 2], [3, 4]]
    assert report.null_documents == 1


def _spell(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


def test_text_goes_through_the_tokenizer(tmp_path: Path) -> None:
    _write(tmp_path / "x.parquet", ["ab", "", None, "c"], kind=pa.string(), rows=2)
    report = build_corpus(
        tmp_path / "x.parquet", tmp_path / "out", column="tokens", tokenizer=_spell, eod=0, skip_nulls=True
    )
    assert read_corpus(str(tmp_path / "out")) == [[97, 98, 0], [99, 0]]
    assert (report.null_documents, report.empty_documents) == (1, 1)


def test_a_tokenizers_file_is_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "b": 2, "[UNK]": 0}, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = pickle.loads(pickle.dumps(TokenizerFile(str(tmp_path / "tokenizer.json"))))
    _write(tmp_path / "x.parquet", ["a b a", "b c"], kind=pa.string())
    build_corpus(tmp_path / "x.parquet", tmp_path / "out", column="tokens", tokenizer=tokenizer)
    assert read_corpus(str(tmp_path / "out")) == [[1, 2, 1], [2, 0]]


def test_a_tokenizers_file_neither_cuts_nor_fills_upread_corpus(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "b": 2, "[UNK]": 0}, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.enable_truncation(3)
    model.enable_padding(pad_id=0, length=4)
    model.save(str(tmp_path / "tokenizer.json"))
    assert TokenizerFile(str(tmp_path / "tokenizer.json"))(["a b a b a", "b"]) == [[1, 2, 1, 2, 1], [2]]


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda texts: [np.array([[1, 2]]) for _ in texts], "int64 array of shape \\(1, 2\\) for text 0"),
        (lambda texts: [[[1], [2]] for _ in texts], "shape \\(2, 1\\)"),
        (lambda texts: [[1], [[2], [3, 4]]], "list for text 1"),
        (lambda texts: [[1], [1.7]], "float64 array of shape \\(1,\\) for text 1"),
        (lambda texts: [[1], [float("nan")]], "float64"),
        (lambda texts: [["1"], ["2"]], "<U1"),
        (lambda texts: ["12", "34"], "<U2"),
        (lambda texts: [[1, None], [2]], "object"),
        (lambda texts: [[True], [False]], "bool"),
        (lambda texts: [[2**63], [1]], "beyond int64"),
        (lambda texts: [[2**70], [1]], "object"),
        (lambda texts: [1, 2], "shape \\(\\)"),
        (lambda texts: {"input_ids": [[1], [2]]}, 'a function that returns tokenizer\\(texts\\)\\["input_ids"\\]'),
        (lambda texts: ([1] for _ in texts), "a generator for the 2 texts"),
        (lambda texts: None, "a NoneType for the 2 texts"),
    ],
)
def test_a_tokenizer_gives_one_flat_list_of_integers_a_text(tmp_path: Path, give: Any, message: str) -> None:
    _write(tmp_path / "x.parquet", ["a", "b"], kind=pa.string())
    with pytest.raises(SchemaError, match=message) as raised:
        build_corpus(tmp_path / "x.parquet", tmp_path / "out", column="tokens", tokenizer=give)
    assert "x.parquet" in str(raised.value)
    assert "row group 0" in str(raised.value)


@pytest.mark.parametrize(
    "give",
    [
        lambda texts: np.array([[1, 2], [3, 4]], dtype=np.uint16),
        lambda texts: torch.tensor([[1, 2], [3, 4]]),
        lambda texts: [torch.tensor([1, 2]), (3, 4)],
    ],
)
def test_a_tokenizer_may_give_arrays_and_tensors(tmp_path: Path, give: Any) -> None:
    _write(tmp_path / "x.parquet", ["a", "b"], kind=pa.string())
    build_corpus(tmp_path / "x.parquet", tmp_path / "out", column="tokens", tokenizer=give)
    assert read_corpus(str(tmp_path / "out")) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("kind", [pa.list_view(pa.int32()), pa.large_list_view(pa.uint16())])
def test_views_of_lists(tmp_path: Path, kind: pa.DataType) -> None:
    _write(tmp_path / "x.parquet", [[1, 2], None, [], [3]], kind=kind)
    build_corpus(tmp_path / "x.parquet", tmp_path / "out", column="tokens", skip_nulls=True)
    assert read_corpus(str(tmp_path / "out")) == [[1, 2], [3]]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_of_all_kinds(tmp_path: Path, kind: pa.DataType) -> None:
    _write(tmp_path / "x.parquet", ["a text of more than 12 letters", None, "", "b"], kind=kind, rows=2)
    report = build_corpus(tmp_path / "x.parquet", tmp_path / "out", column="tokens", tokenizer=_spell, skip_nulls=True)
    assert read_corpus(str(tmp_path / "out")) == _spell(["a text of more than 12 letters", "b"])
    assert report.null_documents == 1


def test_many_outputs_hold_neighbouringread_corpus(directory: Path, tmp_path: Path) -> None:
    report = build_corpus(directory, tmp_path / "out", column="tokens", output_count=3, part_bytes="1B")
    assert report.prefixes == tuple(str(tmp_path / f"out-{number:05d}-of-00003") for number in range(3))
    assert [document for prefix in report.prefixes for document in read_corpus(prefix)] == ALL
    with pytest.raises(ConfigError, match="do not make 30 corpora"):
        build_corpus(directory, tmp_path / "more", column="tokens", output_count=30)


class _FailingExecutor:
    """Runs some tasks, then fails: a job that is killed half-way."""

    def __init__(self, working: int) -> None:
        self.working = working
        self.ran = 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.ran < self.working:
            self.ran += 1
            future.set_result(function(*arguments))
        else:
            future.set_exception(KeyboardInterrupt())
        return future


@pytest.mark.slow
def test_a_build_goes_on_where_it_was_killed(directory: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"column": "tokens", "part_bytes": 1}
    with pytest.raises(KeyboardInterrupt):
        build_corpus(directory, tmp_path / "out", executor=_FailingExecutor(4), **options)
    assert not (tmp_path / "out.idx").exists()
    _write(directory / "0.parquet", _numbers(500, 7))
    executor = _FailingExecutor(100)
    report = build_corpus(directory, tmp_path / "out", executor=executor, **options)
    # Three of the four parts were of the file that was written anew.
    assert (report.reused_parts, executor.ran) == (1, 8)
    assert read_corpus(str(tmp_path / "out")) == _numbers(500, 7) + ALL[7:]


@pytest.mark.slow
def test_local_parts_that_lost_a_file_or_have_a_damaged_receipt_are_built_again(
    directory: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"column": "tokens", "part_bytes": 1}
    with pytest.raises(KeyboardInterrupt):
        build_corpus(directory, tmp_path / "out", executor=_FailingExecutor(4), **options)
    receipts = sorted((tmp_path / "out.parts").glob("*.json"))
    receipts[0].write_bytes(b'{"document')
    receipts[1].with_suffix(".idx").unlink()
    assert build_corpus(directory, tmp_path / "out", **options).reused_parts == 2
    assert read_corpus(str(tmp_path / "out")) == ALL


@pytest.mark.parametrize("ending", [".idx", ".bin"])
def test_parts_that_another_build_took_away_are_told_as_that(directory: Path, tmp_path: Path, ending: str) -> None:
    def take(done: int, total: int, _: int) -> None:
        if done == total:
            next((tmp_path / "out.parts").glob(f"*{ending}")).unlink()

    options: dict[str, Any] = {"column": "tokens", "part_bytes": 1}
    with pytest.raises(FileChangedError, match="Another process builds this corpus"):
        build_corpus(directory, tmp_path / "out", on_progress=take, **options)
    assert build_corpus(directory, tmp_path / "out", **options).reused_parts == 8
    assert read_corpus(str(tmp_path / "out")) == ALL


def test_a_build_that_another_one_overtook_leaves_no_parts(directory: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"column": "tokens", "part_bytes": 1}

    def overtake(done: int, total: int, _: int) -> None:
        if done == 2:
            build_corpus(directory, tmp_path / "out", **options)

    with pytest.raises(FileChangedError, match="Another process builds this corpus"):
        build_corpus(directory, tmp_path / "out", on_progress=overtake, **options)
    assert not (tmp_path / "out.parts").exists()
    assert read_corpus(str(tmp_path / "out")) == ALL


def test_parts_that_another_build_has_removed_need_no_removal(tmp_path: Path) -> None:
    LocalParts(directory=tmp_path / "out.parts").remove()


@pytest.mark.slow
def test_parts_of_a_build_that_was_killed_after_it_joined_them_go_with_the_next_call(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"column": "tokens", "part_bytes": 1, "output_count": 2}

    def die(_: LocalParts) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalParts, "remove", die)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(directory, tmp_path / "out", **options)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="exists"):
        build_corpus(directory, tmp_path / "out", **options)
    assert not (tmp_path / "out.parts").exists()


def test_parts_that_are_newer_than_the_corpus_stay(directory: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"column": "tokens", "part_bytes": 1}
    build_corpus(directory, tmp_path / "out", **options)
    os.utime(tmp_path / "out.idx", ns=(0, 0))
    with pytest.raises(KeyboardInterrupt):
        build_corpus(directory, tmp_path / "out", executor=_FailingExecutor(4), overwrite=True, **options)
    with pytest.raises(ConfigError, match="exists"):
        build_corpus(directory, tmp_path / "out", **options)
    assert build_corpus(directory, tmp_path / "out", overwrite=True, **options).reused_parts == 4


def test_files_of_others_beside_the_parts_stay(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "out.parts").mkdir()
    (tmp_path / "out.parts" / "notes.json").write_text("mine")
    build_corpus(directory, tmp_path / "out", column="tokens")
    assert [path.name for path in (tmp_path / "out.parts").iterdir()] == ["notes.json"]


def test_an_existing_corpus_is_replaced_on_request_only(directory: Path, tmp_path: Path) -> None:
    build_corpus(directory, tmp_path / "out", column="tokens")
    with pytest.raises(ConfigError, match="overwrite=True"):
        build_corpus(directory / "0.parquet", tmp_path / "out", column="tokens")
    build_corpus(directory / "0.parquet", tmp_path / "out", column="tokens", overwrite=True)
    assert read_corpus(str(tmp_path / "out")) == ALL[:7]


@pytest.mark.parametrize(
    ("documents", "kind", "options", "error", "message"),
    [
        ([[1], None], None, {}, NullValueError, "1 null documents"),
        ([[1, None]], None, {}, NullValueError, "1 null tokens"),
        ([[70_000]], None, {"vocabulary_size": 1000}, DataError, "the vocabulary has 1000. Pass the vocabulary_size"),
        (
            [[70_000]],
            None,
            {"dtype": np.uint16},
            DataError,
            r"do not fit uint16\. Pass dtype=np\.int32, which holds up to 2,147,483,647",
        ),
        ([[-1]], None, {"vocabulary_size": 1000}, DataError, "tokens from -1"),
        ([1, 2], pa.int32(), {}, SchemaError, "lists of integers"),
        ([[1.5]], pa.list_(pa.float32()), {}, SchemaError, "lists of integers"),
        ([[1]], None, {"column": "other"}, ConfigError, "'other', which is not a column"),
        ([[1]], None, {"tokenizer": _spell}, SchemaError, "needs text"),
        (["a", "b"], pa.string(), {"tokenizer": lambda texts: [[1]]}, SchemaError, "1 token lists for the 2 texts"),
    ],
)
def test_data_that_does_not_fit_is_named(
    tmp_path: Path,
    documents: list[Any],
    kind: pa.DataType | None,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    _write(tmp_path / "x.parquet", documents, kind=kind)
    with pytest.raises(error, match=message) as raised:
        build_corpus(tmp_path / "x.parquet", tmp_path / "out", **{"column": "tokens", **options})
    assert "x.parquet" in str(raised.value)
    assert not (tmp_path / "out.idx").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vocabulary_size": 1000, "eod": 1000}, ConfigError, "eod=1000 lies outside the vocabulary"),
        ({"vocabulary_size": 1000, "eod": -1}, ConfigError, "eod=-1"),
        ({"eod": -1}, ConfigError, "eod=-1"),
        ({"eod": "0"}, ConfigTypeError, "eod='0'"),
        ({"eod": 70_000, "dtype": "uint16"}, ConfigError, r"eod=70000 does not fit uint16\. Pass dtype=np\.int32"),
        (
            {"eod": 2**31},
            ConfigError,
            r"2147483648 does not fit int32\. Pass dtype=np\.int64, which holds up to 9,223,",
        ),
        ({"eod": 2**63 - 1, "dtype": "float64"}, ConfigError, r"does not fit float64\. Pass dtype=np\.int64"),
        ({"eod": 2**63}, ConfigError, "that int64 holds"),
        ({"eod": 2**24 + 1, "dtype": "float32"}, ConfigError, "does not fit float32"),
        ({"dtype": "foo"}, ConfigTypeError, "'foo' is not a type of tokens; the format knows uint8, int8"),
        ({"part_bytes": 0}, ConfigError, "part_bytes=0"),
        ({"part_bytes": "x"}, ConfigError, "part_bytes='x' is no number of bytes"),
        ({"part_bytes": None}, ConfigTypeError, "part_bytes=None is no number of bytes"),
        ({"vocabulary_size": 0}, ConfigError, "vocabulary_size=0"),
        ({"vocabulary_size": 0, "dtype": "uint16"}, ConfigError, "vocabulary_size=0"),
        ({"vocabulary_size": "1000"}, ConfigTypeError, "vocabulary_size='1000'"),
        ({"output_count": 0}, ConfigError, "output_count=0"),
        ({"executor": 4}, ConfigTypeError, "executor=4 has no submit"),
        ({"output_prefix": ""}, ConfigError, "has no file name"),
        ({"output_prefix": Path()}, ConfigError, "has no file name"),
        ({"output_prefix": "corpora/"}, ConfigError, "has no file name"),
    ],
)
def test_calls_that_cannot_work_are_refused_before_anything_is_read(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_corpus(**{"sources": "no/such/place", "output_prefix": "out", "column": "tokens", **options})


def test_numpy_integers_are_integers(tmp_path: Path) -> None:
    _write(tmp_path / "x.parquet", [[1, 2]])
    options = {"eod": np.int64(9), "vocabulary_size": np.int32(10), "part_bytes": np.int64(1)}
    build_corpus(tmp_path / "x.parquet", tmp_path / "out", column="tokens", **options)
    assert read_corpus(str(tmp_path / "out")) == [[1, 2, 9]]


def test_float_corpora_hold_integers_exactly(tmp_path: Path) -> None:
    _write(tmp_path / "x.parquet", [[1, 2**24]])
    build_corpus(tmp_path / "x.parquet", tmp_path / "out", column="tokens", dtype="float32")
    assert read_corpus(str(tmp_path / "out")) == [[1, 2**24]]
    _write(tmp_path / "y.parquet", [[1, 2**24 + 1]])
    with pytest.raises(DataError, match="Tokens from 1 to 16777217 do not fit float32"):
        build_corpus(tmp_path / "y.parquet", tmp_path / "wrong", column="tokens", dtype="float32")


def test_sources_that_are_not_there_or_not_known(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "empty", tmp_path / "no*.parquet", tmp_path / "none.parquet", []):
        with pytest.raises(NoDataError):
            build_corpus(source, out, column="tokens")
    (tmp_path / "x.txt").write_text("no columns")
    with pytest.raises(ConfigError, match="file_format"):
        build_corpus(tmp_path / "x.txt", out, column="tokens")
    with pytest.raises(CorruptFileError, match="too few for a Parquet file"):
        build_corpus(tmp_path / "x.txt", out, column="tokens", file_format="parquet")


def test_an_error_that_names_its_source_stays_of_its_kind(tmp_path: Path) -> None:
    fsspec.register_implementation("uninstalled", "nobody_has_this.FileSystem", errtxt="pip install it", clobber=True)
    with pytest.raises(MissingDependencyError, match=r"^uninstalled://b/x\.parquet: .*pip install it"):
        build_corpus("uninstalled://b/x.parquet", tmp_path / "out", column="tokens")


def test_sources_keep_their_order_and_each_file_is_read_once(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _write(directory / "stripes.orc", [[1], [2]])
    sources = [directory / "stripes.orc", directory / "2.parquet", directory / "*.parquet"]
    build_corpus(sources, tmp_path / "out", column="tokens")
    assert read_corpus(str(tmp_path / "out")) == [[1], [2], *_numbers(200, 9), *_numbers(0, 7), *_numbers(100, 8)]
    assert "2.parquet is named more than once; it is read once" in caplog.text
    with pytest.raises(ConfigError, match="files of two formats"):
        build_corpus(directory, tmp_path / "both", column="tokens")


@pytest.mark.slow
def test_many_files_each_with_a_schema_of_its_own(tmp_path: Path) -> None:
    for number in range(60):
        kind = pa.list_(pa.int64() if number % 2 else pa.int32())
        _write(tmp_path / f"{number:02d}.parquet", [[number]], kind=kind)
    build_corpus([tmp_path / f"{number:02d}.parquet" for number in range(60)], tmp_path / "out", column="tokens")
    assert read_corpus(str(tmp_path / "out")) == [[number] for number in range(60)]
    with pytest.raises(SchemaError, match="All files need the same columns and types"):
        build_corpus(tmp_path / "*.parquet", tmp_path / "no", column="tokens")


@pytest.mark.parametrize("suffix", ["parquet", "orc"])
def test_no_rows_are_no_corpus(tmp_path: Path, suffix: str) -> None:
    path, table = tmp_path / f"x.{suffix}", pa.table({"tokens": pa.array([], pa.list_(pa.int32()))})
    if suffix == "orc":
        orc.write_table(table, path)
    else:
        pq.write_table(table, path)
        assert pq.ParquetFile(path).metadata.num_row_groups == 1
    for sources in (path, StructuredDataset(path, suffix)):
        with pytest.raises(NoDataError, match="no rows"):
            build_corpus(sources, tmp_path / "out", column="tokens")
    assert not (tmp_path / "out.parts").exists()


@pytest.mark.parametrize("threads", [0, 2])
def test_a_build_that_fails_before_its_first_part_is_done_leaves_nothing(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"tokens": [[1, 2], None]}), path)
    with ThreadPoolExecutor(2) as pool, pytest.raises(NullValueError):
        build_corpus(path, tmp_path / "out", column="tokens", executor=pool if threads else None)
    assert list(tmp_path.iterdir()) == [path]


def test_a_build_that_fails_later_keeps_the_parts_that_are_done(tmp_path: Path) -> None:
    for number, documents in enumerate(([[1, 2]], [[3], None])):
        _write(tmp_path / f"{number}.parquet", documents)
    sources = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    with pytest.raises(NullValueError):
        build_corpus(sources, tmp_path / "out", column="tokens")
    assert len(list((tmp_path / "out.parts").glob("*.json"))) == 1
    assert build_corpus(sources[:1], tmp_path / "out", column="tokens").reused_parts == 1


def test_a_flipped_bit_is_never_another_token(tmp_path: Path) -> None:
    table = pa.table({"tokens": pa.array([[row] * 50 for row in range(100)], pa.list_(pa.int32()))})
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, write_page_checksum=True, compression=None, use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"x\.parquet row group 0 does not decode"):
        build_corpus(path, tmp_path / "out", column="tokens")


def test_remote_sources(directory: Path, tmp_path: Path) -> None:
    import fsspec

    filesystem = fsspec.filesystem("memory")
    for path in directory.glob("*.parquet"):
        filesystem.pipe(f"/build/{path.name}", path.read_bytes())
    build_corpus("memory://build/*.parquet", tmp_path / "out", column="tokens")
    assert read_corpus(str(tmp_path / "out")) == ALL


@settings(max_examples=effort(60))
@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=12), data=st.data())
def test_parts_are_divided_in_order_and_no_output_is_empty(sizes: list[int], data: st.DataObject) -> None:
    outputs = data.draw(st.integers(1, len(sizes)))
    reader: Any = None
    parts = [CorpusPart(reader=reader, tasks=(), version=str(i), size_bytes=size) for i, size in enumerate(sizes)]
    divided = divide_parts(parts, outputs)
    assert [part for each in divided for part in each] == parts
    assert len(divided) == outputs
    assert all(divided)
