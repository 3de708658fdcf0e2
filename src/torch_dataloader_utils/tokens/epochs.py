"""How many passes over a corpus a number of samples needs, and where the last pass is cut off. Pure arithmetic.

Letters as in Megatron-Core's data pipeline: T tokens per epoch, L tokens per sample, x = 1 when a sample takes one
token more than it keeps (so that labels are its tokens moved by one), n samples wanted.
"""

from dataclasses import dataclass

from torch_dataloader_utils.errors import ConfigError

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
