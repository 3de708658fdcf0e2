"""Build the document, sample and shuffle index: the tokens of the sequences that make sample i, over all epochs.

    document index    sequence ids of all epochs, shuffled: the order in which tokens are laid end to end
    sample index      start of each sample in this row of tokens: (position in document index, token offset)
    shuffle index     the order in which samples are given

Source: Megatron-Core's GPT data set. The same seed and lengths give the same order, so the position in a checkpoint
keeps its meaning. All three indices come from one legacy `RandomState`, which numpy keeps frozen.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import ConfigError, InternalError

# A last epoch used for less than this share of its samples is shuffled apart, so that no sample of earlier epochs is
# seen twice early on. The number is Megatron's; another number would change every data order.
_WHOLE_FINAL_EPOCH = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusEpochs:
    """Number of passes over the corpus, and of samples.

    Attributes:
        epoch_count: number of passes.
        sample_count: K, the number of samples of whole epochs, usually more than were asked for.
        samples_before_final: number of samples before the final epoch; used only if `separates_final_epoch`.
        separates_final_epoch: whether the final epoch is shuffled apart.
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
    """Return the passes over the corpus that give `num_samples` samples (None: one pass).

        T=100, L=10, x=1, n=9      1 epoch,  9 samples
        T=100, L=10, x=1, n=16     2 epochs, 19 samples, 9 of them before the final epoch

    All numbers are exact integers; K is rounded up when `drops_partial` is False.

    Args:
        tokens_per_epoch: T, number of tokens of the exposed sequences.
        sequence_length: L, number of tokens of a sample.
        extra_tokens: x, number of tokens that a sample takes beyond its length: 0 or 1.
        num_samples: n, number of samples wanted, or None.
        drops_partial: whether a last sample with too few tokens is left out.

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
    """Document index int32 or int64 [D], sample index int32 or int64 [K + 1, 2], shuffle index uint32 or int64 [K]."""

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
    """Build all three indices.

    Args:
        lengths: int32 [S], number of tokens of every sequence of the whole corpus.
        sequence_ids: ids of the exposed sequences.
        plan: number of epochs and samples.
        sequence_length: L, number of tokens of a sample.
        extra_tokens: x, number of tokens that a sample takes beyond its length.
        seed: seed of all shuffles.
    """
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
    """Repeat the ids once per epoch and shuffle the repeats as one array; a separate final epoch is shuffled alone."""
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
    """Return the start of each of `sample_count` samples, and the end of the last sample: [K + 1, 2].

    Sample j begins at token j·L of the row of all tokens, and its row names the first document that ends at or after
    j·L + x: if the sample before uses a document up exactly, the row stays in this document (on its last token when x
    is 1). A last, partial sample ends with the last document.

        lengths 5 3 4, L=4, x=1    (0,0) (0,4) (2,0)
        lengths 5 3 4, L=4, x=0    (0,0) (0,4) (1,3) (2,4)
    """
    widest = max(len(document_index), int(lengths.max(initial=0)))
    index = np.empty((sample_count + 1, 2), dtype=np.int32 if widest <= _INT32_MAX else np.int64)
    index[0] = 0
    # Views of an .idx file are unaligned, and every gather from an unaligned array would copy the whole array.
    lengths = np.require(lengths, requirements="A")
    # Samples that have begun, and the tokens after the start of the last begun sample. A sample has begun where its
    # first token and x more tokens exist, so tokens are counted from −x.
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
    """Return the document in which each next sample begins.

    `ends` are the ends of documents in tokens, counted from the start of the last sample before. ends // L is the
    number of samples that have begun when a document ends. Sample j begins in the first document where this number is
    at least j, and the index of this document is the number of documents with a smaller number of begins. Counting
    documents by number of begins, and adding up, gives the index for all j: three times faster than repeating
    documents, ten times faster than a binary search per sample.
    """
    begins = ends // sequence_length
    if begins[0] < 0:
        # The first documents may have only the x tokens that are not counted.
        np.maximum(begins, 0, out=begins)
    return np.cumsum(np.bincount(begins)[:-1])


def _build_shuffle_index(plan: CorpusEpochs, random: np.random.RandomState) -> npt.NDArray[np.integer]:
    """Return a permutation of the samples; samples before a separate final epoch stay before the final epoch."""
    count = plan.sample_count
    dtype = np.int64 if count >= 2**32 - 2 else np.uint32
    border = plan.samples_before_final if plan.separates_final_epoch else count
    first, last = np.arange(border, dtype=dtype), np.arange(border, count, dtype=dtype)
    random.shuffle(first)
    if plan.separates_final_epoch:
        random.shuffle(last)
    return np.concatenate([first, last])
