"""Everything that a plan depends on besides the data: options that bind a state, and topologies that may change."""

import operator
from dataclasses import dataclass, field
from math import gcd
from typing import Any, Literal

from torch_dataloader_utils._core.arguments import (
    check_choice,
    check_flag,
    check_seed,
    hold_flags,
    hold_integers,
    is_integer,
    parse_bytes,
)
from torch_dataloader_utils._core.option_values import Lanes, TokenBatches
from torch_dataloader_utils._core.token_budget import TokenBudget
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, plural

# Chunks of a window without shuffle=True. States leave this default out, so it never changes.
DEFAULT_INTERLEAVE = 4

# With shuffle=True, a batch of this many rows draws from this many chunks.
_MIXED_BATCH_ROWS = 256
MIXED_CHUNKS = 16

RankSharding = Literal["rows", "chunks"]

Shuffle = Literal["chunks"] | bool
"""Whether an epoch is shuffled: its chunks and the rows of windows (True), its chunks alone, or nothing (False)."""


def check_shuffle(name: str, value: object) -> Shuffle:
    """Return True, False or "chunks".

    Raises:
        ConfigTypeError, ConfigError: anything else.
    """
    if isinstance(value, str):
        if value != "chunks":
            raise ConfigError(
                f'{name}={value!r}: pass True (permute chunks, and rows in windows), "chunks" (permute chunks only) or '
                "False."
            )
        return "chunks"
    if is_integer(value) and operator.index(value) > 1:
        raise ConfigTypeError(
            f"{name}={value!r}: pass True or False. shuffle_rows={value!r} sets how many rows are permuted together."
        )
    return check_flag(name, value)


_COUNTS = (
    "split_bytes",
    "split_rows",
    "interleave",
    "num_lanes",
    "lane_rows",
    "max_tokens_per_batch",
    "pad_to_multiple_of",
    "host_shares",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options that decide the order of rows; a state resumes only under equal options.

    split_bytes: Projected, uncompressed bytes of a chunk, None for the default of plan/chunks.py. split_rows: Rows of a
        chunk; wins over bytes.
    shuffle: Permute chunks by (seed, epoch). shuffle_rows: Rows of a window, None for no row shuffle; 0 becomes None.
    interleave: Number of chunks open at once in a window.
    default_windows: The planner sets `shuffle_rows` to the default for its data; see plan/windows.py.
    num_lanes, lane_rows: See plan/lanes.py; None for one lane a worker.
    strategy: Name of a custom split strategy, "" for the built-in steps.
    bucket_by: Column of the lengths that order the rows of a window, "" for none; see _core/token_budget.py.
    max_tokens_per_batch, pad_to_multiple_of, padding_free: See _core/token_budget.py; None for batches of a fixed
        number of rows.
    first_row, stop_row: Only plan rows [first_row, stop_row) are planned; a stop_row of None is the end.
    host_shares: Number of parts of the chunks, divided by seed alone, that the same neighbouring ranks read in every
        epoch; None for one part.
    """

    split_bytes: int | None = None
    split_rows: int | None = None
    shuffle: bool = False
    seed: int = 42
    rank_sharding: RankSharding = "rows"
    shuffle_rows: int | None = None
    interleave: int = DEFAULT_INTERLEAVE
    num_lanes: int | None = None
    lane_rows: int | None = None
    strategy: str = ""
    bucket_by: str = ""
    max_tokens_per_batch: int | None = None
    pad_to_multiple_of: int = 1
    padding_free: bool = False
    first_row: int = 0
    stop_row: int | None = None
    # Not in the repr, so that fingerprints of plans without host_shares stay the same.
    host_shares: int | None = field(default=None, repr=False)
    # Not in the repr either: there, the planner has set `shuffle_rows`.
    default_windows: bool = field(default=False, repr=False)

    @classmethod
    def of(
        cls,
        *,
        shuffle: Shuffle,
        split_bytes: int | str | None,
        shuffle_rows: int | None,
        interleave: int | None,
        lanes: Lanes | None,
        token_batches: TokenBatches | None,
        **others: Any,
    ) -> "PlanOptions":
        """Return the value of a user's options: sizes may be text, None stands for defaults, groups are values.

        Raises:
            ConfigTypeError, ConfigError: a value of another type or out of range, or options that exclude each other.
        """
        shuffle = check_shuffle("shuffle", shuffle)
        _check_windows(shuffle, shuffle_rows, interleave)
        if interleave is None:
            interleave = _default_interleave(lanes) if shuffle is True else DEFAULT_INTERLEAVE
        grouped: dict[str, Any] = {}
        if lanes is not None:
            grouped |= {"num_lanes": lanes.num_lanes, "lane_rows": lanes.rows}
        if token_batches is not None:
            grouped |= {
                "bucket_by": token_batches.column,
                "max_tokens_per_batch": token_batches.max_tokens,
                "pad_to_multiple_of": token_batches.pad_to_multiple_of or 1,
                "padding_free": token_batches.padding_free,
            }
        return cls(
            split_bytes=None if split_bytes is None else parse_bytes("split_bytes", split_bytes, least=1),
            shuffle=bool(shuffle),
            shuffle_rows=shuffle_rows,
            interleave=interleave,
            default_windows=shuffle is True and shuffle_rows is None,
            **grouped,
            **others,
        )

    def __post_init__(self) -> None:
        hold_integers(self, *_COUNTS, least=1)
        hold_integers(self, "shuffle_rows", least=0)
        object.__setattr__(self, "shuffle_rows", self.shuffle_rows or None)
        hold_flags(self, "shuffle", "padding_free")
        object.__setattr__(self, "seed", check_seed("seed", self.seed))
        hold_integers(self, "first_row", "stop_row", least=0)
        check_choice("rank_sharding", self.rank_sharding, ("rows", "chunks"))
        if self.num_lanes is not None and self.rank_sharding == "chunks":
            raise ConfigError('lanes= balances rows between lanes; it needs rank_sharding="rows", not "chunks".')
        if self.num_lanes is not None and self.strategy:
            raise ConfigError(
                f"lanes={self.num_lanes} with the split strategy {self.strategy}: both assign chunks to workers. "
                "Leave one out."
            )
        if self.bucket_by and self.shuffle_rows is None and not self.default_windows:
            raise ConfigError(
                f"token_batches=TokenBatches({self.bucket_by!r}) sorts the rows of shuffle windows, and no windows are "
                "asked for: pass shuffle=True, or shuffle_rows=, the rows of a window (50 to 200 batches save most of "
                "the padding)."
            )
        if self.max_tokens_per_batch is not None:
            self._check_token_batches()
        if self.host_shares is not None:
            self._check_host_shares()

    def _check_token_batches(self) -> None:
        limit = f"max_tokens={self.max_tokens_per_batch} of token_batches="
        if not self.bucket_by:
            raise ConfigError(f"{limit} needs the column of the lengths.")
        if self.num_lanes is not None:
            raise ConfigError(
                f"{limit} with lanes={self.num_lanes}: micro-batches of a lane have a fixed number of rows. Leave one "
                "out."
            )
        if self.strategy:
            raise ConfigError(
                f"{limit} with split_strategy={self.strategy!r}: a split strategy assigns rows, and here whole batches "
                "are assigned. Leave one out."
            )
        if self.rank_sharding != "rows":
            raise ConfigError(
                f'{limit} with rank_sharding="chunks": a batch draws from several chunks, and ranks take equal steps. '
                'Leave rank_sharding at "rows".'
            )

    def _check_host_shares(self) -> None:
        shares = f"host_shares={self.host_shares}"
        if not self.shuffle:
            raise ConfigError(
                f"{shares} without shuffle=True: in stored order every rank reads the same rows in all epochs. Leave "
                "it out, or shuffle."
            )
        if self.rank_sharding != "rows":
            raise ConfigError(f'{shares} divides by rows; it needs rank_sharding="rows", not "chunks".')
        others = {"lanes=": self.num_lanes, "max_tokens of token_batches=": self.max_tokens_per_batch}
        for name, value in {**others, "split_strategy=": self.strategy or None}.items():
            if value is not None:
                raise ConfigError(f"{shares} with {name}{value}: both say which ranks read a chunk. Leave one out.")

    def rank_groups(self, num_ranks: int) -> int:
        """Return the number of groups of neighbouring ranks; each group reads the same shares in every epoch.

        host_shares=16: 16 of 128 ranks (8 ranks with a share each), 8 of 24 (3 ranks with 2 shares), 1 of 1
        """
        return gcd(num_ranks, self.host_shares or 1)

    def window_rows(self, batch_rows: int) -> int | None:
        """Return the rows of a shuffle window, None for no row shuffle; with `bucket_by` rounded up to whole batches.

        shuffle_rows=1000, batch_rows=64      1000, with bucket_by 1024
        """
        if self.shuffle_rows is None or not self.bucket_by:
            return self.shuffle_rows
        return -(-self.shuffle_rows // batch_rows) * batch_rows

    def token_budget(self, batch_size: int) -> TokenBudget | None:
        """Return how large batches may be, where tokens limit them; otherwise None.

        batch_size: Batch size of the epoch's first topology; windows keep this budget under every later topology.
        """
        if self.max_tokens_per_batch is None:
            return None
        return TokenBudget(
            max_tokens=self.max_tokens_per_batch,
            max_rows=batch_size,
            pad_to_multiple_of=self.pad_to_multiple_of,
            padding_free=self.padding_free,
        )


def _check_windows(shuffle: Shuffle, shuffle_rows: int | None, interleave: int | None) -> None:
    """Raise ConfigError if the options of shuffle windows contradict each other."""
    if shuffle == "chunks" and shuffle_rows:
        raise ConfigError(
            f'shuffle="chunks" keeps the rows of a chunk in stored order, and shuffle_rows={shuffle_rows} permutes '
            "them: pass shuffle=True, or leave shuffle_rows out."
        )
    if shuffle is True and shuffle_rows == 0:
        raise ConfigError(
            'shuffle=True permutes rows in windows, and shuffle_rows=0 asks for no windows: pass shuffle="chunks" to '
            "permute chunks only, or leave shuffle_rows out."
        )
    if interleave is not None and shuffle is not True and not shuffle_rows:
        raise ConfigError(
            f"interleave={interleave} is the number of chunks that a shuffle window draws from, and no windows are "
            "asked for: pass shuffle=True, or shuffle_rows=, the rows of a window, or leave interleave out."
        )


def _default_interleave(lanes: Lanes | None) -> int:
    """Return the chunks of a window with shuffle=True, so that 256 rows of a rank come from at least 16 chunks.

    A batch takes micro-batches of several lanes, and each lane has windows of its own:

        no lanes 16      lanes of 64 rows 4      lanes of 16 rows or fewer 1
    """
    if lanes is None or lanes.rows is None:
        return MIXED_CHUNKS
    return -(-MIXED_CHUNKS * min(lanes.rows, _MIXED_BATCH_ROWS) // _MIXED_BATCH_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Ranks, workers and the size of batches; may change from one resume to the next.

    num_workers: Workers of one rank's loader, at least 1 (a loader without worker processes plans as one worker).
    """

    num_ranks: int = 1
    num_workers: int = 1
    batch_size: int = 1024
    drop_last: bool = False

    def __post_init__(self) -> None:
        hold_integers(self, "num_ranks", "num_workers", "batch_size", least=1)
        hold_flags(self, "drop_last")

    def __str__(self) -> str:
        """Return words for messages: 2 ranks × 4 workers, batch 1,024."""
        last = ", drop_last" if self.drop_last else ""
        ranks, workers = plural(self.num_ranks, "rank"), plural(self.num_workers, "worker")
        return f"{ranks} × {workers}, batch {self.batch_size:,}{last}"

    def check_rank(self, rank: int) -> None:
        """Raise ConfigError unless rank is in [0, num_ranks)."""
        if not 0 <= rank < self.num_ranks:
            raise ConfigError(
                f"rank={rank} is not in [0, num_ranks={self.num_ranks}). Pass the global rank "
                "(torch.distributed.get_rank()), not the local one, and the world size as num_ranks."
            )
