"""The columns of JSON lines are those of all lines of all files: pyarrow's, had it read them at once."""

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import StructuredDataset, TextOptions, _engine, scan_files
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils.errors import ConfigError, DataError, SchemaError
from torch_dataloader_utils.formats.text import json_schema
from torch_dataloader_utils.formats.text.json_schema import JsonSchema

pytestmark = pytest.mark.slow

TIMES = ["2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2024-04-31", "2024-00-10", "0000-01-01"]
TIMES += [f"2024-01-01{rest}" for rest in ("T", " 12", "T23:59:60", " 24:00", "T12:30Z", " 12:30:00+01", "T12+0100")]
TIMES += [f"2024-01-01T12:30:00{rest}" for rest in ("-01:00", "+1:00", ".5", "z", "+24:00", "Z+01", " ", "+01:60", "+")]
TEXTS = st.one_of(st.sampled_from(TIMES), st.text(max_size=20), st.text('"\\é2-:TZ 01', max_size=12))
NUMBERS = st.one_of(
    st.integers(-(2**63) - 2, 2**63 + 1), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)
LEAVES = {"number": NUMBERS, "text": TEXTS, "bool": st.booleans(), "null": st.none()}
KEYS = st.sampled_from(["a", "b", "", "a.b", "a/b", 'q"', "key of sixteen b", "a key of more than 16 bytes", "é"])
TYPES = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda inner: st.one_of(st.tuples(inner), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    match kind:
        case str():
            return st.one_of(st.none(), LEAVES[kind])
        case (item,):
            return st.one_of(st.none(), st.lists(values(item), max_size=3))
        case _:
            return st.one_of(st.none(), objects(kind))


def objects(kind: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={key: values(each) for key, each in kind.items()})


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    """Lines of objects of one type, or of two that may not agree."""
    kinds = draw(st.lists(st.dictionaries(KEYS, TYPES, min_size=1, max_size=4), min_size=1, max_size=2))
    rows = draw(st.lists(st.one_of([objects(kind) for kind in kinds]), min_size=1, max_size=12))
    return [json.dumps(row, ensure_ascii=draw(st.booleans())) for row in rows]


def read_at_once(lines: list[str]) -> pa.Table | None:
    """What pyarrow makes of all lines; None if a key has no one type."""
    try:
        return pa_json.read_json(io.BytesIO("\n".join(lines).encode("utf-8", "surrogatepass")))
    except pa.ArrowInvalid as error:
        if "changed from" not in str(error):
            raise
        return None


def is_valid(table: pa.Table) -> bool:
    """Whether the arrays are whole: pyarrow 26 makes damaged ones of lists that hold nothing but nulls."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@pytest.mark.parametrize("is_built", [True, False])
@settings(max_examples=effort(80), deadline=None)
@given(lines=texts(), cut=st.integers(1, 200))
@example(lines=['{"a": 1}', '{"a": 9223372036854775807}', '{"a": 9223372036854775808}'], cut=5)
@example(lines=['{"a": -9223372036854775808}', '{"a": -9223372036854775809}'], cut=5)
@example(lines=['{"a": "2024-01-01T12:30:00\\u002B01:00"}', '{"a": "2024-01-01T12:30:00.5\\u002B01:00"}'], cut=5)
@example(lines=['{"a": "\\u0032024-01-01"}', '{"a": "2024-01-01\\/"}'], cut=5)
def test_a_text_has_the_columns_that_pyarrow_finds_in_it(is_built: bool, lines: list[str], cut: int) -> None:
    if is_built and not _engine.IS_BUILT:
        pytest.skip("there is no compiled module")
    wanted = read_at_once(lines)
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    learned = JsonSchema("a.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_engine, "IS_BUILT", is_built)
        try:
            for start in range(0, len(text), cut):
                learned.feed(text[start : start + cut])
            learned.finish()
        except SchemaError:
            assert wanted is None
        else:
            assert wanted is not None
            assert learned.schema == wanted.schema


@settings(max_examples=effort(25), deadline=None)
@given(files=st.lists(texts(), min_size=1, max_size=3), block_bytes=st.integers(1, 200))
def test_every_file_and_block_is_read_with_the_columns_of_all(files, block_bytes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for number, lines in enumerate(files):
        (folder / f"{number}.jsonl").write_text("\n".join(lines), "utf-8", "surrogatepass")
    wanted = read_at_once([line for lines in files for line in lines])
    try:
        inventory = scan_files(folder, "jsonl", text=TextOptions(block_bytes=block_bytes))
    except SchemaError:
        assert wanted is None
        return
    assert wanted is not None
    if wanted.num_columns == 0 or not is_valid(wanted):
        return
    loader, _ = StructuredDataset.create_dataloader(
        folder, "jsonl", inventory=inventory, batch_size=100, num_workers=0, output_format="arrow"
    )
    (batch,) = loader
    assert batch.schema.equals(wanted.schema)
    assert batch.to_pylist() == wanted.to_pylist()


DAMAGED = ['{"a": 1', '{"late": 1, "late": 1}', '{"late": "\\ud800"}', "[1, 2]", "5", "\0", '{"late": 1e999}', "{]"]


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_line_hides_no_key_and_is_an_error_where_it_is_read(damaged, is_built, tmp_path, monkeypatch):
    monkeypatch.setattr(_engine, "IS_BUILT", is_built and _engine.IS_BUILT)
    lines = ['{"a": 1}'] * 150_000 + [damaged] + ['{"late": 1}', '{"a": 2.5}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    inventory = scan_files(tmp_path, "jsonl")
    assert decode_schema(inventory.schema) == pa.schema([("a", pa.float64()), ("late", pa.int64())])
    loader, _ = StructuredDataset.create_dataloader(tmp_path, "jsonl", inventory=inventory, num_workers=0)
    with pytest.raises(DataError, match=r"a\.jsonl row group 0"):
        list(loader)


@pytest.fixture
def late(tmp_path):
    """Two files; keys that only the last line of the first has, after its first MiB, or only the second."""
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(json.dumps({"m": [{"role": "user"}], "n": n}) + "\n" for n in range(60_000))
        file.write('{"m": [{"role": "user", "calls": [{"name": "f"}]}], "n": 0.5, "mixed": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"tools": ["g"], "mixed": null}\n')
    return tmp_path


def rows(folder, **options):
    loader, _ = StructuredDataset.create_dataloader(
        folder, "jsonl", batch_size=100_000, num_workers=0, output_format="arrow", **options
    )
    return [row for batch in loader for row in batch.to_pylist()]


@pytest.mark.parametrize("missing", ["error", "null"])
def test_keys_that_come_late_are_columns_and_null_elsewhere(late, missing):
    found = rows(late, missing=missing)
    user = {"role": "user", "calls": None}
    assert found[0] == {"m": [user], "n": 0.0, "mixed": None, "tools": None}
    assert found[-2] == {"m": [{**user, "calls": [{"name": "f"}]}], "n": 0.5, "mixed": 1, "tools": None}
    assert found[-1] == {"m": None, "n": None, "mixed": None, "tools": ["g"]}


def test_columns_and_filters_may_name_keys_that_come_late(late):
    assert rows(late, columns=["tools"], filters=~pc.field("tools").is_null()) == [{"tools": ["g"]}]
    assert rows(late, columns=["n"], filters=pc.field("mixed") == 1) == [{"n": 0.5}]
    with pytest.raises(ConfigError, match="did you mean 'tools'"):
        rows(late, columns=["tool"])
    with pytest.raises(ConfigError, match="no column is called 'tool'"):
        rows(late, filters=pc.field("tool") == 1)


def test_a_key_that_the_schema_lacks_is_named_with_its_file(late):
    plain = pa.struct([("role", pa.string())])
    fields = {"m": pa.list_(plain), "n": pa.float64(), "mixed": pa.int64()}
    with pytest.raises(SchemaError, match=r"a\.jsonl has the key 'm\[\]\.calls', which the schema lacks"):
        scan_files(late, "jsonl", schema=pa.schema(fields))
    with pytest.raises(SchemaError, match=r"b\.jsonl has the key 'tools'"):
        scan_files(late / "b.jsonl", "jsonl", schema=pa.schema(fields))
    chosen = scan_files(late, "jsonl", schema=pa.schema(fields), columns=["n", "mixed"])
    assert chosen.num_rows == 60_002


def test_what_is_not_counted_is_not_left_out_either(late):
    with pytest.raises(SchemaError, match=r"a\.jsonl row group 0 has the key 'm\[\]\.calls'"):
        rows(late, count_rows=False)
    with pytest.raises(SchemaError, match=r"a\.jsonl row group 0 has the key 'm\[\]\.calls'"):
        rows(late, count_rows=False, columns=["m"])
    assert len(rows(late, count_rows=False, columns=["tools"])) == 60_002


def test_a_key_without_one_type_is_named_with_line_or_file_unless_it_is_not_needed(late):
    (late / "b.jsonl").write_text('{"mixed": "x"}\n')
    with pytest.raises(SchemaError, match=r"b\.jsonl: .* differ: 'mixed' is number in other files, here"):
        rows(late)
    assert len(rows(late, columns=["n"])) == 60_002
    with (late / "b.jsonl").open("a") as file:
        file.write('{"mixed": {"deep": [1]}}\n')
    with pytest.raises(SchemaError, match=r"b\.jsonl: .* 'mixed' is string before, in the line at byte"):
        rows(late)
    assert len(rows(late, columns=["n"])) == 60_003


def test_keys_that_are_values_are_refused_unless_they_are_not_needed(late, monkeypatch):
    monkeypatch.setattr(json_schema, "_MOST_KEYS", 100)
    (late / "b.jsonl").write_text("".join(json.dumps({"n": n, "of": {f"id-{n}": n}}) + "\n" for n in range(2000)))
    with pytest.raises(SchemaError, match=r"b\.jsonl: there are more than 100 keys, most of them in 'of'"):
        rows(late)
    assert len(rows(late, columns=["n"])) == 62_001


def test_many_keys_of_lines_are_left_out_together_and_the_needed_key_is_not_among_them(monkeypatch):
    monkeypatch.setattr(json_schema, "_MOST_KEYS", 100)
    line = {
        "n": 1,
        **{f"k{number}": number for number in range(200)},
        "of": {f"id-{number}": 1 for number in range(90)},
    }
    learned = json_schema.JsonSchema("a.jsonl", ["n"])
    learned.feed(json.dumps(line).encode() + b"\n")
    # The largest column goes first, then the first of the others, until 100 keys are left.
    assert learned.left_out == {"of", *(f"k{number}" for number in range(101))}
    assert learned.schema.names == ["n", *(f"k{number}" for number in range(101, 200))]
    with pytest.raises(SchemaError, match=r"more than 100 keys, most of them in 'of'"):
        json_schema.learn_schema(json.dumps({"of": {f"id-{number}": 1 for number in range(101)}}).encode(), "a", ["of"])


def test_the_columns_are_kept_with_the_rows(late, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path_factory.mktemp("cache")))
    with (late / "a.jsonl").open("a") as file:
        file.writelines('{"m": [], "n": 1}\n' for _ in range(500_000))
        file.write('{"end": true}\n')
    first = scan_files(late, "jsonl")
    with (late / "a.jsonl").open("a") as file:
        file.write('{"mixed": "x"}')
    without = scan_files(late, "jsonl", columns=["m"])
    with pytest.raises(SchemaError, match="'mixed' is number before"):
        scan_files(late, "jsonl")
    assert decode_schema(first.schema).names == ["m", "n", "mixed", "end", "tools"]
    fed, feed = [], JsonSchema.feed
    monkeypatch.setattr(JsonSchema, "feed", lambda learned, piece: fed.append(len(piece)) or feed(learned, piece))
    again = scan_files(late, "jsonl", columns=["m"])
    assert (again.schema, again.num_rows) == (without.schema, without.num_rows)
    assert sum(fed) == (late / "b.jsonl").stat().st_size
