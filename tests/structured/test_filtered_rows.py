"""Generated filters over generated files: exactly the rows that Arrow keeps of them, by a path that prunes nothing."""

import tempfile
import warnings
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import StructuredDataset, scan_files
from torch_dataloader_utils.errors import ConfigError

NAN, INF = float("nan"), float("inf")
FLOATS = [-INF, -1.5, -0.0, 0.0, 1.0, 2.0, 1e30, INF, NAN]
TEXTS = ["", "a", "ab", "a" * 70, "a" * 70 + "b", "é", "\uffff", "\U0001f600"]
TIMES = [
    datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2024, 2, 29, tzinfo=UTC),
]
LOCAL_TIMES = [time.replace(tzinfo=None) for time in TIMES]
BERLIN = pa.timestamp("us", "Europe/Berlin")

VALUES = {
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.uint32(): [0, 1, 2**31, 2**32 - 1],
    pa.uint64(): [0, 1, 2**63, 2**64 - 1],
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.bool_(): [False, True],
    pa.string(): TEXTS,
    pa.binary(): [b"", b"\x7f", b"\x80", b"\xff" * 70],
    pa.decimal128(5, 2): [Decimal("-9.99"), Decimal("0.00"), Decimal("1.00"), Decimal("2.00")],
    pa.decimal128(30, 2): [Decimal("-9.99"), Decimal("0.00"), Decimal("1.00"), Decimal("2.00")],
    pa.date32(): [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    pa.timestamp("s"): LOCAL_TIMES,
    pa.timestamp("ns"): LOCAL_TIMES,
    pa.timestamp("s", "+05:30"): TIMES,
    BERLIN: TIMES,
    pa.duration("ns"): [timedelta(0), timedelta(days=-1), timedelta(seconds=5)],
}
NOT_IN_ORC = {pa.uint32(), pa.uint64(), pa.duration("ns")}

COMPARE = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]
JOIN = [lambda a, b: a & b, lambda a, b: a | b, *COMPARE]


def atoms(kind: pa.DataType, column: pc.Expression):
    value = st.sampled_from(VALUES[kind]).map(lambda value: pa.scalar(value, kind))
    members = st.lists(st.sampled_from([*VALUES[kind], None]), max_size=3).map(lambda some: pa.array(some, kind))
    flags = st.booleans()
    choices = [
        st.builds(lambda compare, to: compare(column, to), st.sampled_from(COMPARE), value),
        st.builds(lambda compare, to: compare(pc.scalar(to), column), st.sampled_from(COMPARE), value),
        st.builds(lambda some, skip: pc.is_in(column, value_set=some, skip_nulls=skip), members, flags),
        st.builds(lambda as_nan: column.is_null(nan_is_null=as_nan), flags),
        st.just(column.is_valid()),
    ]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        cast = st.sampled_from([pa.float32(), pa.float64(), pa.int8(), pa.int64()])
        choices.append(
            st.builds(lambda to, compare: compare(column.cast(to, safe=False), 1), cast, st.sampled_from(COMPARE))
        )
    return st.one_of(choices)


@st.composite
def conditions(draw, kinds, depth=2):
    left = draw(atoms(*draw(st.sampled_from(kinds)))) if not depth else draw(conditions(kinds, depth - 1))
    what = draw(st.sampled_from(["alone", "not", "join", "join", "is"]))
    if what == "not":
        return ~left
    if what == "join" and depth:
        return draw(st.sampled_from(JOIN))(left, draw(conditions(kinds, depth - 1)))
    return draw(st.sampled_from(COMPARE))(left, draw(st.booleans())) if what == "is" else left


@st.composite
def tables(draw, of):
    """A table, the rows of each of its row groups, and (type, reference) of its columns, some of them in a struct."""
    groups = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    columns, kinds = {"row": pa.array(range(sum(groups)))}, []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(of), min_size=1, max_size=2))):
        values = []
        for rows in groups:
            # Few values a row group, side by side in their order, so that statistics say something.
            first = draw(st.integers(0, len(VALUES[kind]) - 1))
            some = VALUES[kind][first : first + 2] + draw(st.sampled_from([[], [None], [VALUES[kind][-1]]]))
            values += draw(st.lists(st.sampled_from(some), min_size=rows, max_size=rows))
        array, name = pa.array(values, kind), f"c.{number}"
        is_nested = draw(st.booleans())
        columns[name] = pa.StructArray.from_arrays([array], names=["in"]) if is_nested else array
        kinds.append((kind, pc.field(name, "in") if is_nested else pc.field(name)))
    return pa.table(columns), groups, kinds


def loaded(path: Path, file_format: str, row_filter: pc.Expression) -> list[int]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The epoch has no steps")
        loader, _ = StructuredDataset.create_dataloader(
            path, format=file_format, filters=row_filter, columns=["row"], batch_size=3, output_format="arrow"
        )
    rows = [row for batch in loader for row in batch.column("row").to_pylist()]
    assert len(loader) == -(-len(rows) // 3)
    return rows


def check(path: Path, file_format: str, written: pa.Table, row_filter: pc.Expression) -> None:
    try:
        wanted = written.filter(row_filter).column("row").to_pylist()
    except pa.ArrowException:
        return  # a value that does not fit, or a comparison that Arrow does not have
    assert loaded(path, file_format, row_filter) == wanted


@pytest.mark.slow
@settings(max_examples=effort(100), deadline=None)
@given(st.data())
def test_filters_keep_of_parquet_files_the_rows_that_they_keep_of_a_table(data) -> None:
    table, groups, kinds = data.draw(tables(list(VALUES)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        with pq.ParquetWriter(path, table.schema, store_schema=data.draw(st.booleans())) as writer:
            start = 0
            for rows in groups:
                writer.write_table(table.slice(start, rows))
                start += rows
        written = pq.ParquetFile(path).read()
        for row_filter in data.draw(st.lists(conditions(kinds), min_size=1, max_size=4)):
            check(path, "parquet", written, row_filter)


@pytest.mark.slow
@settings(max_examples=effort(30), deadline=None)
@given(st.data())
def test_filters_keep_of_orc_files_the_rows_that_they_keep_of_a_table(data) -> None:
    table, _, kinds = data.draw(tables([kind for kind in VALUES if kind not in NOT_IN_ORC]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.orc"
        orc.write_table(table, path)
        written = orc.read_table(path)
        for row_filter in data.draw(st.lists(conditions(kinds), min_size=1, max_size=4)):
            check(path, "orc", written, row_filter)


@pytest.mark.parametrize(
    "row_filter",
    [
        (pc.field("f") > 1) == False,  # noqa: E712 - an expression
        (pc.field("f") > 1) < True,
        pc.scalar(False) == (pc.field("f") > 1),
        (pc.field("f") > 1) == (pc.field("i") > 100),
        (pc.field("f") < 1) >= (pc.field("f") > 1),
    ],
    ids=str,
)
def test_conditions_that_are_compared_keep_nan(tmp_path: Path, row_filter: pc.Expression) -> None:
    table = pa.table({"row": [0, 1, 2], "f": [2.0, NAN, 5.0], "i": [2, 3, 5]})
    pq.write_table(table, tmp_path / "a.parquet")
    check(tmp_path, "parquet", table, row_filter)
    assert loaded(tmp_path, "parquet", row_filter) == [1]


@pytest.mark.parametrize(
    ("column", "row_filter"),
    [
        (pa.array(TIMES, BERLIN), pc.field("c").isin(pa.array(TIMES[:1], pa.timestamp("s", "UTC")))),
        (pa.array([-(2**63), 1, 2]), pc.field("c").cast(pa.float32(), safe=False) < 0),
    ],
    ids=["times of another zone", "casts"],
)
def test_filters_that_statistics_do_not_fit_prune_nothing(tmp_path: Path, column, row_filter: pc.Expression) -> None:
    pq.write_table(pa.table({"row": [0, 1, 2], "c": column}), tmp_path / "a.parquet")
    assert loaded(tmp_path, "parquet", row_filter) == [0]


def test_an_inventory_serves_the_filter_that_it_was_scanned_with_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(300)}), tmp_path / "a.parquet", row_group_size=10)
    one, other = (pc.field("x").isin([*range(10), *range(start, start + 20), *range(40, 50)]) for start in (100, 200))
    assert str(one) == str(other)
    inventory = scan_files(tmp_path, filters=one)
    assert _rows(tmp_path, one, inventory=inventory) == [*range(10), *range(40, 50), *range(100, 120)]
    with pytest.raises(ConfigError, match="Scan with the same filter"):
        _rows(tmp_path, other, inventory=inventory)


def test_a_filter_that_pyarrow_cannot_print_is_a_filter_like_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [b"\x8c\xff", b"ab", None]}), tmp_path / "a.parquet")
    assert _rows(tmp_path, pc.starts_with(pc.field("x"), b"\x8c")) == [b"\x8c\xff"]
    with pytest.raises(ConfigError, match=r"does not fit the data.* the columns are 'x'"):
        _rows(tmp_path, pc.starts_with(pc.field("y"), b"\x8c"))


def test_a_filter_stands_beside_tensors_with_a_permutation(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0])
    images = pa.ExtensionArray.from_storage(kind, pa.array([[row] * 6 for row in range(5)], kind.storage_type))
    pq.write_table(pa.table({"x": range(5), "image": images}), tmp_path / "0.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, filters=pc.field("x") > 2, num_workers=0)
    (batch,) = loader
    assert batch["image"].shape == (2, 3, 2)
    assert batch["image"][:, 0, 0].tolist() == batch["x"].tolist() == [3, 4]


def _rows(folder: Path, filters: pc.Expression, **options: Any) -> list[Any]:
    loader, _ = StructuredDataset.create_dataloader(folder, filters=filters, output_format="dict", **options)
    return [value for batch in loader for value in batch["x"]]
