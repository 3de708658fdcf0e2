"""Document, sample and shuffle index: which tokens of which sequences make sample i, over how many epochs.

    document index    sequence ids of all epochs, shuffled: the order in which tokens are laid end to end
    sample index      where each sample begins in that row of tokens: (position in document index, token offset)
    shuffle index     the order in which samples are given

Source: Megatron-Core's GPT data set. Same seed, same lengths, same order, so that a checkpoint's position keeps its
meaning. All three come from one legacy `RandomState`, which numpy keeps frozen.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import ConfigError, InternalError

# A last epoch used for less than this share of its samples is shuffled apart, so that no sample of the epochs
# before it is seen twice early on. The number is Megatron's; another one would change every data order.
_WHOLE_FINAL_EPOCH = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusEpochs:
    """Passes over the corpus.

    `sample_count` is K: it covers whole epochs and is usually larger than what was asked for.
    `samples_before_final` is only used when the final epoch is shuffled apart.
    """

    epoch_count: int
    sample_count: int
    samples_before_final: int
    separates_final_epoch: bool


def plan_epochs(
    tokens_per_epoch: int,
    *,
    sequence_length: int,
    extra_tokens: int,
    num_samples: int | None,
    drops_partial: bool = True,
) -> CorpusEpochs:
    """The passes that give `num_samples` samples (None: one pass).

        T=100, L=10, x=1, n=9      1 epoch,  9 samples
        T=100, L=10, x=1, n=16     2 epochs, 19 samples, 9 of them before the final epoch

    All numbers are exact integers; K is the ceiling when `drops_partial` is False.

    Raises:
        ConfigError: samples are wanted from no tokens, or a length is not positive.
    """
    if sequence_length < 1 or extra_tokens not in (0, 1):
        raise ConfigError(f"A sample needs at least one token; sequence_length={sequence_length} was given.")
    if tokens_per_epoch == 0 and num_samples:
        raise ConfigError(
            f"{num_samples} samples were asked for from a split without tokens. Give it sequences, or ask for none."
        )
    wanted_tokens = 0 if num_samples is None else num_samples * sequence_length + extra_tokens
    epoch_count = max(1, -(-wanted_tokens // tokens_per_epoch)) if tokens_per_epoch else 1
    usable_tokens = max(0, epoch_count * tokens_per_epoch - extra_tokens)
    sample_count = usable_tokens // sequence_length if drops_partial else -(-usable_tokens // sequence_length)
    before_final = ((epoch_count - 1) * tokens_per_epoch - extra_tokens) // sequence_length
    per_epoch = (tokens_per_epoch - extra_tokens) // sequence_length
    from_final = (num_samples or 0) - before_final
    return CorpusEpochs(
        epoch_count=epoch_count,
        sample_count=sample_count,
        samples_before_final=max(0, before_final),
        separates_final_epoch=epoch_count > 1 and from_final < int(_WHOLE_FINAL_EPOCH * per_epoch),
    )


Lengths = npt.NDArray[np.int32]

_INT32_MAX = 2**31 - 1

# Documents walked at a time: temporaries of 512 KiB stay in the cache, however many epochs there are.
_BLOCK_DOCUMENTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleIndices:
    """The three indices: document int32 [D], sample int32 or int64 [K + 1, 2], shuffle uint32 or int64 [K]."""

    document_index: npt.NDArray[np.integer]
    sample_index: npt.NDArray[np.integer]
    shuffle_index: npt.NDArray[np.integer]


def build_indices(
    lengths: Lengths,
    sequence_ids: range | npt.NDArray[np.integer],
    plan: CorpusEpochs,
    *,
    sequence_length: int,
    extra_tokens: int,
    seed: int,
) -> SampleIndices:
    """All three indices for the exposed sequences; `lengths` int32 [S] are those of the whole corpus."""
    random = np.random.RandomState(seed)
    document_index = _build_document_index(sequence_ids, plan, random)
    sample_index = build_sample_index(
        lengths,
        document_index,
        sequence_length=sequence_length,
        extra_tokens=extra_tokens,
        sample_count=plan.sample_count,
    )
    shuffle_index = _build_shuffle_index(plan, random)
    return SampleIndices(document_index=document_index, sample_index=sample_index, shuffle_index=shuffle_index)


def _build_document_index(
    sequence_ids: range | npt.NDArray[np.integer], plan: CorpusEpochs, random: np.random.RandomState
) -> npt.NDArray[np.integer]:
    """The ids repeated once per epoch and shuffled as one array; a separate final epoch is shuffled on its own."""
    ids = np.asarray(sequence_ids)
    ids = ids.astype(np.int32 if ids.size == 0 or ids.max() <= _INT32_MAX else np.int64)
    together = plan.epoch_count - 1 if plan.separates_final_epoch else plan.epoch_count
    document_index = np.tile(ids, together)
    random.shuffle(document_index)
    if plan.separates_final_epoch:
        random.shuffle(ids)
        document_index = np.concatenate([document_index, ids])
    return document_index


def build_sample_index(
    lengths: Lengths,
    document_index: npt.NDArray[np.integer],
    *,
    sequence_length: int,
    extra_tokens: int,
    sample_count: int,
) -> npt.NDArray[np.integer]:
    """Where each of `sample_count` samples begins, and where the last one ends: [K + 1, 2].

    Sample j begins at token j·L of the row of all tokens. It lies in the first document that ends at or after
    j·L + x: a sample that uses a document up exactly stays in it (on its last token when x is 1). A last, partial
    sample ends with the last document.

        lengths 5 3 4, L=4, x=1    (0,0) (0,4) (2,0)
        lengths 5 3 4, L=4, x=0    (0,0) (0,4) (1,3) (2,4)
    """
    widest = max(len(document_index), int(lengths.max(initial=0)))
    index = np.empty((sample_count + 1, 2), dtype=np.int32 if widest <= _INT32_MAX else np.int64)
    index[0] = 0
    # Views of an .idx file are unaligned, and every gather from one would copy it whole.
    lengths = np.require(lengths, requirements="A")
    # Samples that have begun, and the tokens after the begin of the last of them. One has begun where its first token
    # and x more are there, so tokens are counted from −x.
    begun, surplus = 0, -extra_tokens
    for first in range(0, len(document_index), _BLOCK_DOCUMENTS):
        if begun == sample_count:
            break
        taken = lengths.take(document_index[first : first + _BLOCK_DOCUMENTS])
        ends = np.cumsum(taken, dtype=np.int64)
        ends += surplus
        documents = _find_documents(ends, sequence_length)
        surplus = int(ends[-1]) - len(documents) * sequence_length
        documents = documents[: sample_count - begun]
        places = slice(begun + 1, begun + 1 + len(documents))
        begins = np.arange(1, len(documents) + 1) * sequence_length - extra_tokens
        ends -= taken
        index[places, 0] = documents + first
        index[places, 1] = begins - ends.take(documents)
        begun += len(documents)
    if begun == sample_count - 1:
        index[-1] = len(document_index) - 1, int(lengths[document_index[-1]]) - extra_tokens
    elif begun < sample_count:
        raise InternalError(f"{sample_count} samples were planned from tokens that give {begun}.")
    return index


def _find_documents(ends: npt.NDArray[np.int64], sequence_length: int) -> npt.NDArray[np.int64]:
    """The document that each next sample begins in; `ends` are counted from the begin of the last one before.

    ends // sequence_length says how many samples have begun when a document ends. Sample j begins in the first document
    where that number reaches j, and its index is the number of documents before it: those with fewer begins. Counting
    documents by their number of begins, and adding up, gives that for all j. It is three times faster than to repeat
    documents, and ten times faster than a binary search per sample.
    """
    begins = ends // sequence_length
    if begins[0] < 0:
        # The very first documents may have no more than the x tokens that are not counted.
        np.maximum(begins, 0, out=begins)
    return np.cumsum(np.bincount(begins)[:-1])


def _build_shuffle_index(plan: CorpusEpochs, random: np.random.RandomState) -> npt.NDArray[np.integer]:
    """A permutation of the samples; those before a separate final epoch stay before it."""
    count = plan.sample_count
    dtype = np.int64 if count >= 2**32 - 2 else np.uint32
    border = plan.samples_before_final if plan.separates_final_epoch else count
    first, last = np.arange(border, dtype=dtype), np.arange(border, count, dtype=dtype)
    random.shuffle(first)
    if plan.separates_final_epoch:
        random.shuffle(last)
    return np.concatenate([first, last])
