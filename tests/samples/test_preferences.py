"""Preference pairs: padded as TRL pads them, and packed with one prompt, against single sequences."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from tests.effort import effort
from tests.samples.test_attention import ragged
from tests.samples.test_conversations import FORGETFUL, say, spoken, write
from tests.samples.test_packed_loader import load
from tests.samples.test_text import WORDS, hugging_face
from torch_dataloader_utils import StructuredDataset, TensorBatch
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, DataError, TransformError
from torch_dataloader_utils.samples import Preference, branch_block_mask, branch_sums, pack_tokens

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def ids(words):
    return [WORDS[word] for word in words.split()]


PAIRS = {
    "prompt": ["a b c", "d", "e f g h"],
    "chosen": [" i j", " k", " l m n"],
    "rejected": [" o", " p q r s", " t <eos>"],
}


def padded(folder, preference, **options):
    (batch,) = StructuredDataset.create_dataloader(str(folder), transform=preference.batch, num_workers=0, **options)[0]
    return {name: column.tolist() for name, column in batch.items()}


def test_a_padded_batch_has_chosen_then_rejected_answers(tmp_path):
    folder = write(tmp_path, **PAIRS, ref_chosen_logps=[0.5, 0.25, 1.0])
    batch = padded(folder, Preference(hugging_face()))
    wholes = [
        [*ids(prompt), *ids(answer.removesuffix("<eos>")), 1]
        for side in ("chosen", "rejected")
        for prompt, answer in zip(PAIRS["prompt"], PAIRS[side], strict=True)
    ]
    longest, prompts = max(map(len, wholes)), [len(prompt.split()) for prompt in PAIRS["prompt"]] * 2
    assert batch["input_ids"] == [[*whole, *[0] * (longest - len(whole))] for whole in wholes]
    assert batch["attention_mask"] == [[int(at < len(whole)) for at in range(longest)] for whole in wholes]
    assert batch["completion_mask"] == [
        [int(prompt <= at < len(whole)) for at in range(longest)] for whole, prompt in zip(wholes, prompts, strict=True)
    ]
    assert batch["ref_chosen_logps"] == [0.5, 0.25, 1.0]


def test_a_padded_batch_equals_that_of_trl(tmp_path):
    trl = pytest.importorskip("trl.trainer.dpo_trainer")
    collate = trl.DataCollatorForPreference(pad_token_id=0, max_length=6)
    preference = Preference(hugging_face(), max_length=6)
    pairs = [preference.tokens_of(dict(zip(PAIRS, row, strict=True))) for row in zip(*PAIRS.values(), strict=True)]
    expected = collate([{f"{name}_ids": part for name, part in pair._asdict().items()} for pair in pairs])
    assert padded(write(tmp_path, **PAIRS), preference) == {name: each.tolist() for name, each in expected.items()}


@pytest.mark.parametrize("form", ["structs", "json", "whole"])
def test_messages_are_rendered_by_the_template(tmp_path, form):
    prompt, chosen, rejected = say("a b"), say("", "c d")[1:], say("", "e")[1:]
    parts = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    if form == "whole":
        parts = {"chosen": prompt + chosen, "rejected": prompt + rejected}
    columns = {name: [json.dumps(part) if form == "json" else part] for name, part in parts.items()}
    preference = Preference(spoken(), prompt="prompt" if "prompt" in parts else None)
    batch = padded(write(tmp_path, **columns), preference)
    expected = [spoken().apply_chat_template(prompt + answer)["input_ids"] for answer in (chosen, rejected)]
    assert batch["input_ids"] == [expected[0], [*expected[1], 0]]
    assert batch["completion_mask"] == [[0] * 4 + [1] * 3, [0] * 4 + [1] * 2 + [0]]


def test_texts_without_a_prompt_share_their_first_tokens(tmp_path):
    folder = write(tmp_path, chosen=["a b c d"], rejected=["a b e"])
    batch = padded(folder, Preference(hugging_face(), prompt=None))
    assert batch["input_ids"] == [[*ids("a b c d"), 1], [*ids("a b e"), 1, 0]]
    assert batch["completion_mask"] == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 0]]


def test_an_answer_without_tokens_keeps_its_row(tmp_path):
    tokenizer = hugging_face()
    tokenizer.eos_token = None
    folder = write(tmp_path, prompt=["a", "b"], chosen=["", " c"], rejected=[" d", " e"])
    batch = padded(folder, Preference(tokenizer))
    assert batch["input_ids"] == [[*ids("a"), 0], ids("b c"), ids("a d"), ids("b e")]
    assert batch["completion_mask"] == [[0, 0], [0, 1], [0, 1], [0, 1]]
    (pack,) = packed(folder, Preference(tokenizer))
    assert pack["branches"].tolist()[0][:6] in ([1, 2, 2, 1, 1, 2], [1, 1, 2, 2, 1, 2])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": "b", "rejected": "b"}, "are equal"),
        ({"prompt": ""}, "0 tokens"),
        ({"prompt": "a b c d"}, "fewer than max_length=4"),
        ({"prompt": "xx y"}, "texts"),
        ({"chosen": None}, "has a null"),
    ],
)
def test_a_pair_that_cannot_be_trained_says_why(tmp_path, row, message):
    row = {"prompt": "a", "chosen": " b", "rejected": " c", **row}
    if message == "texts":
        row = {"prompt": row["prompt"], "chosen": say("", "b"), "rejected": say("", "c")}
    folder = write(tmp_path, **{name: [value] for name, value in row.items()})
    with pytest.raises(TransformError, match=message):
        padded(folder, Preference(hugging_face(), max_length=4), columns=["prompt", "chosen", "rejected"])


def packed(folder, preference, length=32, **options):
    packing = pack_tokens(
        "chosen", length, tokenizer=preference, fill="best_fit", **{"over_long": "drop", **options.pop("pack", {})}
    )
    return load(folder, packing, **options)


def test_a_batch_without_a_part_names_the_columns(tmp_path):
    folder = write(tmp_path, chosen=["a b"], rejected=["a c"])
    with pytest.raises(TransformError, match=r"no column 'prompt', and it has \['chosen', 'rejected'\].*prompt=None"):
        padded(folder, Preference(hugging_face()))
    found = [padded(folder, Preference(hugging_face(), prompt=None), output_format=kind) for kind in ("torch", "arrow")]
    assert found[0] == found[1]


def test_a_pack_has_each_prompt_once(tmp_path):
    folder = write(tmp_path, prompt=["a b c", None], chosen=[" d e", " g"], rejected=[" f", " h"])
    (batch,) = packed(folder, Preference(hugging_face()), length=12)
    a, b, c, d, e, f = ids("a b c d e f")
    assert batch["tokens"].tolist() == [[a, b, c, d, e, 1, c, f, 1, 0, 0, 0]]
    assert batch["positions"].tolist() == [[0, 1, 2, 3, 4, 5, 2, 3, 4, 0, 0, 0]]
    assert batch["branches"].tolist() == [[0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]]
    assert batch["labels"].tolist() == [[-100, -100, d, e, 1, -100, f, 1, -100, -100, -100, -100]]
    assert batch["cu_seqlens"].to_list() == [[0, 9, 12]]


def test_pairs_are_never_cut(tmp_path):
    preference = Preference(hugging_face())
    for wrong in ({"fill": "greedy"}, {"fill": "best_fit"}, {"fill": "best_fit", "over_long": "truncate"}):
        with pytest.raises(ConfigError, match="a part of a pair is of no use"):
            pack_tokens("chosen", 32, tokenizer=preference, **wrong)
    folder = write(tmp_path, **PAIRS)
    loader = packed(folder, preference, length=10)
    assert sum(len(rows) for batch in loader for rows in batch["cu_seqlens"].to_list()) == 2 * 3
    assert "left out 1" in loader.plan.explain() or "1 " in loader.plan.explain()
    with pytest.raises(DataError, match="do not fit a sample"):
        list(packed(folder, preference, length=10, pack={"over_long": "error"}))


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_ranks_and_a_resume_have_every_pair_once(tmp_path, stop):
    count = 40
    folder = write(
        tmp_path,
        prompt=[LETTERS[row % 26] for row in range(count)],
        chosen=[" " + " ".join("ab" * (1 + row % 3)) for row in range(count)],
        rejected=[" c"] * count,
    )
    options = {"batch_size": 2, "shuffle": True, "pack": {"fields": ("tokens", "document_row")}}

    def rows(batch):
        return [row for sample in batch["document_row"].to_list() for row in sample]

    def loader(num_ranks, rank):
        return packed(folder, Preference(hugging_face()), 12, num_ranks=num_ranks, rank=rank, **options)

    before = [loader(2, rank) for rank in range(2)]
    steps = [iter(each) for each in before]
    seen = [row for _ in range(stop) for each in steps for row in rows(next(each))]
    state = before[0].state_dict()
    assert state == before[1].state_dict()
    for rank in range(3):
        after = loader(3, rank)
        after.load_state_dict(json.loads(json.dumps(state)))
        seen += [row for batch in after for row in rows(batch)]
    assert sorted(seen) == list(range(count))


def test_a_refused_pair_can_be_left_out(tmp_path):
    folder = write(tmp_path, prompt=["a", "b"], chosen=[" c", " d"], rejected=[" c", " e"])
    with pytest.raises(TransformError, match="live row 0: the chosen and the rejected answer are equal"):
        packed(folder, Preference(hugging_face()))
    with pytest.warns(UserWarning, match="left out 1 of 2 rows"):
        (batch,) = packed(folder, Preference(hugging_face()), on_error="skip")
    assert batch["tokens"][0, :3].tolist() == [*ids("b d"), 1]


def flex(module, query, key, value, attention_mask, **_):
    return flex_attention(query, key, value, block_mask=attention_mask, scale=module.scaling).transpose(1, 2), None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_packs_have_the_likelihoods_of_single_sequences(tmp_path):
    chance = np.random.default_rng(0)

    def words(least, most):
        return " " + " ".join(chance.choice(list(LETTERS), chance.integers(least, most)))

    columns = {"prompt": [words(1, 6).strip() for _ in range(12)]}
    for side, ending in (("chosen", " a"), ("rejected", " b")):
        columns[side] = [words(1, 9) + ending for _ in range(12)]
    folder, preference = write(tmp_path, **columns), Preference(hugging_face())
    torch.manual_seed(0)
    AttentionInterface.register("plain_flex", flex)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), initializer_range=0.5, **sizes)).eval()

    def single(row):
        pair = preference.tokens_of(row)
        for answer in (pair.chosen, pair.rejected):
            tokens = torch.tensor([pair.prompt + answer])
            labels = tokens.clone()
            labels[:, : len(pair.prompt)] = -100
            logits = model(input_ids=tokens).logits[0, :-1]
            yield -cross_entropy(logits, labels[0, 1:], reduction="sum").item()

    expected = [tuple(single(dict(zip(columns, row, strict=True)))) for row in zip(*columns.values(), strict=True)]
    model.set_attn_implementation("plain_flex")
    found = {}
    fields = ("tokens", "positions", "labels", "branches", "cu_seqlens", "document_row")
    for batch in packed(folder, preference, length=48, pack={"fields": fields}):
        mask = branch_block_mask(batch["cu_seqlens"], batch["branches"], 48, block_size=16)
        with torch.no_grad():
            logits = model(input_ids=batch["tokens"], position_ids=batch["positions"], attention_mask=mask).logits
        values = -cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
        chosen, rejected = branch_sums(values, batch["cu_seqlens"], batch["branches"]).tolist()
        rows = itertools.chain(*batch["document_row"].to_list())
        found |= dict(zip(rows, zip(chosen, rejected, strict=True), strict=True))
    assert sorted(found) == list(range(12))
    assert torch.allclose(torch.tensor([found[row] for row in range(12)]), torch.tensor(expected), atol=1e-3)


@st.composite
def samples_of_pairs(draw):
    """(L, boundaries and branches of some samples): pairs of three runs, then padding."""
    length, samples = draw(st.integers(1, 60)), []
    for _ in range(draw(st.integers(1, 3))):
        borders, branches = [0], []
        while draw(st.booleans()):
            prompt, chosen, rejected = draw(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(1, 20)))
            if len(branches) + prompt + chosen + rejected > length:
                break
            branches += [0] * prompt + [1] * chosen + [2] * rejected
            borders.append(len(branches))
        borders += [length] if borders[-1] < length else []
        samples.append((borders, branches + [2] * (length - len(branches))))
    return length, samples


@pytest.mark.slow
@given(samples_of_pairs(), st.sampled_from([1, 2, 4, 16, 128]))
@settings(max_examples=effort(60), deadline=None)
def test_the_mask_of_branches_is_the_one_that_torch_makes_of_all_pairs_of_tokens(made, block_size):
    length, samples = made
    cu_seqlens, branches = ragged([borders for borders, _ in samples]), torch.tensor([each for _, each in samples])
    owner = torch.tensor(
        [
            [document for document, (start, stop) in enumerate(itertools.pairwise(borders)) for _ in range(start, stop)]
            for borders, _ in samples
        ]
    )

    def attends(sample, _, query, key):
        is_seen = (branches[sample, key] == 0) | (branches[sample, key] == branches[sample, query])
        return is_seen & (owner[sample, query] == owner[sample, key]) & (key <= query)

    expected = create_block_mask(attends, len(samples), None, length, length, "cpu", BLOCK_SIZE=block_size)
    mask = branch_block_mask(cu_seqlens, branches.int(), length, block_size=block_size)
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(expected, name)), name
    assert torch.equal(mask.to_dense(), expected.to_dense())
    places = torch.arange(length)
    rule = [torch.arange(len(samples))[:, None, None], 0, places[:, None], places]
    assert torch.equal(mask.mask_mod(*rule), attends(*rule))


@pytest.mark.slow
@given(samples_of_pairs())
@settings(max_examples=effort(60), deadline=None)
def test_sums_of_branches_are_sums_over_slices(made):
    length, samples = made
    values = torch.arange(len(samples) * length, dtype=torch.float64).view(len(samples), length)
    expected = [
        [values[number, start:stop][torch.tensor(branches[start:stop]) == side].sum().item() for side in (1, 2)]
        for number, (borders, branches) in enumerate(samples)
        for start, stop in itertools.pairwise(borders)
        if branches[start] < 2
    ]
    real = torch.ones_like(values)
    for number, (borders, branches) in enumerate(samples):
        if borders[-2:] and branches[borders[-2]] == 2:
            real[number, borders[-2] :] = 0
    cu_seqlens, branches = ragged([borders for borders, _ in samples]), torch.tensor([each for _, each in samples])
    assert branch_sums(values * real, cu_seqlens, branches).T.tolist() == expected


def test_what_decides_the_tokens_decides_the_name():
    tokenizer = spoken()
    made = [
        Preference(tokenizer),
        Preference(tokenizer, prompt=None),
        Preference(tokenizer, rejected="worse"),
        Preference(tokenizer, tools="tools"),
        Preference(tokenizer, template_kwargs={"x": 1}),
        Preference(tokenizer, max_length=9),
        Preference(spoken(FORGETFUL)),
    ]
    assert len({each.fingerprint for each in made}) == len(made)
    assert pickle.loads(pickle.dumps(made[0])).fingerprint == made[0].fingerprint
    assert isinstance(made[0].batch({name: PAIRS[name] for name in PAIRS}), TensorBatch)
    with pytest.raises(ConfigTypeError, match="pass a Hugging Face tokenizer"):
        Preference("tokenizer.json")
    with pytest.raises(ConfigError, match="name a column for each part, once"):
        Preference(tokenizer, prompt="chosen")
