"""Tokens that a host keeps: made once for all lengths and epochs, and never taken for others."""

import json
import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.cli.shell import one_line, tdu, tdu_json
from tests.samples.test_packed_loader import load
from torch_dataloader_utils import Holdout, HostCache, RemoteOptions, pack_tokens
from torch_dataloader_utils.cache import host_cache
from torch_dataloader_utils.errors import TransformError
from torch_dataloader_utils.samples import PerToken

TEXTS = [[f"{'ab' * (row % 7)} {row}" for row in range(start, start + 30)] + [None, ""] for start in (0, 100)]


class Bytes:
    """Tokens are bytes; knows how many texts it was given."""

    def __init__(self, fingerprint="bytes", step=1):
        self.fingerprint = fingerprint
        self.step = step
        self.texts = 0

    def __call__(self, texts):
        self.texts += len(texts)
        if "bad" in texts:
            raise ValueError("a bad text")
        tokens = [[byte + self.step for byte in text.encode()] for text in texts]
        return {"input_ids": tokens, "mask": [[1] * len(each) for each in tokens]}


def write(folder, texts=TEXTS):
    for number, rows in enumerate(texts):
        table = pa.table({"text": pa.array(rows, pa.string()), "row": range(len(rows))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "kept"))
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    return tmp_path / "data"


def tokens_of(folder, tokenizer, length=32, **options):
    packing = pack_tokens("text", length, tokenizer=tokenizer, fields=options.pop("fields", ("tokens",)))
    return [batch["tokens"].tolist() for batch in load(folder, packing, **options)]


def without_cache(monkeypatch, *arguments, **options):
    with monkeypatch.context() as patch:
        patch.setenv("TORCH_DATALOADER_UTILS_CACHE", "off")
        return tokens_of(*arguments, **options)


def test_text_is_tokenized_once_for_all_lengths_fills_and_epochs(folder, monkeypatch):
    tokenizer = Bytes()
    first = tokens_of(folder, tokenizer)
    # Null texts are no texts.
    assert tokenizer.texts == sum(text is not None for rows in TEXTS for text in rows)
    assert first == without_cache(monkeypatch, folder, Bytes())
    monkeypatch.setattr(host_cache, "_opened", {})  # as after a restart
    again = Bytes()
    assert tokens_of(folder, again) == first
    loader = load(folder, pack_tokens("text", 100, tokenizer=again, fill="best_fit", shuffle_documents=True))
    for epoch in range(2):
        loader.set_epoch(epoch)
        list(loader)
    assert again.texts == 0


@pytest.mark.parametrize(
    "options",
    [
        {"filters": pc.field("row") > 3},
        {"holdout": Holdout(0.5, "train")},
        {"num_ranks": 2, "rank": 1},
        {"fields": {"tokens": None, "mask": PerToken(output="mask")}},
    ],
)
def test_another_part_of_the_rows_or_another_output_has_its_own_tokens(folder, monkeypatch, options):
    tokens_of(folder, Bytes())
    expected = without_cache(monkeypatch, folder, Bytes(), **options)
    assert tokens_of(folder, Bytes(), **options) == expected
    again = Bytes()
    assert tokens_of(folder, again, **options) == expected
    assert again.texts == 0


def test_another_tokenizer_and_other_texts_in_the_same_place_are_tokenized(folder, monkeypatch):
    tokens_of(folder, Bytes())
    assert tokens_of(folder, Bytes("two", 2)) == without_cache(monkeypatch, folder, Bytes("two", 2))
    times = {path: path.stat() for path in folder.iterdir()}
    write(folder, [[text and text.replace("a", "c") for text in rows] for rows in TEXTS])
    for path, status in times.items():
        assert path.stat().st_size == status.st_size
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert tokens_of(folder, Bytes()) == without_cache(monkeypatch, folder, Bytes())


def test_texts_in_a_dictionary_are_told_apart_by_the_dictionary(folder, monkeypatch):
    for words in (["one", "two"], ["six", "ten"]):
        write(folder, [words * 8])
        (folder / "1.parquet").unlink(missing_ok=True)
        text = pq.read_table(folder / "0.parquet")["text"].dictionary_encode()
        pq.write_table(pa.table({"text": text}), folder / "0.parquet")
        assert tokens_of(folder, Bytes()) == without_cache(monkeypatch, folder, Bytes())


def nameless(texts):
    return Bytes()(texts)


def test_tokens_of_a_function_that_may_change_unseen_are_not_kept(folder, tmp_path):
    tokens_of(folder, nameless)
    assert not list((tmp_path / "kept").rglob("tokens/**/entries/*/*"))


def test_damaged_entries_and_a_full_cache_cost_tokenizing_only(folder, tmp_path, monkeypatch):
    expected = tokens_of(folder, Bytes())
    entries = [path for path in (tmp_path / "kept").rglob("tokens/**/entries/*/*") if path.is_file()]
    assert len(entries) == 8
    for number, path in enumerate(entries):
        content = path.read_bytes()
        path.write_bytes(content[:-1] if number % 2 else content[:-9] + b"wrong" + content[-4:])
    tokenizer = Bytes()
    assert tokens_of(folder, tokenizer) == expected
    assert tokenizer.texts > 0
    small = RemoteOptions(cache=HostCache(tmp_path / "small", max_bytes=2000))
    for _ in range(2):
        assert tokens_of(folder, Bytes(), remote=small) == expected
    held = sum(path.stat().st_size for path in (tmp_path / "small").rglob("*") if path.is_file())
    assert held <= 2000


def test_row_groups_with_bad_rows_are_refused_anew(folder, monkeypatch):
    write(folder, [[*TEXTS[0], "bad", "good"]])
    (folder / "1.parquet").unlink()
    found = []
    for tokenize in (tokens_of, tokens_of, partial(without_cache, monkeypatch)):
        with pytest.warns(UserWarning, match="1 of 34 rows"):
            found.append(tokenize(folder, Bytes(), on_error="skip"))
    assert found[0] == found[1] == found[2]
    with pytest.raises(TransformError, match="a bad text"):
        tokens_of(folder, Bytes())


def test_the_shell_tokenizes_ahead_of_a_job(folder, tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "ab": 2}, unk_token="a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "t.json"))
    warm = ("tokens", "warm", folder, "--columns", "text", "--tokenizer", tmp_path / "t.json")
    assert tdu_json(*warm)["kept"] == 8
    loader = load(folder, pack_tokens("text", 64, tokenizer=str(tmp_path / "t.json")))
    list(loader)
    assert json.loads(json.dumps(dict(loader.metrics().cache_events)))["misses"] == 0
    cache = ("--cache", tmp_path / "host")
    assert "row groups kept" in tdu(*warm, *cache, "--max-bytes", "1MiB").stdout
    assert list(Path(tmp_path / "host").rglob("entries/*/*"))
    assert "pass --max-bytes" in one_line(tdu(*warm, *cache, code=2))
    assert "Name the column" in one_line(tdu(*warm[:3], *warm[5:], code=2))
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", "off")
    assert "nothing is kept" in one_line(tdu(*warm, code=2))
