"""The options of sequences: `Sequences` and `Interval`, frozen values to pass as `sequences=`."""

import json
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils._arrow.documents import plain_type
from torch_dataloader_utils._arrow.schema import field_at, nested_path
from torch_dataloader_utils._core.arguments import (
    check_choice,
    check_column_name,
    check_column_names,
    hold_integers,
    is_integer,
)
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type, which_column
from torch_dataloader_utils.tables.holdout import repeats_exactly

EVERY_ROW = "every row"
MASK = "sequence_mask"
"""Name of the column that says which places of a padded sequence have a row."""

AtGap = Literal["split", "error"]
Incomplete = Literal["drop", "pad", "ragged"]

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3_600 * 10**9,
    "d": 86_400 * 10**9,
}
_LENGTH_OF_TIME = re.compile(r"\s*(\d+)\s*(ns|us|ms|s|min|h|d)\s*")


@dataclass(frozen=True, slots=True)
class Interval:
    """Longest step between neighbouring rows of one run; a longer step is a gap.

        Interval("1h")              a run ends where the next row is more than an hour later
        Interval("1h", "error")     such a place is an error
        Interval(1)                 for an order of integers, such as the number of a frame

    Attributes:
        step: Length of time as text ("15min", with ns, us, ms, s, min, h or d) or a timedelta; an int for an order of
            integers.
        at_gap: "split" ends the run at a gap, "error" raises a DataError.

    Raises:
        ConfigTypeError, ConfigError: a value of another type, or a step that is not positive.
    """

    step: str | int | timedelta
    at_gap: AtGap = "split"

    def __post_init__(self) -> None:
        check_choice("Interval.at_gap", self.at_gap, ("split", "error"))
        if is_integer(self.step):
            hold_integers(self, "step", least=1)
        elif self.nanoseconds <= 0:
            raise ConfigError(f"Interval.step={self.step!r}: pass a positive length of time.")

    @property
    def nanoseconds(self) -> int:
        """Step in nanoseconds; 0 for a step of an order of integers."""
        if isinstance(self.step, timedelta):
            return (self.step // timedelta(microseconds=1)) * 1_000
        if not isinstance(self.step, str):
            if is_integer(self.step):
                return 0
            raise ConfigTypeError(f'Interval.step={self.step!r}: pass text such as "1h", a timedelta, or an int.')
        found = _LENGTH_OF_TIME.fullmatch(self.step)
        if found is None:
            raise ConfigError(
                f'Interval.step={self.step!r}: pass a whole number and a unit, such as "1h" or "15min". Units are '
                f"{', '.join(_NANOSECONDS)}."
            )
        return int(found[1]) * _NANOSECONDS[found[2]]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Samples of consecutive rows of one group: a series, a user, an episode; to pass as `sequences=`.

    Rows of one group have to be neighbours, in their order, in the order of (path, row group, row). A run is the rows
    of one group, or the part of them between two gaps. A sequence never has rows of two runs.

        length=3, horizon=2         rows of a run 0 1 2 3 4 5       012|34  123|45
        the same with stride=2                                      012|34
        length=3, at="every row"                                    _ _ 0|1  _ 01|2  012|3  123|4  234|5
        length=None                                                 012345

    A batch has, for each column, B sequences:

        [B, length]     <column>            the rows before the horizon
        [B, horizon]    <column>_target     the rows of the horizon, of the columns `targets`
        [B, horizon]    <column>_future     the rows of the horizon, of the columns `known`
        [B]             <column>            the first row, of the columns of `static` and `by`
        [B, length]     sequence_mask       with incomplete="pad": True where a row stands, False for padding

    Attributes:
        length: Number of rows before the horizon; None for whole runs, of any length.
        horizon: Number of rows of the horizon, which follows these rows. None: 0, and 1 with `at`.
        stride: Number of rows from the start of a sequence to the start of the next one.
        by: Column or columns that name the group by their values; () for one group. `by`, `order` and `at` may name a
            field of a struct ("user.id").
        order: Column of integers, dates or times that orders the rows of a group; None trusts the stored order, which
            files have and tables do not.
        gaps: Action at a gap in `order`: an `Interval`; "split" and "error" are Interval(1, ...), for an order of
            integers; None: steps are of any length, and rows of equal order stay in their stored order.
        incomplete: Treatment of sequences with fewer than `length` rows: "drop" leaves these out, "pad" puts
            padding (zeros, None in Python lists, null in Arrow) before the first row, "ragged" gives rows of several
            lengths. The horizon is always complete. None: "drop", and "pad" with `at`.
        at: "every row", or the name of a column of bools: a sequence for every row (where the column is true) whose
            horizon begins with that row. The row needs an earlier row in its run.
        targets: Columns or stacks with a `_target`; None: all columns and stacks that are neither static nor known.
        known: Columns or stacks with a `_future`, which are known in advance; `order` is one of them.
        static: Columns or stacks of one value a group.

    Raises:
        ConfigTypeError, ConfigError: a value of another type or out of range; values that do not fit each other.
    """

    length: int | None
    _: KW_ONLY
    horizon: int | None = None
    stride: int = 1
    by: str | Sequence[str] = ()
    order: str | None = None
    gaps: AtGap | Interval | None = None
    incomplete: Incomplete | None = None
    at: str | None = None
    targets: Sequence[str] | None = None
    known: Sequence[str] = ()
    static: Sequence[str] = ()

    def __post_init__(self) -> None:
        hold_integers(self, "length", "stride", least=1)
        hold_integers(self, "horizon", least=0)
        for name in ("order", "at"):
            check_column_name(f"Sequences.{name}", getattr(self, name))
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else self.by)
        for name in ("by", "targets", "known", "static"):
            object.__setattr__(self, name, check_column_names(f"Sequences.{name}", getattr(self, name)))
        if self.horizon is None:
            object.__setattr__(self, "horizon", 0 if self.at is None else 1)
        self._set_gaps()
        default = "ragged" if self.length is None else "drop" if self.at is None else "pad"
        object.__setattr__(self, "incomplete", default if self.incomplete is None else self.incomplete)
        check_choice("Sequences.incomplete", self.incomplete or "", ("drop", "pad", "ragged"))
        self._check_together()

    def _set_gaps(self) -> None:
        if isinstance(self.gaps, str):
            check_choice("Sequences.gaps", self.gaps, ("split", "error"))
            object.__setattr__(self, "gaps", Interval(1, self.gaps))
        elif not isinstance(self.gaps, Interval | None):
            raise ConfigTypeError(f'Sequences.gaps={self.gaps!r}: pass "split", "error", an Interval, or None.')
        if self.gaps is not None and self.order is None:
            raise ConfigError("Sequences.gaps are steps of order=, which is not given: name its column.")

    def _check_together(self) -> None:
        if self.length is None and (self.horizon or self.stride > 1 or self.at or self.incomplete != "ragged"):
            raise ConfigError(
                "Sequences(length=None) has whole runs: horizon=, stride=, at= and incomplete= are for a length. Leave "
                "these options out, or pass a length."
            )
        if self.at is not None and not self.horizon:
            raise ConfigError("Sequences.at= with horizon=0: the horizon begins with the row of at=; pass 1 or more.")
        if self.at is not None and self.stride > 1:
            raise ConfigError("Sequences.at= says where sequences are, and so does stride=: leave one of them out.")
        if not self.horizon and (self.targets or self.known):
            raise ConfigError("Sequences.targets= and known= are columns of the horizon: pass horizon=.")

    @property
    def horizon_rows(self) -> int:
        """Number of rows of the horizon."""
        return self.horizon or 0

    @property
    def sequence_rows(self) -> int:
        """Number of rows of a complete sequence; 1 for whole runs."""
        return (self.length or 1) + self.horizon_rows

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns that say where sequences are."""
        at = self.at if self.has_events else None
        return tuple(dict.fromkeys([*self.by, *filter(None, (self.order, at))]))

    @property
    def has_events(self) -> bool:
        """Whether a column says at which rows there are sequences."""
        return self.at not in (None, EVERY_ROW)

    @property
    def interval(self) -> Interval | None:
        """Longest step within a run, and what a longer one does."""
        return self.gaps if isinstance(self.gaps, Interval) else None

    def describe(self) -> str:
        """Return the options that decide which sequences exist, as JSON; states are bound to the text."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in ("length", "horizon", "stride", "order", "at")}
        gaps = self.interval and [self.interval.nanoseconds or self.interval.step, self.interval.at_gap]
        return json.dumps({**shown, "by": list(self.by), "gaps": gaps, "drops": self.incomplete == "drop"})

    def check_fits(self, schema: pa.Schema, *, is_table: bool) -> None:
        """Raise ConfigError unless the columns exist and have types that name groups, order rows or mark rows."""
        if self.order is None and is_table:
            raise ConfigError(
                "Sequences without order= take rows in the order of files, and files of a table have random names. "
                'Pass order="timestamp", the column that orders the rows of a group.'
            )
        found = {name: key_type(schema, name) for name in self.key_columns}
        for name in self.by:
            if not repeats_exactly(found[name]):
                raise ConfigError(
                    f"Sequences.by={name!r} is {found[name]}: pass a column with values that repeat exactly, such as "
                    "integers, text or dates."
                )
        if self.order is not None:
            self._check_order(self.order, plain_type(found[self.order]))
        if self.has_events and not pt.is_boolean(found[str(self.at)]):
            raise ConfigError(f'Sequences.at={self.at!r} is {found[str(self.at)]}: pass "every row" or bools.')

    def _check_order(self, name: str, found: pa.DataType) -> None:
        is_time = pt.is_temporal(found) and not pt.is_interval(found)
        if not is_time and (not pt.is_integer(found) or found == pa.uint64()):
            raise ConfigError(
                f"Sequences.order={name!r} is {found}: pass a column of integers (int64), dates or times."
            )
        if self.interval is not None and is_time != bool(self.interval.nanoseconds):
            wanted = 'a length of time, such as Interval("1h")' if is_time else "a whole number, such as Interval(1)"
            raise ConfigError(f"Sequences.gaps={self.interval}: column {name!r} is {found}; pass {wanted}.")

    def most_step(self, order: pa.DataType) -> int | None:
        """Return the longest step within a run in the unit of the order's type; None for any step."""
        if self.interval is None or not self.interval.nanoseconds:
            return None if self.interval is None else int(self.interval.step)  # type: ignore[arg-type]  # an int
        unit = "d" if pt.is_date32(order) else "ms" if pt.is_date64(order) else order.unit
        return self.interval.nanoseconds // _NANOSECONDS[unit]


def key_type(schema: pa.Schema, name: str) -> pa.DataType:
    """Return the type of a key: a column, or a field of a struct by its dotted name.

    Raises:
        ConfigError: there is no such column or field, or two of them.
    """
    path = nested_path(schema, name)
    if not path:
        raise ConfigError(f"Sequences: column {name!r} is not in the data set; {which_column(name, schema.names)}")
    return field_at(schema.field(path[0]), path).type


def check_sequences(name: str, value: object) -> Sequences:
    """Return the value if it is a Sequences; otherwise raise ConfigTypeError."""
    if not isinstance(value, Sequences):
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass Sequences(length, by=..., order=...).")
    return value
