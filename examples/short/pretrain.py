"""Pretraining text in packs: python -m examples.short.pretrain"""

import torch
from examples.short.parts import language_model, tokenizer, write

from torch_dataloader_utils import StructuredDataset, pack_tokens
from torch_dataloader_utils.samples import model_inputs

packing = pack_tokens("text", 32, tokenizer=tokenizer(), eod=1)
loader, _ = StructuredDataset.create_dataloader(write("texts"), pack=packing, batch_size=4)
model = language_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for batch in loader:
    loss = model(**model_inputs(batch)).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
