"""What stands for your own data, tokenizer and model."""

import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<pad>", "<eos>", "<|user|>", "<|assistant|>", *"abcdefghij"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} {% if m.role == 'assistant' %}<eos> {% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer() -> Any:
    """A Hugging Face tokenizer of ten letters with a chat template: `AutoTokenizer.from_pretrained("...")`."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE)


def language_model() -> Any:
    """A tiny model: `AutoModelForCausalLM.from_pretrained("...")`."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **sizes))


def write(name: str, num_rows: int = 640) -> str:
    """Return a directory of rows about letters in order, written by the first process that asks."""
    chance, folder = random.Random(0), Path(".demo/short") / name
    rows = []
    for _ in range(num_rows):
        first = chance.randrange(6)
        count = [WORDS[4 + first + place] for place in range(4)]
        asked, right, wrong = " ".join(count[:2]), " ".join(count[2:]), " ".join(count[1::-1])
        talk = [{"role": "user", "content": asked}, {"role": "assistant", "content": right}]
        pair = {"prompt": asked, "chosen": f" {right}", "rejected": f" {wrong}"}
        visit = {"city": count[0], "tags": count[: 1 + first % 3], "liked": float(first % 2)}
        rows.append({"text": " ".join(count), "messages": talk, **pair, **visit})
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{os.getpid()}"
    pq.write_table(pa.Table.from_pylist(rows), partial)
    with suppress(FileExistsError):
        os.link(partial, folder / "rows.parquet")
    partial.unlink()
    return str(folder)
