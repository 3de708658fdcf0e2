"""Tokens and labels of whole rows, against transformers' templates: chats with tools, completions, functions."""

import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import DataCollatorWithPadding, LlamaConfig, LlamaForCausalLM

from tests.samples.test_packed_loader import load
from tests.samples.test_text import TEMPLATE, WORDS, hugging_face
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, TransformError
from torch_dataloader_utils.samples import Chat, Completion, PerToken, Preference, model_inputs, pack_tokens

PLAIN = (
    "{% if tools %}{{ tools[0].name }} {% endif %}{% for m in messages %}<|{{ m.role }}|> {{ m.content }}"
    "{% if m.role == 'assistant' %} <eos>{% endif %} {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Renders earlier answers in another way than the last one, as templates do that leave out old thoughts.
FORGETFUL = PLAIN.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else 'z' }}")


def say(*texts):
    return [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(texts)]


TALKS = [say("a b", "c d e", "f", "g"), say("h", "i j"), None, say("k"), say("l", "m", "n o", "p q r", "s", "t")]


def spoken(template=PLAIN):
    tokenizer = hugging_face()
    tokenizer.chat_template = template
    return tokenizer


def write(folder, **columns):
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return folder


def rows_of(folder, tokenizer, column="messages", **options):
    """Tokens and labels of each document, in the order of the file."""
    fields = ("tokens", "labels", "document_row", "cu_seqlens")
    packing = pack_tokens(column, 64, tokenizer=tokenizer, fill="best_fit", fields=fields)
    found = {}
    for batch in load(folder, packing, **options):
        assert batch["labels"].dtype == torch.int64
        for tokens, labels, rows, borders in zip(
            batch["tokens"].tolist(),
            batch["labels"].tolist(),
            batch["document_row"].to_list(),
            batch["cu_seqlens"].to_list(),
            strict=True,
        ):
            for row, start, stop in zip(rows, borders, borders[1:], strict=False):
                found[row] = (tokens[start:stop], labels[start:stop])
    return found


def masked(tokenizer, talk, **options):
    """Tokens and labels as transformers masks them."""
    given = tokenizer.apply_chat_template(
        talk, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **options
    )
    pairs = zip(given["input_ids"], given["assistant_masks"], strict=True)
    return given["input_ids"], [token if kept else -100 for token, kept in pairs]


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN], ids=["marks", "prefixes"])
@pytest.mark.parametrize("as_json", [False, True], ids=["structs", "json"])
def test_the_assistant_is_trained_as_transformers_masks_it(tmp_path, template, as_json):
    column = [json.dumps(talk) if talk else None for talk in TALKS] if as_json else TALKS
    found = rows_of(write(tmp_path, messages=column), Chat(spoken(template)))
    assert found == {row: masked(spoken(TEMPLATE), talk) for row, talk in enumerate(TALKS) if talk}


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN, FORGETFUL], ids=["marks", "prefixes", "forgetful"])
def test_the_last_answer_or_all_tokens_can_be_trained(tmp_path, template):
    folder = write(tmp_path, messages=TALKS)
    last = rows_of(folder, Chat(spoken(template), train_on="last"))
    for row, (tokens, labels) in last.items():
        answer = [WORDS[word] for word in TALKS[row][-1]["content"].split()]
        trained = [label for label in labels if label != -100]
        assert trained == ([*answer, WORDS["<eos>"]] if len(TALKS[row]) > 1 else [])
        assert not trained or tokens[-len(trained) :] == trained
    for tokens, labels in rows_of(folder, Chat(spoken(template), train_on="all")).values():
        assert labels == [-100, *tokens[1:]]


def test_a_row_whose_prefixes_differ_is_refused_by_name(tmp_path):
    folder = write(tmp_path, messages=TALKS)
    with pytest.raises(TransformError, match=r"row group 0, live row 0: messages before and up to message 1 alone"):
        rows_of(folder, Chat(spoken(FORGETFUL)))
    with pytest.warns(UserWarning, match="left out 2 of 5 rows"):
        assert sorted(rows_of(folder, Chat(spoken(FORGETFUL)), on_error="skip")) == [1, 3]


def test_tools_and_options_reach_the_template(tmp_path):
    tools = [{"name": "x", "arguments": None}]
    folder = write(tmp_path, messages=TALKS[:2], tools=[json.dumps(tools), None])
    found = rows_of(folder, Chat(spoken(), tools="tools"))
    assert found[0][0] == spoken().apply_chat_template(TALKS[0], tools=tools, return_dict=True)["input_ids"]
    assert found[1] == masked(spoken(TEMPLATE), TALKS[1])
    loud = PLAIN.replace("{{ m.content }}", "{{ word }} {{ m.content }}")
    found = rows_of(folder, Chat(spoken(loud), template_kwargs={"word": "w"}))
    assert found[1][0] == spoken(loud).apply_chat_template(TALKS[1], word="w", return_dict=True)["input_ids"]


def test_nulls_that_arrow_adds_to_messages_are_not_there(tmp_path):
    talk = [*say("a"), {"role": "assistant", "content": "b", "name": "c"}]
    template = PLAIN.replace("{{ m.content }}", "{{ m.name if m.name is defined else m.content }}")
    found = rows_of(write(tmp_path, messages=[talk]), Chat(spoken(template), train_on="all"))
    assert found[0][0] == [WORDS[word] for word in ("<|user|>", "a", "<|assistant|>", "c", "<eos>")]


def test_completions_are_trained_and_prompts_are_not(tmp_path):
    folder = write(tmp_path, prompt=["a b", "c", None], completion=[" d e", " f <eos>", "g"])
    found = rows_of(folder, Completion(hugging_face()), column="prompt")
    a, b, c, d, e, f = (WORDS[letter] for letter in "abcdef")
    assert found == {0: ([a, b, d, e, 1], [-100, -100, d, e, 1]), 1: ([c, f, 1], [-100, f, 1])}
    folder = write(tmp_path, prompt=[say("a b")], completion=[say("a b", "c d")[1:]])
    assert rows_of(folder, Completion(spoken()), column="completion") == {
        0: masked(spoken(TEMPLATE), say("a b", "c d"))
    }


@pytest.mark.parametrize(
    ("prompt", "completion", "advice"),
    [
        ("a b", "c", "Let the prompt end where a token ends"),
        (say("a", "b"), say("c"), "Pass a chat template that renders a prompt alike"),
    ],
)
def test_a_completion_that_changes_its_prompt_says_what_to_do(tmp_path, prompt, completion, advice):
    folder = write(tmp_path, prompt=[prompt], completion=[completion])
    tokenizer = Completion(spoken(FORGETFUL))
    with pytest.raises(TransformError, match=f"the prompt alone and in the whole row have other tokens.*{advice}"):
        rows_of(folder, tokenizer, column="prompt")


def pairs(row):
    return {"input_ids": [row["first"], *row["rest"]], "weights": [1] * (1 + len(row["rest"]))}


pairs.columns = ("first", "rest")


def test_a_function_makes_a_sample_of_any_columns(tmp_path):
    folder = write(tmp_path, first=[7, 8], rest=[[1, 2], []])
    fields = {"tokens": None, "weights": PerToken(output="weights")}
    (batch,) = load(folder, pack_tokens("rest", 5, tokenizer=pairs, fields=fields))
    assert (batch["tokens"].tolist(), batch["weights"].tolist()) == ([[7, 1, 2, 8, 0]], [[1, 1, 1, 1, 0]])
    with pytest.raises(ConfigError, match=r"makes samples of \['first', 'rest'\]: pass one"):
        pack_tokens("other", 5, tokenizer=pairs)
    with pytest.raises(ConfigError, match="'first', which is not a column"):
        load(write(tmp_path, rest=[[1]]), pack_tokens("rest", 5, tokenizer=pairs))


def test_labels_fit_models_that_shift_and_models_that_do_not(tmp_path):
    folder = write(tmp_path, messages=TALKS)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **sizes))
    losses = []
    for labels in ("aligned", "shifted"):
        packing = pack_tokens("messages", 24, tokenizer=Chat(spoken(), labels=labels), fill="best_fit")
        (batch,) = load(folder, packing)
        inputs = {"input_ids": batch["tokens"], "position_ids": batch["positions"]}
        if labels == "aligned":
            losses.append(model(**inputs, labels=batch["labels"]).loss)
        else:
            losses.append(cross_entropy(model(**inputs).logits.flatten(0, 1), batch["labels"].flatten()))
    assert torch.allclose(*losses)


def test_a_collator_of_rows_is_told_that_it_gets_a_batch(tmp_path):
    collator = DataCollatorWithPadding(spoken())
    with pytest.raises(TransformError, match="The function gets one batch, a TensorBatch of columns, not a list"):
        list(load(write(tmp_path, input_ids=[[1, 2], [3]]), None, collate_fn=collator))


def test_what_decides_the_labels_decides_the_name():
    tokenizer = spoken()
    made = [
        Chat(tokenizer),
        Chat(tokenizer, tools="tools"),
        Chat(tokenizer, template_kwargs={"x": 1}),
        Chat(tokenizer, train_on="last"),
        Chat(tokenizer, labels="shifted"),
        Chat(hugging_face()),
        Completion(tokenizer),
    ]
    assert len({each.fingerprint for each in made}) == len(made)
    assert pickle.loads(pickle.dumps(made[0])).fingerprint == Chat(spoken()).fingerprint == made[0].fingerprint
    with pytest.raises(ConfigTypeError, match="pass a Hugging Face tokenizer"):
        Chat("tokenizer.json")
    for wrong in ({"train_on": "user"}, {"labels": "left"}):
        with pytest.raises(ConfigError, match=r'pass ".*" or "'):
            Chat(tokenizer, **wrong)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[{"from": "human", "value": "a"}]], r"message 0 has \['from', 'value'\]. Write such a column"),
        (["a b c"], "begins with 'a b c' is not the JSON of a list.*pass the tokenizer itself"),
        (['{"role": "user", "content": "a"}'], "a conversation is a list of messages"),
        (["[1, 2]"], "message 0 has an int"),
    ],
)
def test_a_column_without_messages_says_what_a_chat_is(tmp_path, column, message):
    with pytest.raises(TransformError, match=message):
        rows_of(write(tmp_path, messages=column), Chat(spoken()))


def test_json_text_of_messages_is_read_in_completions(tmp_path):
    folder = write(tmp_path, prompt=[json.dumps(say("a b"))], completion=[json.dumps(say("", "c d")[1:])])
    assert rows_of(folder, Completion(spoken()), column="prompt") == {0: masked(spoken(TEMPLATE), say("a b", "c d"))}
    folder = write(tmp_path, prompt=["a"], completion=[json.dumps(say("", "c d")[1:])])
    with pytest.raises(TransformError, match=r"the prompt is a str and its completion is a list. Let both be texts"):
        rows_of(folder, Completion(spoken()), column="prompt")


def test_a_chat_needs_a_template_before_any_row_is_read():
    with pytest.raises(ConfigError, match=r"without a chat template: set tokenizer\.chat_template"):
        Chat(spoken(None))


@pytest.mark.parametrize("kind", [Chat, Completion, Preference])
def test_what_takes_a_row_says_so_when_it_gets_a_batch(tmp_path, kind):
    columns = {"messages": [say("a", "b")], "prompt": ["a"], "completion": [" b"], "chosen": [" b"], "rejected": [" c"]}
    with pytest.raises(TransformError, match=rf"{kind.__name__} takes one row, and this is a batch: pass pack="):
        list(load(write(tmp_path, **columns), None, transform=kind(spoken())))


def test_a_batch_becomes_the_arguments_of_a_model(tmp_path):
    folder = write(tmp_path, messages=TALKS, tokens=[[5, 6, 7], [8, 9], [4], None, [3]])
    (batch,) = load(folder, pack_tokens("messages", 64, tokenizer=Chat(spoken()), fill="best_fit"))
    inputs = model_inputs(batch)
    assert inputs.pop("use_cache") is False
    assert {name: column.dtype for name, column in inputs.items()} == dict.fromkeys(inputs, torch.int64)
    assert torch.equal(inputs["labels"], batch["labels"])
    (inputs,) = load(folder, pack_tokens("tokens", 8), transform=model_inputs)
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4, 3, 0]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 0, 0]]
    assert inputs["labels"].tolist() == [[-100, 6, 7, -100, 9, -100, -100, -100]]


def test_a_model_alone_computes_what_it_computes_of_single_documents(tmp_path):
    folder = write(tmp_path, messages=TALKS)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), initializer_range=0.5, **sizes)).eval()
    (batch,) = load(folder, pack_tokens("messages", 40, tokenizer=Chat(spoken()), fill="best_fit"))
    losses = []
    for tokens, labels in rows_of(folder, Chat(spoken())).values():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1]
        losses += cross_entropy(logits, torch.tensor(labels[1:]), reduction="none")[torch.tensor(labels[1:]) != -100]
    assert torch.allclose(model(**model_inputs(batch)).loss, torch.stack(losses).mean(), atol=1e-5)


@pytest.mark.processes
def test_arguments_of_a_model_come_from_worker_processes(tmp_path):
    folder, packing = write(tmp_path, tokens=[[5, 6, 7]]), pack_tokens("tokens", 4)
    (here,), (there,) = (load(folder, packing, transform=model_inputs, num_workers=count) for count in (0, 1))
    assert {name: str(part) for name, part in here.items()} == {name: str(part) for name, part in there.items()}


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        ({"fields": ["tokens"]}, "needs 'positions'"),
        ({"fields": ["tokens", "positions"]}, "needs 'labels' or 'loss_mask'"),
        ({"extra_token": True}, "for models that shift labels"),
    ],
)
def test_a_batch_that_is_not_for_such_a_model_is_refused(tmp_path, packing, message):
    (batch,) = load(write(tmp_path, tokens=[[5, 6, 7]]), pack_tokens("tokens", 8, **packing))
    with pytest.raises(ConfigError, match=message):
        model_inputs(batch)


def test_stored_labels_are_not_trained_in_padding(tmp_path):
    folder = write(tmp_path, tokens=[[5, 6, 7]], labels=[[-100, 6, 7]])
    (batch,) = load(folder, pack_tokens("tokens", 5), columns=["tokens", "labels"])
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, -100]]
    (batch,) = load(folder, pack_tokens("tokens", 5, fields={"tokens": None, "labels": PerToken()}))
    assert batch["labels"].tolist() == [[-100, 6, 7, 0, 0]]
