"""Text tokenized where it is read, against the same documents stored as tokens; what is counted, kept and refused."""

import importlib
import json
import logging
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from tests.effort import effort
from tests.samples.corpora import corpora, number_tokens, pack_corpus, packings, samples_of
from tests.samples.test_packed_loader import load
from torch_dataloader_utils import scan_files
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.sealed_state import sealed
from torch_dataloader_utils.datasets.row_counts import read_lengths
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    ConfigError,
    ConfigTypeError,
    DataError,
    NoDataError,
    RowCountError,
    SchemaError,
    TransformError,
)
from torch_dataloader_utils.samples import PerToken, TokenizerFile, pack_tokens
from torch_dataloader_utils.samples.named_tokenizer import NamedTokenizer
from torch_dataloader_utils.samples.packing_reader import PackingReader
from torch_dataloader_utils.samples.sample_counts import count_packed
from torch_dataloader_utils.samples.tokenizing_reader import tokenized
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import make_reader

CALLS = []


def numbers(texts):
    """Tokens are the numbers in a text."""
    CALLS.append(len(texts))
    return [[int(word) for word in text.split()] for text in texts]


def numbers_and_halves(texts):
    tokens = numbers(texts)
    return {"input_ids": tokens, "halves": [[token // 2 for token in each] for each in tokens]}


def as_text(tokens):
    return None if tokens is None else " ".join(map(str, tokens))


def write(folder, files):
    """Parquet files of these row groups of documents as text."""
    schema = pa.schema([("tokens", pa.string())])
    for index, groups in enumerate(files):
        with pq.ParquetWriter(folder / f"part-{index:02}.parquet", schema) as writer:
            for group in groups:
                rows = pa.table({"tokens": list(map(as_text, group))}, schema=schema)
                writer.write_table(rows, row_group_size=max(1, len(group)))


WORDS = {"<pad>": 0, "<eos>": 1, "<|user|>": 2, "<|assistant|>": 3, **{chr(97 + i): 4 + i for i in range(26)}}
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|> {% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} "
    "<eos>{% endgeneration %}{% else %}{{ m['content'] }}{% endif %} {% endfor %}"
)


def words():
    """A tokenizer of letters, which cuts and pads unless it is told not to."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=5)
    return tokenizer


def hugging_face():
    fast = PreTrainedTokenizerFast(tokenizer_object=words(), pad_token="<pad>", eos_token="<eos>")
    fast.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    fast.chat_template = TEMPLATE
    return fast


@given(lengths=corpora, packing=packings(tokenizer=numbers))
@settings(max_examples=effort(40), deadline=None)
def test_samples_of_text_are_those_of_its_tokens(lengths, packing):
    assume(any(map(len, lengths)))
    files = number_tokens(lengths)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The epoch has no steps")
        write(Path(folder), files)
        loader = load(folder, packing)
        assert [sample for batch in loader for sample in samples_of(batch)] == pack_corpus(files, packing)


FILES = number_tokens([[[5, 0, 30, None, 12], [40, 3]], [[9] * 20]])


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, FILES)
    return tmp_path


@pytest.mark.processes
def test_worker_processes_tokenize_too(folder):
    packing = pack_tokens("tokens", 16, eod=0, tokenizer=numbers)
    received = [sample for batch in load(folder, packing, num_workers=2) for sample in samples_of(batch)]
    assert sorted(received, key=str) == sorted(pack_corpus(FILES, packing), key=str)


def test_a_tokenizer_that_cannot_be_sent_is_named(folder):
    packing = pack_tokens("tokens", 16, tokenizer=lambda texts: numbers(texts))
    with pytest.raises(ConfigError, match="<lambda> cannot be sent to worker processes that are started with 'spawn'"):
        load(folder, packing, num_workers=1, multiprocessing_context="spawn")


def test_another_list_of_the_tokenizer_goes_with_the_tokens(folder):
    fields = {"tokens": None, "half": PerToken(output="halves", pad=-1)}
    packing = pack_tokens("tokens", 16, eod=0, tokenizer=numbers_and_halves, fields=fields)
    for batch in load(folder, packing):
        is_token = batch["tokens"] > 0
        assert batch["half"][is_token].equal(batch["tokens"][is_token] // 2)
        assert (batch["half"][~is_token] == -1).all()


def even_numbers(texts):
    """`numbers` that refuses a text that begins with an odd number."""
    tokens = numbers(texts)
    if odd := [each for each in tokens if each and each[0] % 2]:
        raise ValueError(f"{odd[0][0]} is odd")
    return tokens


class Unnamed:
    """A tokenizer that no other process can identify, so that its counts are not kept."""

    def __call__(self, texts):
        return even_numbers(texts)


def without_odd(files):
    return [[[None if each and each[0] % 2 else each for each in group] for group in groups] for groups in files]


@pytest.mark.parametrize("tokenizer", [even_numbers, Unnamed()])
def test_a_row_that_the_tokenizer_refuses_is_named_or_left_out(folder, tokenizer):
    packing = pack_tokens("tokens", 16, eod=0, tokenizer=tokenizer)
    rows = [
        (group, row) for group, docs in enumerate(FILES[0]) for row, each in enumerate(docs) if each and each[0] % 2
    ]
    group, row = rows[0]
    with pytest.raises(TransformError, match=rf"ValueError for .*part-00.parquet row group {group}, live row {row}: "):
        load(folder, packing)
    expected = pack_corpus(without_odd(FILES), packing)
    total = sum(len(group) for groups in FILES for group in groups)
    bad = sum(bool(each and each[0] % 2) for groups in FILES for group in groups for each in group)
    for _ in range(2):  # counted, then counts that are kept
        with pytest.warns(UserWarning, match=rf"left out {bad} of {total} rows; .*part-00.parquet row group {group}: "):
            loader = load(folder, packing, on_error="skip")
        assert [sample for batch in loader for sample in samples_of(batch)] == expected
        assert f"on_error=skip left out {bad} of {total} rows" in loader.plan.explain()


def test_a_bad_row_costs_one_more_pass_over_its_row_group(folder):
    packing = pack_tokens("tokens", 16, tokenizer=even_numbers)
    with pytest.warns(UserWarning, match="left out"):
        loader = load(folder, packing, on_error="skip")
    CALLS.clear()
    list(loader)
    texts = [[each for each in group if each is not None] for groups in FILES for group in groups]
    is_bad = [any(each and each[0] % 2 for each in group) for group in texts]
    assert sum(CALLS) == sum(len(group) * (1 + bad) for group, bad in zip(texts, is_bad, strict=True))


def test_many_bad_rows_of_one_row_group_are_one_place(tmp_path):
    write(tmp_path, [[[[2], *([odd] for odd in range(1, 61, 2))]]])
    packing = pack_tokens("tokens", 16, tokenizer=even_numbers)
    with pytest.warns(UserWarning, match=r"left out 30 of 31 rows; .*30 rows, the first is live row 1$"):
        load(tmp_path, packing, on_error="skip")


def test_bad_rows_are_left_out_alike_by_every_rank_and_after_a_resume(folder):
    packing = pack_tokens("tokens", 4, tokenizer=even_numbers)
    expected = pack_corpus(without_odd(FILES), packing)
    received = []
    for rank in range(2):
        options = {"on_error": "skip", "rank": rank, "num_ranks": 2, "batch_size": 2}
        with pytest.warns(UserWarning, match="left out"):
            loader, resumed = (load(folder, packing, **options) for _ in range(2))
        batches = iter(loader)
        received += samples_of(next(batches))
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        received += [sample for batch in resumed for sample in samples_of(batch)]
    assert {str(sample) for sample in received} == {str(sample) for sample in expected}


def test_what_is_not_about_a_row_is_never_left_out(folder):
    def tokenize(texts):
        raise MemoryError

    with pytest.raises(TransformError, match="MemoryError"):
        load(folder, pack_tokens("tokens", 16, tokenizer=tokenize), on_error="skip")

    def refuse(texts):
        raise ValueError(texts[0])

    with pytest.raises(NoDataError, match="refuses 26 of 27 rows"):
        load(folder, pack_tokens("tokens", 16, tokenizer=refuse), on_error="skip")


@pytest.mark.parametrize("kind", ["path", "file", "hugging face"])
def test_tokenizers_neither_cut_nor_pad(tmp_path, kind):
    words().save(str(tmp_path / "tokenizer.json"))
    pq.write_table(pa.table({"text": ["a b c d e f", "", "g", None, "h"]}), tmp_path / "a.parquet")
    path = tmp_path / "tokenizer.json"
    tokenizer = {"path": path, "file": TokenizerFile(str(path)), "hugging face": hugging_face()}[kind]
    packing = pack_tokens("text", 12, eod=1, tokenizer=tokenizer)
    (batch,) = load(tmp_path / "a.parquet", packing)
    assert batch["tokens"].tolist() == [[4, 5, 6, 7, 8, 9, 1, 10, 1, 11, 1, 0]]


def test_chat_goes_through_the_template_with_masks_of_the_assistant(tmp_path):
    chats = [
        [("user", "a b"), ("assistant", "c d"), ("user", "e"), ("assistant", "f")],
        [("user", "g"), ("assistant", "h")],
    ]
    rows = [[{"role": role, "content": content} for role, content in chat] for chat in chats]
    pq.write_table(pa.table({"messages": rows, "source": ["x", "y"]}), tmp_path / "a.parquet")
    fields = {"tokens": None, "is_answer": PerToken(output="assistant_masks"), "source": None}
    packing = pack_tokens("messages", 20, tokenizer=hugging_face(), fields=fields, fill="best_fit")
    (batch,) = load(tmp_path / "a.parquet", packing)
    assert batch["tokens"].tolist() == [[2, 4, 5, 3, 6, 7, 1, 2, 8, 3, 9, 1, 2, 10, 3, 11, 1, 0, 0, 0]]
    assert batch["is_answer"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0]]
    assert batch["source"] == [["x", "y"]]


def test_threads_share_a_tokenizer_of_hugging_face():
    packing = pack_tokens("text", 8, tokenizer=hugging_face())
    texts = [[" ".join("abcdefgh"[: 1 + number % 8])] * 20 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda values: packing.tokenizer.call(values, ())["input_ids"], texts))
    assert [len(each[0]) for each in found] == [1 + number % 8 for number in range(200)]


def test_threads_share_a_chat_template_with_masks_and_with_its_user():
    fields = {"tokens": None, "is_answer": PerToken(output="assistant_masks")}
    mine = hugging_face()
    packing = pack_tokens("messages", 8, tokenizer=mine, fields=fields)
    chats = [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": " ".join("bcdefgh"[: 1 + number % 7])}] * 3
        for number in range(400)
    ]

    def mask(chat):
        mine.apply_chat_template(chat, tokenize=False)  # as an evaluation beside the loader does
        return packing.tokenizer.call([chat], packing.outputs)["assistant_masks"][0]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(mask, chats))
    finally:
        sys.setswitchinterval(interval)
    assert found == [[0, 0, 0, *[1] * (2 + number % 7)] * 3 for number in range(400)]


@pytest.mark.parametrize(
    "template", [TEMPLATE, "\n" + TEMPLATE, "  " + TEMPLATE + "\n", {"default": "  \n" + TEMPLATE}]
)
def test_a_chat_template_gives_what_its_tokenizer_gives(template):
    mine = hugging_face()
    mine.chat_template = template
    chat = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
    mine.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # of spaces too
    copied = pack_tokens("messages", 8, tokenizer=mine).tokenizer.call.tokenizer
    assert copied.apply_chat_template(chat, tokenize=False) == mine.apply_chat_template(chat, tokenize=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda it: setattr(it, "bos_token", "<|user|>"),
        lambda it: setattr(it, "eos_token", "<|user|>"),
        lambda it: setattr(it, "chat_template", f"{TEMPLATE} "),
        lambda it: setattr(it, "split_special_tokens", True),
        lambda it: setattr(it, "fingerprint", "2"),
        lambda it: it.add_tokens(["zz"]),
    ],
    ids=["bos", "eos", "template", "split", "fingerprint", "added"],
)
def test_a_tokenizer_is_known_by_what_it_produces(tmp_path, change):
    rows = [[{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]] * 40
    pq.write_table(pa.table({"messages": rows}), tmp_path / "0.parquet")

    def made(tokenizer):
        return load(tmp_path, pack_tokens("messages", 8, tokenizer=tokenizer), columns=None)

    first, state = made(hugging_face()), None
    for _ in first:
        state = state or first.state_dict()
    same = made(hugging_face())
    same.load_state_dict(state)
    other = hugging_face()
    change(other)
    with pytest.raises(CheckpointMismatchError, match=r"saved with .*tokenizer \w{8}, here \w{8}"):
        made(other).load_state_dict(state)
    assert name_of(other) not in (None, name_of(hugging_face()))
    # A state of an earlier release knew the tokenizer in another way, and did not name it.
    settings = [setting for setting in state["settings"] if setting[0] != "tokenizer"]
    unsealed = {name: value for name, value in state.items() if name != "checksum"}
    with pytest.raises(CheckpointMismatchError, match=r"tokenizer not named, here \w{8}"):
        same.load_state_dict(sealed({**unsealed, "fingerprint": "0" * 32, "settings": settings}))


def name_of(tokenizer):
    return NamedTokenizer.of(tokenizer).version


def test_a_template_that_writes_the_time_is_the_same_at_another_time():
    digits = {str(digit): len(WORDS) + digit for digit in range(10)}
    backend = Tokenizer(models.WordLevel({**WORDS, **digits}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    dated = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    dated.chat_template = "{{ strftime_now('%f') }}"
    chat = [{"role": "user", "content": "a"}]
    assert (
        len({str(dated.apply_chat_template(chat)["input_ids"]) for _ in range(5)}) > 1
    )  # it is another text each time
    assert len({name_of(dated) for _ in range(5)}) == 1


def test_a_tokenizer_without_a_backend_is_known_too():
    class Letters(PreTrainedTokenizer):
        def __init__(self, **options):
            self.letters = {"a": 0, "b": 1, "?": 2}
            super().__init__(unk_token="?", **options)

        vocab_size = 3

        def get_vocab(self):
            return dict(self.letters)

        def _tokenize(self, text):
            return list(text)

        def _convert_token_to_id(self, token):
            return self.letters.get(token, 2)

        def _convert_id_to_token(self, index):
            return list(self.letters)[index]

    assert name_of(Letters()) == name_of(Letters()) != name_of(Letters(eos_token="b"))


def test_counts_are_kept_for_other_lengths_and_not_for_other_tokenizers(folder, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path_factory.mktemp("cache")))
    CALLS.clear()
    first = load(folder, pack_tokens("tokens", 16, tokenizer=numbers))
    assert sum(CALLS) == sum(each is not None for groups in FILES for group in groups for each in group)
    CALLS.clear()
    assert len(load(folder, pack_tokens("tokens", 16, tokenizer=numbers))) == len(first)
    other = pack_tokens("tokens", 8, eod=0, fill="best_fit", tokenizer=numbers)
    assert len(load(folder, other)) == -(-len(pack_corpus(FILES, other)) // 3)
    assert CALLS == []
    load(folder, pack_tokens("tokens", 16, tokenizer=numbers_and_halves))
    assert CALLS != []


def test_an_edited_tokenizer_counts_anew_and_states_go_on(folder, tmp_path_factory, monkeypatch):
    place = tmp_path_factory.mktemp("module")
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.syspath_prepend(place)

    def make(body):
        (place / "of_words.py").write_text(f"def tokenize(texts): return [{body} for text in texts]")
        sys.modules.pop("of_words", None)
        return load(folder, pack_tokens("tokens", 4, tokenizer=importlib.import_module("of_words").tokenize))

    loader = make("[1, 2, 3]")
    state = loader.state_dict()
    renamed = make("[3, 2, 1]")
    renamed.load_state_dict(state)
    assert len(list(renamed)) == len(loader)
    longer = make("[1] * 9")
    assert len(list(longer)) == len(longer) > len(loader)
    with pytest.raises(CheckpointMismatchError):
        longer.load_state_dict(state)


def test_a_tokenizer_that_gives_other_tokens_than_it_counted_is_named(folder):
    given = iter(range(1, 1000))

    def tokenize(texts):
        return [[1] * 8 * next(given) for _ in texts]

    with pytest.raises(RowCountError, match="the tokenizer gives other tokens than when they were counted"):
        list(load(folder, pack_tokens("tokens", 8, tokenizer=tokenize)))


def test_processes_share_the_counting(folder):
    packing = pack_tokens("tokens", 16, eod=0, tokenizer=numbers)
    inventory = scan_files(str(folder))
    text = tokenized(make_reader(ReadSpec(schema=inventory.schema, columns=("tokens",))), packing.tokenizer)
    reader = PackingReader(reader=text, counter=text, packing=packing, fields=())
    parts = []
    for index in range(2):
        share = Share(index=index, count=2, threads=2, exchange=lambda counts: parts.append(counts) or counts)
        count_packed(inventory, reader, share, read_lengths)
    documents = [group for groups in FILES for group in groups]
    assert np.sum(parts, axis=0)[0].tolist() == [sum(len(each or ()) + bool(each) for each in g) for g in documents]


def test_rows_are_checked_where_they_are_counted_too(folder):
    inventory = scan_files(str(folder))
    reader = tokenized(make_reader(ReadSpec(schema=inventory.schema, columns=("tokens",))), NamedTokenizer.of(numbers))
    with pytest.raises(RowCountError, match="row group 0 gave 5 of 4 planned rows"):
        reader.measure(replace(inventory.task(0), live_rows=4))


def test_a_state_binds_to_the_tokenizer(folder):
    state = json.loads(json.dumps(load(folder, pack_tokens("tokens", 16, tokenizer=numbers)).state_dict()))
    load(folder, pack_tokens("tokens", 16, tokenizer=numbers)).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError):
        load(folder, pack_tokens("tokens", 16, tokenizer=numbers_and_halves)).load_state_dict(state)
    assert (
        pack_tokens("t", 8, tokenizer=hugging_face()).describe()
        == pack_tokens("t", 8, tokenizer=hugging_face()).describe()
    )


def test_another_list_of_another_length_names_its_output(folder):
    def tokenize(texts):
        return {"input_ids": [[1] for _ in texts], "mask": [[1, 1] for _ in texts]}

    packing = pack_tokens("tokens", 16, tokenizer=tokenize, fields={"x": PerToken(output="mask")})
    with pytest.raises(DataError, match="column 'mask of the tokenizer', has lists of other lengths"):
        list(load(folder, packing))


def test_a_tokenizer_without_a_name_is_told_about(folder, caplog):
    with caplog.at_level(logging.WARNING):
        load(folder, pack_tokens("tokens", 16, tokenizer=lambda texts: [[1] for _ in texts]))
    assert "This tokenizer cannot be identified in another process" in caplog.text


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ([[1]], SchemaError, "gave 1 token lists for the 4 texts of .*row group 0"),
        ({"ids": [[1]] * 4}, SchemaError, r"gave \['ids'\] for .*row group 0, and not \['input_ids'\]"),
        ([[1.5]] * 4, SchemaError, "gave a float64 array"),
        ([[2**31]] * 4, SchemaError, "return tokens that fit int32"),
        (ValueError("no"), TransformError, "raised ValueError for .*row group 0, live row 0: no"),
    ],
)
def test_what_is_no_list_of_tokens_is_an_error(folder, given, error, says):
    def tokenize(texts):
        if isinstance(given, Exception):
            raise given
        return given

    with pytest.raises(error, match=says):
        load(folder, pack_tokens("tokens", 16, tokenizer=tokenize))


def test_what_does_not_fit_is_refused(tmp_path):
    pq.write_table(pa.table({"tokens": [[1]], "text": ["a"], "x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="Leave tokenizer= out"):
        load(tmp_path, pack_tokens("tokens", 8, tokenizer=numbers))
    with pytest.raises(ConfigError, match="pass tokenizer="):
        load(tmp_path, pack_tokens("text", 8))
    with pytest.raises(ConfigError, match="there is no tokenizer="):
        pack_tokens("text", 8, fields={"x": PerToken(output="y")})
    with pytest.raises(ConfigTypeError, match="tokenizer is an int"):
        pack_tokens("text", 8, tokenizer=3)
    without_marks = hugging_face()
    for template in (None, TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")):
        without_marks.chat_template = template
        with pytest.raises(ConfigError, match=r"does not mark the assistant's words: set .*\{% generation %\}"):
            pack_tokens("messages", 8, tokenizer=without_marks, fields={"x": PerToken(output="assistant_masks")})
    for path in ("nowhere.json", tmp_path, tmp_path / "a.parquet"):
        with pytest.raises(ConfigError, match=r"is not a tokenizer\.json of the tokenizers package"):
            pack_tokens("text", 8, tokenizer=path)


@pytest.mark.full
@pytest.mark.processes
def test_packing_needs_no_tokenizer_package():
    code = "import sys, torch_dataloader_utils.samples; assert not {'transformers', 'tokenizers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
