"""A recommender of categories: python -m examples.short.recommend"""

import torch
from examples.short.parts import write
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from torch_dataloader_utils import Hash, StructuredDataset
from torch_dataloader_utils.integrations.torchrec import to_keyed_jagged_tensor

KEYS = ["city", "tags"]
loader, _ = StructuredDataset.create_dataloader(
    write("visits"), columns=[*KEYS, "liked"], encode={key: Hash(buckets=1_000) for key in KEYS}, batch_size=32
)
tables = [EmbeddingBagConfig(name=key, embedding_dim=8, num_embeddings=1_000, feature_names=[key]) for key in KEYS]
embeddings, head = EmbeddingBagCollection(tables=tables), torch.nn.Linear(16, 1)
optimizer = torch.optim.AdamW([*embeddings.parameters(), *head.parameters()], lr=0.1)
for batch in loader:
    vectors = embeddings(to_keyed_jagged_tensor(batch, KEYS)).values()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(head(vectors)[:, 0], batch["liked"].float())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
