"""Types of partition columns that the caller chooses, and the advice to choose them."""

import datetime
import re
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import Hive, RowDataset, StructuredDataset, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, SchemaError


def write(folder: Path | str, directory: str, rows: int = 1, **columns: Any) -> None:
    path = Path(folder) / directory
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": list(range(rows)), **columns}), path / "a.parquet")


def load(folder: Any, hive: Any, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(
        folder, partitioning=hive, num_workers=0, output_format="dict", **options
    )[0]


def values(folder: Any, hive: Any, name: str, **options: Any) -> list[Any]:
    return [value for batch in load(folder, hive, **options) for value in batch[name]]


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    for code in ("01001", "01002", "1001"):
        write(tmp_path, f"code={code}/month=01")
    return tmp_path


def test_codes_stay_text_and_other_columns_are_inferred(codes: Path) -> None:
    hive = Hive(types={"code": "string"})
    assert values(codes, hive, "code") == ["01001", "01002", "1001"]
    assert values(codes, hive, "month") == [1, 1, 1]
    assert values(codes, "hive", "code") == [1001, 1002, 1001]
    one = pc.field("code") == "01001"
    assert values(codes, hive, "code", filters=one) == ["01001"]
    assert values(codes, hive, "id", columns=["id"], filters=one & (pc.field("id") >= 0)) == [0]
    rows = RowDataset(codes, partitioning=hive, output_format="dict")
    assert [rows[row]["code"] for row in range(3)] == ["01001", "01002", "1001"]


def test_directories_win_over_a_column_of_the_files_and_the_scan_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "year=2024", year=[1999])
    write(tmp_path, "year=2025", year=[2025])
    note = "has 'year' in its directories and as columns: .* with partitioning=None the values of the columns"
    with caplog.at_level("WARNING"):
        assert any(re.search(note, each) for each in scan_files(tmp_path, partitioning="hive").notes)
    assert len(caplog.messages) == 1
    assert re.search(note, caplog.text)
    assert values(tmp_path, "hive", "year") == [2024, 2025]
    assert values(tmp_path, None, "year") == [1999, 2025]
    assert scan_files(tmp_path).notes == ()


def test_a_column_that_is_a_directory_above_the_path_says_so(codes: Path) -> None:
    with pytest.raises(ConfigError, match=r"The path lies inside code=1001: name a directory above, .* filters="):
        load(codes / "code=1001", "auto", columns=["id", "code"])
    assert values(codes / "code=1001", "auto", "month") == [1]


def test_a_code_that_comes_later_changes_nothing(codes: Path) -> None:
    hive = Hive(types={"code": "string"})
    typed, inferred = load(codes, hive), load(codes, "hive")
    write(codes, "code=2A001/month=02")
    typed.dataset.refresh()
    assert [batch["code"] for batch in typed] == [["01001", "01002", "1001", "2A001"]]
    with pytest.raises(SchemaError, match="column 'code' is string now, and was int64"):
        inferred.dataset.refresh()


@settings(max_examples=effort(40), deadline=None)
@given(
    texts=st.lists(
        st.from_regex(r"0{0,2}[0-9]{1,3}", fullmatch=True) | st.text("aé =/%,", min_size=1, max_size=3),
        min_size=1,
        max_size=5,
        unique=True,
    ),
    is_in_files=st.booleans(),
    is_saved=st.booleans(),
)
def test_text_is_delivered_as_directories_spell_it(texts: list[str], is_in_files: bool, is_saved: bool) -> None:
    hive = Hive(types={"code": "string"})
    with TemporaryDirectory() as folder:
        for text in texts:
            write(folder, f"code={quote(text, safe='')}", rows=2, **({"code": [7, None]} if is_in_files else {}))
        options: dict[str, Any] = {}
        if is_saved:
            save_inventory(scan_files(folder, partitioning=hive), Path(folder, "saved"))
            options = {"inventory": load_inventory(Path(folder, "saved"))}
        assert sorted(values(folder, hive, "code", **options)) == sorted(2 * texts)
        for wanted in (texts[:1], texts):
            found = values(folder, hive, "code", filters=pc.field("code").isin(wanted), **options)
            assert sorted(found) == sorted(2 * wanted)
            both = pc.field("code").isin(wanted) & (pc.field("id") > 0)
            assert sorted(values(folder, hive, "code", filters=both)) == sorted(wanted)


@pytest.mark.parametrize(
    ("given", "text", "value"),
    [
        ("int32", "07", 7),
        (pa.uint8(), "7", 7),
        ("float32", "0.5", 0.5),
        ("bool", "true", True),
        ("date32", "2024-01-05", datetime.date(2024, 1, 5)),
        (pa.timestamp("s"), "2024-01-05 12%3A00%3A00", datetime.datetime(2024, 1, 5, 12)),
        (pa.decimal128(5, 2), "1.25", Decimal("1.25")),
        ("large_string", "01", "01"),
        ("binary", "01", b"01"),
        (pa.dictionary(pa.int8(), pa.string()), "01", "01"),
    ],
)
def test_types_are_pyarrow_types_or_their_names(given: Any, text: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, f"x={text}")
    write(tmp_path, "x=__HIVE_DEFAULT_PARTITION__")
    hive = Hive({"x": given})
    assert sorted(values(tmp_path, hive, "x"), key=lambda each: each is None) == [value, None]
    assert decode_schema(scan_files(tmp_path, partitioning=hive).schema).field("x").type == (
        pa.type_for_alias(given) if isinstance(given, str) else given
    )


@pytest.mark.parametrize(
    ("partitioning", "says"),
    [
        (
            lambda: "hvie",
            r"partitioning='hvie' is unknown; use \"hive\", \"auto\", Hive\(types=\{\"code\": \"string\"\}\) or None",
        ),
        (lambda: {"code": "string"}, "is unknown; use"),
        (lambda: Hive, "is unknown; use"),
        (lambda: Hive(types={"cod": "string"}), "names 'cod', which is no column of the paths; did you mean 'code'"),
        (lambda: Hive(types={"id": "string"}), "names 'id', which is no column of the paths; the columns are 'code'"),
        (lambda: Hive("string"), 'types=\'string\'.: pass a dict, such as {"code": "string"}'),
        (lambda: Hive({"code": "text"}), "'code': 'text'.*Pass a pyarrow type or its name"),
        (lambda: Hive({"code": str}), "Pass a pyarrow type or its name"),
        (lambda: Hive({"code": None}), "Pass a pyarrow type or its name"),
        (lambda: Hive({"code": pa.list_(pa.int8())}), "directories hold no values of this type"),
    ],
)
def test_mistakes_are_told(codes: Path, partitioning: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(codes, partitioning())


def test_types_without_directories_are_told(tmp_path: Path) -> None:
    write(tmp_path, "2024")
    with pytest.raises(ConfigError, match=r"names 'year', .*; no directory is called name=value"):
        load(tmp_path, Hive({"year": "int32"}))


def test_a_value_that_is_not_of_the_type_names_it(codes: Path) -> None:
    write(codes, "code=2A001/month=01")
    with pytest.raises(SchemaError, match=r"partition values of 'code' .* not int32, the type in Hive\(types=\.\.\.\)"):
        load(codes, Hive({"code": "int32"}))


@pytest.mark.parametrize(
    "filters",
    [
        pc.field("code") == "01001",
        pc.scalar("01001") == pc.field("code"),
        (pc.field("id") >= 0) & (pc.field("code") >= "01001"),
    ],
    ids=str,
)
def test_integers_compared_with_text_name_the_option_which_works_when_pasted(codes: Path, filters: Any) -> None:
    with pytest.raises(ConfigError, match="does not fit the data") as caught:
        load(codes, "hive", filters=filters)
    pasted = str(caught.value).partition("pass partitioning=")[2].removesuffix(".")
    assert pasted == "Hive(types={'code': 'string'})"
    assert set(values(codes, eval(pasted), "code", filters=filters)) <= {"01001", "01002", "1001"}


@pytest.mark.parametrize(
    "filters", [pc.field("id") == "1", pc.field("nope") == "1", pc.field("code") == pc.field("nope")]
)
def test_other_misfits_do_not(codes: Path, filters: Any) -> None:
    with pytest.raises(ConfigError, match="does not fit the data") as caught:
        load(codes, "hive", filters=filters)
    assert "Hive(" not in str(caught.value)


def test_a_state_belongs_to_the_types_too(codes: Path) -> None:
    loader = load(codes, "hive", batch_size=1)
    next(iter(loader))
    with pytest.raises(CheckpointMismatchError, match="schema"):
        load(codes, Hive({"code": "string"}), batch_size=1).load_state_dict(loader.state_dict())


def test_a_state_without_columns_of_directories_says_which_option_leaves_them_out(codes: Path) -> None:
    loader = load(codes, None, batch_size=1)
    next(iter(loader))
    with pytest.raises(CheckpointMismatchError, match="partitioning=None leaves them out"):
        load(codes, "hive", batch_size=1).load_state_dict(loader.state_dict())
