"""CSV and JSON lines: blocks that end at line ends, types, counts, and files that cannot be cut."""

import bz2
import gzip
import io
import json

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.inventory import UNKNOWN, FileFormat
from torch_dataloader_utils.discover import TextOptions, load_inventory, save_inventory, scan_files
from torch_dataloader_utils.errors import (
    ConfigError,
    CorruptFileError,
    DataError,
    NoDataError,
    SchemaError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.formats.text import head
from torch_dataloader_utils.formats.text.line_counter import LineCounter

LINES = st.lists(st.sampled_from(['{"a":1}', '{"a": 2, "b": "x"}', "", "  ", "\t"]), max_size=30)
SPLITS = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@settings(max_examples=effort(150), deadline=None)
@given(
    lines=LINES,
    ends=st.sampled_from(["\n", "\r\n"]),
    last_end=st.booleans(),
    pieces=SPLITS,
    block_bytes=st.integers(1, 60),
)
def test_blocks_cover_the_text_end_at_line_ends_and_count_its_objects(lines, ends, last_end, pieces, block_bytes):
    text = (ends.join(lines) + (ends if last_end else "")).encode()
    counter = LineCounter(start=0, block_bytes=block_bytes, blank=b" \t\r")
    place = 0
    while place < len(text):
        length = pieces[place % len(pieces)]
        counter.feed(text[place : place + length])
        place += length
    blocks = counter.blocks().tolist()
    assert b"".join(text[offset : offset + length] for _, offset, length in blocks) == text
    for rows, offset, length in blocks:
        block = text[offset : offset + length]
        assert rows == sum(bool(line.strip()) for line in block.split(b"\n"))
        assert length == 0 or block.endswith(b"\n") or offset + length == len(text)
    for _, _, length in blocks[:-1]:
        assert length >= block_bytes


@settings(max_examples=effort(100), deadline=None)
@given(text=st.text("\r\na", max_size=12), pieces=SPLITS)
def test_returns_that_are_not_before_a_newline_are_seen_across_pieces(text, pieces):
    counter = LineCounter(start=0, block_bytes=4, blank=b"\r")
    place, data = 0, text.encode() + b"a"
    while place < len(data):
        length = pieces[place % len(pieces)]
        counter.feed(data[place : place + length])
        place += length
    assert counter.has_lone_returns == ("\r" in text.replace("\r\n", ""))


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("rows", [2, 400_000])
def test_csv_lines_may_end_as_any_system_ends_them(tmp_path, end, rows):
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(["x,y", *(f"{i},{i}" for i in range(rows))]).encode())
    inventory = scan_files(path, "csv")
    assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)).names == ["x", "y"]
    assert inventory.num_rows == rows


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_types_are_those_of_the_whole_lines_at_the_start(tmp_path, end, monkeypatch):
    """A date that is cut off where the first MiB ends is no date."""
    monkeypatch.setattr(head, "_MOST_HEAD_BYTES", 1 << 20)
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(["day", *["2024-01-01"] * 120_000]).encode())
    inventory = scan_files(path, "csv")
    assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)).types == [pa.date32()]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_a_row_with_line_ends_in_its_values_may_lie_where_the_first_mib_ends(tmp_path, end):
    row = '{},"' + f"line{end}" * 100 + '",{}'
    rows = end.join(row.format(i, i % 3) for i in range(3000))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_bytes(f"id,text,label{end}{rows}".encode())
    inventory = scan_files(tmp_path, "csv")
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("label", pa.int64())])
    assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)) == schema
    assert inventory.num_rows == 6000


def test_a_second_file_with_returns_for_line_ends_may_be_cut_in_a_row(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_bytes(b"\r".join([b"xx,y,z", *[b"1,2222,3"] * 200_000]))
    assert scan_files(tmp_path, "csv").num_rows == 400_000


LONG = "x" * (2 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("jsonl", f'{{"a":1,"b":"{LONG}"}}\n{{"a":2,"b":"y"}}\n'),
        ("jsonl", f'{{"a":1,"b":"y"}}\n{{"a":2,"b":"{LONG}"}}\n'),
        ("csv", f'a,b\n1,x\n2,"{LONG}"\n'),
        ("csv", f'a,b\n1,"{LONG}"\n2,x'),
        ("csv", f'a,b\n1,"{LONG}\n{LONG}"\n2,x\n'),
        ("csv", f"a,b\n1,{LONG}\n2,y\n"),
        ("csv", f"a,b\r\n\r\n1,{LONG}\r\n2,y"),
        ("csv", f"a,b\n1,x\n2,{LONG}"),
    ],
    ids=["json", "json last", "quoted last", "quoted", "quoted lines", "plain", "after a blank line", "no line end"],
)
def test_rows_may_be_longer_than_the_first_mib(tmp_path, ending, text):
    for name in ("a", "b"):
        (tmp_path / f"{name}.{ending}").write_bytes(text.encode())
    inventory = scan_files(tmp_path, ending)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, inventory=inventory, batch_size=4, num_workers=0, output_format="arrow"
    )
    assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)) == pa.schema([("a", pa.int64()), ("b", pa.string())])
    (batch,) = loader
    assert batch["a"].to_pylist() == [1, 2, 1, 2]
    assert sum(LONG in value for value in batch["b"].to_pylist()) == 2


@pytest.mark.slow
def test_the_types_of_the_only_row_are_its_types_though_it_is_long_and_has_no_line_end(tmp_path):
    (tmp_path / "a.csv").write_text(f"a,b\n1,{LONG}")
    inventory = scan_files(tmp_path, "csv")
    assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)).types == [pa.int64(), pa.string()]


@pytest.mark.parametrize("start", ["\ufeff", "\ufeff\n", "\ufeff\r\n\n"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_byte_order_mark_and_blank_lines_may_come_before_a_csv_header(tmp_path, start, quote):
    text = f"{start}{quote}a{quote},b\n" + "".join(f"{i},y\n" for i in range(50))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_bytes(text.encode())
    inventory = scan_files(tmp_path, "csv", text=TextOptions(block_bytes=60, csv_has_no_quoted_newlines=True))
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, inventory=inventory, batch_size=100, num_workers=0, output_format="arrow"
    )
    (batch,) = loader
    assert batch.schema.names == ["a", "b"]
    assert batch["a"].to_pylist() == [*range(50)] * 2
    assert inventory.num_groups > 2


@settings(max_examples=effort(30), deadline=None)
@given(rows=st.integers(1, 60), block_bytes=st.integers(1, 300))
def test_each_json_block_parses_to_the_rows_it_promises(tmp_path_factory, rows, block_bytes):
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text("".join(json.dumps({"a": i}) + "\n" * (1 + i % 2) for i in range(rows)))
    inventory = scan_files(path, "jsonl", text=TextOptions(block_bytes=block_bytes))
    data = path.read_bytes()
    for i in range(inventory.num_groups):
        task = inventory.task(i)
        table = pa_json.read_json(io.BytesIO(data[task.byte_offset : task.byte_offset + task.byte_length]))
        assert table["a"].to_pylist() == list(range(task.first_row, task.first_row + task.live_rows))
    assert inventory.num_rows == rows


def test_csv_blocks_leave_the_header_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('\n"x","y"\r\n' + "".join(f"{i},t{i}\r\n" for i in range(50)))
    inventory = scan_files(path, "csv", text=TextOptions(block_bytes=100))
    data = path.read_bytes()
    schema = pa.ipc.read_schema(pa.py_buffer(inventory.schema))
    assert schema == pa.schema([("x", pa.int64()), ("y", pa.string())])
    seen = []
    for i in range(inventory.num_groups):
        task = inventory.task(i)
        assert task.byte_offset > 0
        block = io.BytesIO(data[task.byte_offset : task.byte_offset + task.byte_length])
        table = pa_csv.read_csv(block, read_options=pa_csv.ReadOptions(column_names=schema.names))
        assert table.num_rows == task.live_rows
        seen += table["x"].to_pylist()
    assert seen == list(range(50))
    assert inventory.num_groups > 1


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('a,b\n1,"x\n2,y\n', 1),
        ('a,b\n1,"x"\n2,"y', 2),
        ('a,b\n1,5" pipe\n2,"y\n', 2),
        ('a,b\r1,x\r2,"y""\r', 2),
        ('a\n"x"\n\n"y\n', 2),
    ],
    ids=["first row", "cut", "quote inside a text", "escaped quote", "one column"],
)
def test_a_quote_that_never_ends_is_an_error_and_takes_no_rows(tmp_path, text, row):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(CorruptFileError, match=rf"a\.csv: a quote that begins in row {row} never ends"):
        scan_files(tmp_path / "a.csv", "csv")


@pytest.mark.parametrize(
    ("name", "data", "error", "told"),
    [
        ("a.csv", "a,b\n1,é\n".encode("utf-16"), UnsupportedFeatureError, "begins as UTF-16, .* iconv -f UTF-16"),
        ("a.jsonl", '{"a": 1}\n'.encode("utf-16"), UnsupportedFeatureError, "begins as UTF-16"),
        ("a.csv", ("a,b\n" + "1,e\n" * 300_000 + "1,é\n").encode("latin-1"), CorruptFileError, "is not UTF-8 .* iconv"),
        ("a.json", b'\n{\n "a": 1\n}\n', UnsupportedFeatureError, "object over several lines.* one object a line"),
    ],
    ids=["csv", "json", "late", "indented"],
)
def test_other_encodings_and_other_json_say_what_to_write(tmp_path, name, data, error, told):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(error, match=told):
        list(StructuredDataset(tmp_path / name, "auto"))


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_quotes_that_end_and_quotes_inside_texts_take_no_rows(tmp_path, end):
    (tmp_path / "a.csv").write_text(f'"a,b",c\n"x\ny","say ""hi"""\n5" pipe,"z"{end}', newline="")
    batches = StructuredDataset(tmp_path / "a.csv", "csv", output_format="dict")
    assert [dict(batch) for batch in batches] == [{"a,b": ["x\ny", '5" pipe'], "c": ['say "hi"', "z"]}]
    (tmp_path / "b.csv").write_text('"a,b"\n"1,2"\n')
    assert scan_files(tmp_path / "b.csv", "csv").num_rows == 1


def test_csv_with_quotes_is_one_group_with_header_and_exact_rows_unless_the_caller_knows_better(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('x,y\n1,"two\nlines"\n2,"q""q"\n\n3,5" pipe\n')
    inventory = scan_files(path, "csv")
    assert (inventory.num_groups, inventory.num_rows, inventory.task(0).byte_offset) == (1, 3, 0)
    header = tmp_path / "h.csv"
    header.write_text('"x\nx",y\n1,2\n3,4\n')
    whole = scan_files(header, "csv", schema=pa.schema([("x\nx", pa.int64()), ("y", pa.int64())]))
    assert (whole.num_groups, whole.num_rows, whole.task(0).byte_offset) == (1, 2, 0)
    plain = tmp_path / "b.csv"
    plain.write_text('"x","y"\n1,"a"\n2,"b"\n')
    split = scan_files(plain, "csv", text=TextOptions(block_bytes=1, csv_has_no_quoted_newlines=True))
    assert split.groups.live_rows.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("zst", pa.Codec("zstd").compress)]
)
def test_compressed_text_is_one_counted_group(tmp_path, suffix, compress):
    raw = "".join(json.dumps({"a": i}) + "\n" for i in range(1000)).encode()
    packed = compress(raw)
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(packed if isinstance(packed, bytes) else packed.to_pybytes())
    inventory = scan_files(tmp_path, "json", text=TextOptions(block_bytes=10))
    assert (inventory.num_groups, inventory.num_rows, inventory.task(0).byte_offset) == (1, 1000, 0)
    assert inventory.task(0).byte_length == inventory.task(0).file_size


def test_two_gzip_members_are_both_counted(tmp_path):
    member = gzip.compress(b'{"a":1}\n')
    (tmp_path / "a.jsonl.gz").write_bytes(member + member)
    assert scan_files(tmp_path, "json").num_rows == 2


def test_without_counting_text_files_are_whole_and_unknown(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a":1}\n{"a":2}\n')
    (tmp_path / "b.jsonl").write_text('{"a":1}\n')
    inventory = scan_files(tmp_path, "jsonl", count_rows=False, text=TextOptions(block_bytes=1))
    assert inventory.groups.live_rows.tolist() == [UNKNOWN, UNKNOWN]
    assert inventory.num_rows == UNKNOWN


@pytest.mark.parametrize(
    ("separator", "file_format"), [("\t", "tsv"), (";", "csv-semicolon"), ("|", "csv-pipe"), (",", "csv")]
)
def test_each_separator_is_a_format_and_another_format_names_it(tmp_path, separator, file_format):
    lines = [["id", "note, price"], *([str(n), "1,5"] for n in range(300))]
    text = "\n".join(separator.join(f'"{value}"' if separator == "," else value for value in row) for row in lines)
    (tmp_path / "t.csv").write_text(text)
    loader, _ = StructuredDataset.create_dataloader(tmp_path, file_format, num_workers=0, batch_size=100)
    assert [value for batch in loader for value in batch["id"].tolist()] == list(range(300))
    assert [value for batch in loader for value in batch["note, price"]] == ["1,5"] * 300
    save_inventory(loader.plan.inventory, tmp_path / "_saved.inventory")
    assert load_inventory(tmp_path / "_saved.inventory").fingerprint() == loader.plan.inventory.fingerprint()
    with pytest.raises(ConfigError, match=f'the header has one column.*format="{file_format}"'):
        scan_files(tmp_path / "t.csv", "tsv" if separator in ",;" else "csv-semicolon")


def test_blocks_of_other_separators_read_the_header_of_their_file(tmp_path):
    (tmp_path / "t.tsv").write_text("a\tb\n" + "".join(f"{n}\t{-n}\n" for n in range(50)))
    inventory = scan_files(tmp_path, "auto", text=None)
    assert inventory.files.formats.tolist() == [FileFormat.TSV]
    inventory = scan_files(tmp_path, "tsv", text=TextOptions(block_bytes=32))
    assert inventory.num_groups > 5
    loader, _ = StructuredDataset.create_dataloader(tmp_path, "tsv", inventory=inventory, num_workers=0)
    assert [value for batch in loader for value in batch["b"].tolist()] == [-n for n in range(50)]


@pytest.mark.parametrize("text", ["1,2.5,-3e4\n4,5,6\n", "7\n8\n", '"1",,3\n'])
def test_numbers_are_no_header_unless_a_schema_says_so(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"numbers and no names.*write such a line.*schema=pyarrow\.schema"):
        scan_files(tmp_path / "t.csv", "csv")


def test_rows_instead_of_the_wanted_header_are_an_error_that_says_to_write_names(tmp_path):
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    (tmp_path / "1.csv").write_text("3,4\n5,6\n")
    with pytest.raises(SchemaError, match=r"1\.csv.*header is 3, 4; wanted a, b.*write a line of names before it"):
        scan_files(tmp_path, "csv")


@pytest.mark.parametrize("name", ["2019", "a;b"])
def test_odd_names_are_read_if_a_schema_has_them(tmp_path, name):
    (tmp_path / "t.csv").write_text(f"{name}\n4\n5\n")
    inventory = scan_files(tmp_path / "t.csv", "csv", schema=pa.schema({name: pa.int64()}))
    assert inventory.num_rows == 2


def test_a_header_alone_is_a_file_without_rows(tmp_path):
    (tmp_path / "a.csv").write_text("x,y")
    (tmp_path / "b.csv").write_text("x,y\n1,2")
    inventory = scan_files(tmp_path, "csv", schema=pa.schema([("x", pa.int64()), ("y", pa.int64())]))
    assert inventory.groups.file.tolist() == [1]
    assert inventory.num_rows == 1


@pytest.mark.parametrize("count_rows", [True, False])
@pytest.mark.parametrize(
    "blank",
    [b"", b"\n\r\n\n", b"\xef\xbb\xbf\n", b"\xef\xbb\xbf", b"\n" * (3 << 20)],
    ids=["nothing", "lines", "a mark and a line", "a mark", "3 MiB"],
)
@pytest.mark.parametrize(("ending", "text"), [("csv", b"x\n1\n2\n"), ("jsonl", b'{"x": 1}\n{"x": 2}\n')])
def test_blank_files_have_no_rows_wherever_they_come(tmp_path, ending, text, blank, count_rows):
    (tmp_path / f"b.{ending}").write_bytes(text)
    for name in ("a", "c"):
        (tmp_path / f"{name}.{ending}").write_bytes(blank)
        (tmp_path / f"{name}.{ending}.gz").write_bytes(gzip.compress(blank))
    for schema in (None, pa.schema([("x", pa.int64())])):
        inventory = scan_files(tmp_path, ending, schema=schema, count_rows=count_rows)
        assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)) == pa.schema([("x", pa.int64())])
        assert [inventory.task(group).path for group in range(inventory.num_groups)] == [str(tmp_path / f"b.{ending}")]
    (tmp_path / f"b.{ending}").unlink()
    with pytest.raises(NoDataError, match=r"all lines of \d files are blank"):
        scan_files(tmp_path, ending)


def test_spaces_are_blank_in_json_lines_and_a_name_in_csv(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b" \t\r\n \n")
    (tmp_path / "b.jsonl").write_bytes(b'{"x": 1}\n')
    assert scan_files(tmp_path, "jsonl").num_rows == 1
    (tmp_path / "a.csv").write_bytes(b" \n1\n")
    assert scan_files(tmp_path / "a.csv", "csv").num_rows == 1


def test_another_header_names_both_sides_but_its_order_is_free(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("y,x\n1,2\n")
    assert scan_files(tmp_path, "csv").num_rows == 2
    (tmp_path / "c.csv").write_text("x,z\n1,2\n")
    with pytest.raises(SchemaError, match=r"c.csv: the CSV header is x, z; wanted x, y"):
        scan_files(tmp_path, "csv")


def test_text_that_does_not_parse_or_unpack_is_a_data_error(tmp_path):
    (tmp_path / "a.jsonl").write_text("this is no json\n")
    with pytest.raises(DataError, match=r"a\.jsonl"):
        scan_files(tmp_path / "a.jsonl", "jsonl")
    (tmp_path / "a.jsonl.gz").write_bytes(b"this is no gzip")
    with pytest.raises(DataError, match=r"a\.jsonl\.gz"):
        scan_files(tmp_path / "a.jsonl.gz", "jsonl")


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2}]', '\n[\n{"a": 1},\n{"a": 2}\n]\n', "[1, 2]\n[3, 4]\n"])
def test_a_json_array_is_told_from_damage(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(
        UnsupportedFeatureError, match=r"a\.json begins with a JSON array. JSON lines are needed: one obj"
    ):
        scan_files(tmp_path, "json")


def test_a_data_frame_in_one_json_object_is_no_row(tmp_path):
    for labels in (range(3), [7, 2], [5]):
        frame = {name: {str(label): value for label in labels} for name, value in (("a", 1), ("b", None))}
        (tmp_path / "a.json").write_text(json.dumps(frame))
        with pytest.raises(
            UnsupportedFeatureError, match=r'a\.json is one JSON object of columns.*orient="records", lines=True'
        ):
            scan_files(tmp_path, "json")
        one, two = (pa.struct([(str(label), kind) for label in labels]) for kind in (pa.int64(), pa.string()))
        assert scan_files(tmp_path, "json", schema=pa.schema([("a", one), ("b", two)])).num_rows == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"0": 1, "1": 2}, "b": 3}',
        '{"a": {"0": 1, "1": 2}, "b": {"0": 3}}',
        '{"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}}',
        '{"a": {"0": 1}}',
        '{"a": {}, "b": {}}',
        '{"a": {"0": 1, "1": 2}}\n{"a": {"0": 1, "1": 2}}',
    ],
)
def test_rows_of_structs_are_no_data_frame(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    assert scan_files(tmp_path, "json").num_rows == text.count("\n") + 1


@pytest.mark.parametrize("other", ['"x"', '{"b": 1}', "[1]", "true"])
def test_json_lines_whose_types_differ_are_told_from_damage(tmp_path, other):
    (tmp_path / "a.jsonl").write_text(f'{{"a": 1, "b": 1}}\n{{"a": {other}, "b": 2}}\n')
    with pytest.raises(SchemaError, match=r"a\.jsonl: the types of a column differ: 'a' is number before, in"):
        scan_files(tmp_path, "jsonl")
    for schema in (None, pa.schema([("b", pa.int64())])):
        inventory = scan_files(tmp_path, "jsonl", schema=schema, columns=["b"])
        assert (decode_schema(inventory.schema).names, inventory.num_rows) == (["b"], 2)


@pytest.mark.parametrize(
    "options", [{"block_bytes": 0}, {"block_bytes": "64MiB"}, {"csv_has_no_quoted_newlines": "no"}]
)
def test_options_that_cut_no_blocks_are_refused(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))}="):
        TextOptions(**options)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_value_that_speaks_of_encryption_is_still_no_number(tmp_path, num_workers):
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 10)
    (tmp_path / "b.csv").write_text("x\n" + "1\n" * 10 + "encrypted\n")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, format="csv", num_workers=num_workers)
    with pytest.raises(SchemaError, match="does not fit the data set's schema"):
        list(loader)
