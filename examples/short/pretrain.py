"""Pretraining text in packs: python -m examples.short.pretrain"""

import torch
from examples.short.parts import language_model, tokenizer, write
from torch.nn.functional import cross_entropy

from torch_dataloader_utils import StructuredDataset, pack_tokens

packing = pack_tokens("text", 32, tokenizer=tokenizer(), eod=1)
loader, _ = StructuredDataset.create_dataloader(write("texts"), pack=packing, batch_size=4)
model = language_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for batch in loader:
    logits = model(input_ids=batch["tokens"], position_ids=batch["positions"]).logits
    is_known = batch["loss_mask"][:, :-1]
    loss = cross_entropy(logits[:, :-1][is_known], batch["tokens"][:, 1:][is_known].long())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
