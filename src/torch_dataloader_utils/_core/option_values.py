"""Groups of related options, each group as one value: a held-out part, token batches, lanes, decoding, Ray workers."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Any, Literal

from torch_dataloader_utils._core.arguments import (
    check_choice,
    check_column_name,
    check_instance,
    check_not_negative,
    check_seed,
    hold_flags,
    hold_integers,
    parse_bytes,
)
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

FileIdentity = Literal["strict", "content"]
"""How a file is identified: by its path, size and etag or time ("strict"), or by all its bytes ("content")."""


def check_identity(name: str, identity: object) -> FileIdentity:
    """Return the value if it is "strict" or "content"; otherwise raise ConfigError."""
    if identity not in ("strict", "content"):
        raise ConfigError(f'{name}={identity!r} is unknown; use "strict" or "content".')
    return identity


@dataclass(frozen=True, slots=True)
class Holdout:
    """One of two parts into which rows are divided, to train on one and validate on the other: `holdout=Holdout(...)`.

    Both parts together have every row once. A row keeps its part in every epoch, with any filter, deletes, ranks and
    workers, in a copy of its file, and when other files come or go. A file that is written again (compaction, an
    update, lines added to a text file) divides its rows anew, except with `by`.

        Holdout(0.1, "train")                   nine rows of ten
        Holdout(0.1, "holdout")                 the other rows
        Holdout(0.1, "holdout", by="user_id")   all rows of a tenth of the users

    Attributes:
        fraction: Fraction of the rows that is held out, or with `by` of the values; between 0 and 1, to a millionth.
        part: Part to read: "train", or "holdout" for the rows that are held out.
        by: Name of a column of integers, text, dates or decimals, or of such a field in a struct ("user.segment"): rows
            with equal values (nulls too) are in one part. The values are read to count the rows, as for a filter. None:
            random rows of every row group.
        seed: Any integer, taken modulo 2^64; another seed holds out other rows.

    Raises:
        ConfigTypeError, ConfigError: a value of another type or out of range.
    """

    fraction: float
    part: Literal["train", "holdout"]
    _: KW_ONLY
    by: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        wanted = f"Holdout.fraction={self.fraction!r}: pass a fraction between 0 and 1, to a millionth"
        if isinstance(self.fraction, bool) or not isinstance(self.fraction, Real):
            raise ConfigTypeError(f"{wanted}, such as 0.1.")
        if not 1e-6 <= self.fraction <= 1 - 1e-6:
            raise ConfigError(f"{wanted}{f', such as {self.fraction / 100:g}' if 1 < self.fraction < 100 else ''}.")
        object.__setattr__(self, "fraction", float(self.fraction))
        check_choice("Holdout.part", self.part, ("train", "holdout"))
        check_column_name("Holdout.by", self.by)
        object.__setattr__(self, "seed", check_seed("Holdout.seed", self.seed))

    @property
    def share(self) -> Fraction:
        """`fraction` as whole numbers, so that a tenth of ten rows is one row on every machine."""
        return Fraction(self.fraction).limit_denominator(1_000_000)


@dataclass(frozen=True, slots=True)
class TokenBatches:
    """Batches of rows of similar length, with an optional limit of tokens: `token_batches=TokenBatches("tokens", ...)`.

    The rows of a shuffle window are sorted by length and cut into batches, and the batches come in random order.
    `shuffle=True` or `shuffle_rows` is therefore needed. Without `max_tokens` batches have `batch_size` rows; with
    `max_tokens` a batch has as many rows as fit, `batch_size` at most.

        lengths 9 2 3 8 2                                 max_tokens=9     {9}  {8}  {3 2 2}
        the same with padding_free, in mixed batches      max_tokens=12    {9 2}  {8 3}  {2}

    Attributes:
        column: Name of the column that gives lengths: numbers (the value), lists (items) or text (bytes); delivered or
            not.
        max_tokens: Upper limit for rows × longest padded length of a batch; all lengths are read once. None: no limit.
        pad_to_multiple_of: Multiple to which max_tokens rounds lengths up; None: the multiple of PadRagged in
            collate_fn.
        padding_free: Let max_tokens limit the sum of lengths instead, and mix rows of all lengths in a batch.

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
                "padding_free=True changes how max_tokens= of TokenBatches counts, and max_tokens= is not given: pass "
                "max_tokens=, or leave padding_free out."
            )
        if self.pad_to_multiple_of is not None and self.max_tokens is None:
            raise ConfigError(
                f"pad_to_multiple_of={self.pad_to_multiple_of} changes how max_tokens= of TokenBatches counts, and "
                "max_tokens= is not given. To pad, pass collate_fn=PadRagged(pad_to_multiple_of=...)."
            )
        if self.pad_to_multiple_of is not None and self.padding_free:
            raise ConfigError(
                f"pad_to_multiple_of={self.pad_to_multiple_of} with padding_free=True: rows without padding are not "
                "rounded up. Leave one of the two out."
            )


@dataclass(frozen=True, slots=True)
class Lanes:
    """One order of global batches for every number of ranks and workers: `lanes=Lanes(64)`, or `lanes=64` for short.

    Attributes:
        num_lanes: Number of lanes, the sequences of rows to which chunks are assigned. With batches of B rows on R
            ranks of W workers it must be a multiple of W · R · B / rows.
        rows: Number of rows of a micro-batch, which a batch takes from one lane at a time; None for the batch size.

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
    """Options of decoding row groups: `decoding=Decoding(threads=4, ahead_bytes="1GiB")`. No option changes the rows.

    Attributes:
        threads: Number of row groups decoded at once; None for the number of processors, and at least 16 where files
            are remote (up to 32 small ones). In a worker process this number holds for remote files; local files are
            decoded one at a time.
        ahead_bytes: Upper limit for bytes decoded before the trainer needs the rows; an int or text such as "1GiB".
            Worker processes share the limit.
        page_checksums: Check the checksums of Parquet pages where a file has checksums.
        compiled: Decode columns of plain numbers by the compiled decoder, where the package was installed with the
            decoder. False: pyarrow decodes all columns.

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
        """`ahead_bytes` as a number of bytes."""
        return parse_bytes("ahead_bytes", self.ahead_bytes)


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Workers of a loader in actors of a Ray cluster: `workers=RayWorkers(64)`. Needs the extra `ray`.

    The batches are the batches of `num_workers=64`. Which actor runs a worker changes nothing: actors and nodes may
    come and go, and a worker that was lost with an actor begins again elsewhere at the first batch that did not arrive.

    Attributes:
        num: Number of workers of each rank, as `num_workers`.
        actors: Number of processes that run the workers, as many as the cluster has room for; None for one process a
            worker.
        resources: Resources that Ray reserves for each actor: CPU, GPU, memory (bytes), and resources of your cluster.
        prefetch: Number of responses of each worker that may be made or wait in Ray's object store. A response holds
            one batch, or several batches up to 16 MiB.
        max_restarts: Number of times that a worker begins again with nothing received in between, before
            WorkerDiedError.
        silence_seconds: Seconds without a sign of life from the process of an actor, while a response is awaited, after
            which the actor counts as lost. An actor that waits for storage, decodes or runs functions gives signs of
            life.

    Raises:
        ConfigTypeError, ConfigError: a value of another type or out of range.
    """

    num: int
    _: KW_ONLY
    actors: int | None = None
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1})
    prefetch: int = 2
    max_restarts: int = 3
    silence_seconds: float = 300.0

    def __post_init__(self) -> None:
        hold_integers(self, "num", "actors", "prefetch", least=1)
        hold_integers(self, "max_restarts", least=0)
        seconds = check_not_negative("RayWorkers.silence_seconds", self.silence_seconds, what="number of seconds")
        if seconds == 0:
            raise ConfigError("RayWorkers.silence_seconds=0: an actor needs some time to answer, such as 60.0.")
        if not isinstance(self.resources, Mapping):
            raise ConfigTypeError(f'RayWorkers.resources={self.resources!r}: pass a dict such as {{"CPU": 1}}.')
        for name, amount in self.resources.items():
            if not isinstance(name, str):
                raise ConfigTypeError(f"RayWorkers.resources: {name!r} is not the name of a resource. Names are text.")
            check_not_negative(f"RayWorkers.resources[{name!r}]", amount, what="amount")

    @property
    def num_actors(self) -> int:
        """Number of actors that are asked for."""
        return min(self.actors or self.num, self.num)


def check_token_batches(name: str, value: object) -> TokenBatches | None:
    """Return the value; None (batches of a fixed number of rows, in any order) stays.

    Raises:
        ConfigTypeError: anything else.
    """
    if value is None:
        return None
    return check_instance(name, value, kind=TokenBatches, wanted="TokenBatches(column, max_tokens=...), or None")


def check_holdout(name: str, value: object) -> Holdout:
    """Return the value if it is a Holdout.

    Raises:
        ConfigTypeError: anything else, such as the fraction alone.
    """
    return check_instance(name, value, kind=Holdout, wanted='Holdout(0.1, "train"), and "holdout" to validate')


def check_lanes(name: str, value: Any) -> Lanes | None:
    """Return the value, with a whole number as `Lanes` of that number; None (one lane a worker) stays.

    Raises:
        ConfigTypeError, ConfigError: anything else, or a number below 1.
    """
    if value is None or isinstance(value, Lanes):
        return value
    try:
        return Lanes(value)
    except ConfigTypeError as error:
        raise ConfigTypeError(f"{name}={value!r}: pass Lanes(num_lanes, rows=...), a whole number, or None.") from error
