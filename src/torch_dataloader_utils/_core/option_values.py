"""Options that belong together, each group as one value: token batches, lanes, decoding, workers on Ray."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from torch_dataloader_utils._core.arguments import (
    check_column_name,
    check_instance,
    check_not_negative,
    hold_flags,
    hold_integers,
    parse_bytes,
)
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

FileIdentity = Literal["strict", "content"]
"""What identifies a file: its path, size and etag or time; or all its bytes."""


def check_identity(name: str, identity: Any) -> FileIdentity:
    """The value, if it is one of the two words; else raises ConfigError."""
    if identity not in ("strict", "content"):
        raise ConfigError(f'{name}={identity!r} is unknown; use "strict" or "content".')
    return identity  # type: ignore[no-any-return]


_FOOTERS_PART = 16
_MOST_FOOTER_BYTES = 1 << 30


def footer_bytes(max_bytes: int) -> int:
    """The part of the bytes of a host's cache that is for footers; the rest is for row groups."""
    return min(_MOST_FOOTER_BYTES, max_bytes // _FOOTERS_PART)


@dataclass(frozen=True, slots=True)
class TokenBatches:
    """Batches of rows of similar length, limited by tokens if asked: `token_batches=TokenBatches("tokens", ...)`.

    The rows of a shuffle window are sorted by length and cut into batches, which come in random order; so it needs
    `shuffle_rows`, the rows of a window. Without `max_tokens` batches have `batch_size` rows; with it they have as many
    as fit, `batch_size` at most.

        lengths 9 2 3 8 2                                 max_tokens=9     {9}  {8}  {3 2 2}
        the same with padding_free, in mixed batches      max_tokens=12    {9 2}  {8 3}  {2}

    Attributes:
        column: whose lengths count: numbers (the value), lists (items) or text (bytes); delivered or not.
        max_tokens: most rows × longest padded length of a batch; all lengths are read once. None: no limit.
        pad_to_multiple_of: what max_tokens rounds lengths up to; None: as PadRagged in collate_fn pads.
        padding_free: max_tokens limits the sum of lengths instead, and batches mix rows of all lengths.

    Raises:
        ConfigTypeError, ConfigError: a value of another type or out of range; padding_free or pad_to_multiple_of
            without max_tokens, or both at once.
    """

    column: str
    _: KW_ONLY
    max_tokens: int | None = None
    pad_to_multiple_of: int | None = None
    padding_free: bool = False

    def __post_init__(self) -> None:
        if check_column_name("TokenBatches.column", self.column) is None:
            raise ConfigTypeError("TokenBatches.column is the name of a column; got None. Names are text.")
        hold_integers(self, "max_tokens", "pad_to_multiple_of", least=1)
        hold_flags(self, "padding_free")
        if self.padding_free and self.max_tokens is None:
            raise ConfigError(
                "padding_free=True says how max_tokens= of TokenBatches counts, which is not given: pass max_tokens=, "
                "or leave padding_free out."
            )
        if self.pad_to_multiple_of is not None and self.max_tokens is None:
            raise ConfigError(
                f"pad_to_multiple_of={self.pad_to_multiple_of} says how max_tokens= of TokenBatches counts, which is "
                "not given. To pad, pass collate_fn=PadRagged(pad_to_multiple_of=...)."
            )
        if self.pad_to_multiple_of is not None and self.padding_free:
            raise ConfigError(
                f"pad_to_multiple_of={self.pad_to_multiple_of} with padding_free=True: rows that are not padded count "
                "as they are. Leave one of them out."
            )


@dataclass(frozen=True, slots=True)
class Lanes:
    """One order of global batches for every number of ranks and workers: `lanes=Lanes(64)`, or `lanes=64` for short.

    Attributes:
        num_lanes: sequences of rows, to which chunks are assigned. With batches of B rows on R ranks of W workers it
            has to be a multiple of W · R · B / rows.
        rows: rows of a micro-batch, which a batch takes from one lane at a time; None for the batch size.

    Raises:
        ConfigTypeError, ConfigError: not a whole number, or below 1.
    """

    num_lanes: int
    _: KW_ONLY
    rows: int | None = None

    def __post_init__(self) -> None:
        hold_integers(self, "num_lanes", "rows", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How row groups are decoded: `decoding=Decoding(threads=4, ahead_bytes="1GiB")`. It changes no row.

    Attributes:
        threads: row groups decoded at once; None for the processors there are, and at least 16 where files are remote.
            In a worker process it holds for remote files; local ones are decoded one at a time there.
        ahead_bytes: decoded before the trainer needs them, at most; an int or text such as "1GiB". Worker processes
            share it.
        page_checksums: check the checksums of Parquet pages where a file has them.
        compiled: decode columns of plain numbers by the compiled decoder, where the package was installed with one.
            False: pyarrow decodes them all.

    Raises:
        ConfigTypeError, ConfigError: a value of another type or out of range.
    """

    threads: int | None = None
    ahead_bytes: int | str = "256MiB"
    page_checksums: bool = True
    compiled: bool = True

    def __post_init__(self) -> None:
        hold_integers(self, "threads", least=0)
        parse_bytes("ahead_bytes", self.ahead_bytes)
        hold_flags(self, "page_checksums", "compiled")

    @property
    def budget_bytes(self) -> int:
        """`ahead_bytes` as a number."""
        return parse_bytes("ahead_bytes", self.ahead_bytes)


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Workers of a loader in actors of a Ray cluster: `workers=RayWorkers(64)`. Needs the extra `ray`.

    They give the batches of `num_workers=64`. Which actor runs a worker changes nothing: actors and nodes may come and
    go, and a worker that was lost with one begins again elsewhere at the first batch that did not arrive.

    Attributes:
        num: workers of each rank, as `num_workers`.
        actors: processes that run them, as many as the cluster has room for; None for one each.
        resources: what Ray reserves for each actor: CPU, GPU, memory (bytes), and those of your cluster.
        prefetch: responses of each worker that are made or wait in Ray's object store, at most. Each holds a batch, or
            several, up to 16 MiB.
        max_restarts: how often a worker begins again with nothing received in between; then WorkerDiedError.

    Raises:
        ConfigTypeError, ConfigError: a value of another type or out of range.
    """

    num: int
    _: KW_ONLY
    actors: int | None = None
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1})
    prefetch: int = 2
    max_restarts: int = 3

    def __post_init__(self) -> None:
        hold_integers(self, "num", "actors", "prefetch", least=1)
        hold_integers(self, "max_restarts", least=0)
        if not isinstance(self.resources, Mapping):
            raise ConfigTypeError(f'RayWorkers.resources={self.resources!r}: pass a dict such as {{"CPU": 1}}.')
        for name, amount in self.resources.items():
            if not isinstance(name, str):
                raise ConfigTypeError(f"RayWorkers.resources: {name!r} is not the name of a resource. Names are text.")
            check_not_negative(f"RayWorkers.resources[{name!r}]", amount, what="amount")

    @property
    def num_actors(self) -> int:
        """How many actors are asked for."""
        return min(self.actors or self.num, self.num)


def check_token_batches(name: str, value: Any) -> TokenBatches | None:
    """The value; None, for batches of a fixed number of rows in any order, stays.

    Raises:
        ConfigTypeError: anything else.
    """
    if value is None:
        return None
    return check_instance(name, value, kind=TokenBatches, wanted="TokenBatches(column, max_tokens=...), or None")


def check_lanes(name: str, value: Any) -> Lanes | None:
    """The value, a whole number as `Lanes` of it; None, for one lane a worker, stays.

    Raises:
        ConfigTypeError, ConfigError: anything else, or a number below 1.
    """
    if value is None or isinstance(value, Lanes):
        return value
    try:
        return Lanes(value)
    except ConfigTypeError as error:
        raise ConfigTypeError(f"{name}={value!r}: pass Lanes(num_lanes, rows=...), a whole number, or None.") from error
