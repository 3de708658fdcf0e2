"""Direct preference optimisation of pairs: python -m examples.short.dpo"""

import copy

import torch
from examples.short.parts import language_model, tokenizer, write
from torch.nn.functional import cross_entropy, logsigmoid
from torch.nn.utils.rnn import pad_sequence

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.samples import Completion

ANSWERS = [Completion(tokenizer(), completion=name, labels="shifted") for name in ("chosen", "rejected")]


def likelihoods(model, batch):
    """Log-likelihoods of the chosen and of the rejected answers, [2, rows]."""
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    made = [answer(row) for answer in ANSWERS for row in rows]
    tokens = pad_sequence([torch.tensor(each["input_ids"]) for each in made], batch_first=True)
    labels = pad_sequence([torch.tensor(each["labels"]) for each in made], batch_first=True, padding_value=-100)
    losses = cross_entropy(model(input_ids=tokens).logits.transpose(1, 2), labels, reduction="none")
    return -losses.sum(dim=1).view(2, -1)


loader, _ = StructuredDataset.create_dataloader(
    write("pairs"), columns=["prompt", "chosen", "rejected"], output_format="dict", batch_size=32
)
model = language_model()
reference = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for batch in loader:
    with torch.no_grad():
        before = likelihoods(reference, batch)
    chosen, rejected = likelihoods(model, batch) - before
    loss = -logsigmoid(0.1 * (chosen - rejected)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
