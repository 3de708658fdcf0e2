"""Divide one corpus into neighbouring ranges for training, validation and test.

Source: the split string of Megatron-Core ("969,30,1"). The same string gives the same borders, so a job that moves
here keeps its held-out data held out.
"""

import itertools
import re
from enum import Enum

from torch_dataloader_utils._core.blend_index import normalize_weights
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

# Characters allowed between the numbers of a split, with the brackets and quotes of a list.
_BETWEEN_NUMBERS = re.compile(r"[\s,;:/|%()\[\]'\"]*")

Bookends = tuple[float, float]
SplitMatrix = tuple[Bookends | None, ...]


class Split(Enum):
    """Uses of a corpus, in the order of a split string; the names are Megatron-Core's."""

    train = 0
    valid = 1
    test = 2


def parse_split(split: str) -> SplitMatrix:
    """Return start and end of train, valid and test as fractions of the corpus; None for an empty split.

        "99,1,0"     (0, 0.99)  (0.99, 1.0)  None
        "1"          (0, 1.0)   None         None

    Separators are spaces, brackets, quotes and the signs , ; : / | %, as in "[0.9, 0.05, 0.05]" or "90% / 10%".

    Raises:
        ConfigTypeError: not a text.
        ConfigError: no numbers, more than three, or a sum of 0; letters or a minus sign, which Megatron-Core ignores.
    """
    if not isinstance(split, str):
        raise ConfigTypeError(f"split={split!r}: pass a text of weights, such as '969,30,1'.")
    try:
        if not _BETWEEN_NUMBERS.fullmatch(re.sub(r"[.0-9]+", "", split)):
            raise ValueError(split)
        weights = [float(number) for number in re.findall(r"[.0-9]+", split)]
    except ValueError as error:
        raise ConfigError(
            f"The split {split!r} holds something that is not a number. Write it as '969,30,1'."
        ) from error
    if len(weights) > len(Split):
        raise ConfigError(f"The split {split!r} has {len(weights)} parts; train, valid and test are three.")
    shares = normalize_weights(weights + [0.0] * (len(Split) - len(weights)))
    bookends = itertools.pairwise(itertools.accumulate(shares, initial=0))
    return tuple((low, high) if high > low else None for low, high in bookends)


def split_range(bookends: Bookends, element_count: int) -> range:
    """Return the elements of one split: both borders are rounded to the nearest element, halves to even.

    "969,30,1" of 1,000: 0 to 968, 969 to 998, 999. Neighbouring splits share a border, so splits never overlap.
    """
    low, high = bookends
    return range(round(low * element_count), round(high * element_count))
