"""Small corpora for tests, and the oracle of the sample index: 30 lines that know nothing of numpy tricks."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torch_dataloader_utils.megatron.corpora import IndexedDataset, IndexedDatasetBuilder

Documents = Sequence[Sequence[Sequence[int]]]

# The corpus of the format's worked example: two documents, three sequences.
EXAMPLE: Documents = (((1, 2, 3), (4, 5)), ((9, 8, 7, 6),))

# No server answers at this address: code that looks for the corpus there gets another error than a refusal.
NOBODY = "http://127.0.0.1:9/corpus"


def write_corpus(prefix: Path, documents: Documents, dtype: object = np.uint16, modes: Sequence[int] = ()) -> str:
    """Write sequences grouped into documents; `modes` makes the corpus multimodal."""
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=bool(modes)) as builder:
        numbers = iter(modes)
        for document in documents:
            for sequence in document:
                builder.add_item(list(sequence), mode=next(numbers, 0))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
    return str(prefix)


def read_corpus(prefix: str) -> list[list[int]]:
    """The tokens of every sequence."""
    return [sequence.tolist() for sequence in IndexedDataset(prefix)]


def write_lengths(prefix: Path, lengths: Sequence[int]) -> str:
    """A corpus whose token values are their global positions (modulo 60,000), one sequence per document."""
    ends = np.cumsum([0, *lengths])
    documents = [[[position % 60_000 for position in range(low, high)]] for low, high in itertools.pairwise(ends)]
    return write_corpus(prefix, documents, dtype=np.int32)


def walk_samples(lengths: Sequence[int], order: Sequence[int], length: int, extra: int, keep: bool) -> list[list[int]]:
    """Sample rows by taking one token after the other, as the format's first implementation did."""
    rows, document, offset = [[0, 0]], 0, 0
    total = sum(lengths[sequence] for sequence in order)
    usable = max(0, total - extra)
    count = -(-usable // length) if keep else usable // length
    for _ in range(count):
        remaining = length + extra
        while remaining:
            available = lengths[order[document]] - offset
            remaining -= available
            if remaining <= 0:
                offset += remaining + available - extra
                remaining = 0
            elif document == len(order) - 1:
                offset = lengths[order[document]] - extra
                remaining = 0
            else:
                document, offset = document + 1, 0
        rows.append([document, offset])
    return rows


def pick_greatest_error(weights: Sequence[float], size: int, limits: Sequence[int] | None = None) -> list[int]:
    """The blending rule, step by step."""
    counts, picks = [0] * len(weights), []
    for step in range(size):
        errors = [weight * max(step, 1) - float(count) for weight, count in zip(weights, counts, strict=True)]
        open_ = [k for k in range(len(weights)) if limits is None or counts[k] < limits[k]]
        best = max(open_, key=lambda k: (errors[k], -k))
        counts[best] += 1
        picks.append(best)
    return picks
