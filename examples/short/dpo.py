"""Direct preference optimisation of pairs: python -m examples.short.dpo"""

import copy

import torch
from examples.short.parts import language_model, tokenizer, write
from torch.nn.functional import cross_entropy, logsigmoid

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.samples import Preference


def likelihoods(model, batch):
    """Log-likelihoods of the chosen and of the rejected answers, [2, rows]."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
    losses = cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return -losses.sum(dim=1).view(2, -1)


pairs = Preference(tokenizer())
loader, _ = StructuredDataset.create_dataloader(
    write("pairs"), columns=pairs.columns, transform=pairs.batch, batch_size=32, num_workers=0
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
