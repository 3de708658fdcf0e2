"""Where sample counts come from, and what happens when they are wrong."""

import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tests.samples.corpora import EOD, number_tokens, pack_corpus, samples_of, write_corpus
from tests.samples.test_packed_loader import load
from torch_dataloader_utils import StructuredDataset, TokenBatches, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils.datasets.row_counts import read_lengths
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, DataError, NullValueError, RowCountError
from torch_dataloader_utils.samples import flat_cu_seqlens, pack_tokens
from torch_dataloader_utils.samples.layout import over_long_cost
from torch_dataloader_utils.samples.packing_reader import PackingReader
from torch_dataloader_utils.samples.sample_counts import count_packed
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import make_reader

LENGTHS = [[[5, 0, 30, None, 12], [40, 3, 0, 0]], [[9] * 20]]
TOKENS = number_tokens(LENGTHS)
PACKING = pack_tokens("tokens", 16, eod=EOD)


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path, TOKENS)
    return tmp_path


def drain(loader):
    return [sample for batch in loader for sample in samples_of(batch)]


def test_planning_from_footers_reads_no_data(corpus):
    for path in corpus.iterdir():
        # Data pages lie in front of the footer: with those zeroed, reading fails and planning does not.
        content = bytearray(path.read_bytes())
        footer = int.from_bytes(content[-8:-4], "little") + 8
        content[4:-footer] = bytes(len(content) - footer - 4)
        path.write_bytes(content)
    assert len(load(corpus, PACKING)) == -(-len(pack_corpus(TOKENS, PACKING)) // 3)
    with pytest.raises(DataError):
        load(corpus, replace(PACKING, counts="read"))


def test_without_null_counts_the_last_samples_may_be_all_padding(tmp_path):
    tokens = number_tokens([[[0] * 40 + [10], [None] * 3]])
    write_corpus(tmp_path, tokens, write_statistics=False)
    loader = load(tmp_path, PACKING)
    samples = drain(loader)
    assert loader.plan.inventory.num_rows == len(samples) > len(pack_corpus(tokens, PACKING))
    (real,) = pack_corpus(tokens, PACKING)
    padding = [sample for sample in samples if sample != real]
    assert all(sample.tokens == (0,) * 16 and not any(sample.loss_mask) for sample in padding)
    assert all(sample.cu_seqlens == (0, 16) for sample in padding)
    assert drain(load(tmp_path, replace(PACKING, counts="read"))) == [real]


def test_null_counts_that_cannot_be_are_not_believed(corpus, caplog):
    path = corpus / "part-00.parquet"
    column = pq.read_schema(path).get_field_index("tokens")
    found = pq.read_metadata(path).row_group(0).column(column).statistics
    below = struct.pack("<i", found.min_raw) + b"\x16"  # then comes the null count, as zigzag
    pages, rest = path.read_bytes().rsplit(below + b"\4", 1)
    path.write_bytes(pages + below + b"\x7f" + rest)  # -64 for 2
    assert drain(load(corpus, PACKING)) == pack_corpus(TOKENS, PACKING)
    assert "contradict themselves and are not used" in caplog.text


@pytest.mark.parametrize("packing", [PACKING, replace(PACKING, fill="best_fit")])
@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_samples_than_planned_is_an_error(corpus, packing, change):
    packing = replace(packing, window_tokens=1)
    packed = load(corpus, packing).plan.inventory
    wrong = replace(packed, groups=replace(packed.groups, live_rows=packed.groups.live_rows + change))
    with pytest.raises(RowCountError, match=r"part-00.parquet row group 0 gave 4 of [35] planned samples"):
        drain(load(corpus, packing, inventory=wrong))


def test_a_packed_inventory_saves_the_counting_and_knows_its_packing(corpus, tmp_path):
    packing = replace(PACKING, fill="best_fit")
    loader = load(corpus, packing)
    save_inventory(loader.plan.inventory, tmp_path / "packed.inventory")
    packed = load_inventory(tmp_path / "packed.inventory")
    again = load(corpus, packing, inventory=packed)
    assert again.plan.inventory is packed
    assert drain(again) == drain(loader)
    with pytest.raises(ConfigError, match="counts samples of"):
        load(corpus, PACKING, inventory=packed)
    with pytest.raises(ConfigError, match="not rows"):
        load(corpus, None, inventory=packed)


def test_the_keys_of_a_packed_schema_are_the_same_in_every_release(corpus):
    # Inventories saved by 1.0 have these keys, and states of packed loaders are bound to the bytes of the schema.
    schema = pa.ipc.read_schema(pa.py_buffer(load(corpus, PACKING).plan.inventory.schema))
    assert set(schema.metadata) == {b"torch_dataloader_utils.packing", b"torch_dataloader_utils.stored_schema"}


def write_arrow(path, groups):
    """An Arrow file, with a row group for each list of documents."""
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    with pa.ipc.new_file(path, schema) as writer:
        for group in groups:
            writer.write_table(pa.table({"tokens": group}, schema=schema))


@pytest.mark.parametrize(("file_format", "counts"), [("parquet", "footers"), ("parquet", "read"), ("arrow", "footers")])
def test_processes_share_the_counting(tmp_path, file_format, counts):
    groups = [group for groups in TOKENS for group in groups]
    write_corpus(tmp_path, TOKENS) if file_format == "parquet" else write_arrow(tmp_path / "part.arrow", groups)
    packing = replace(PACKING, counts=counts)
    inventory = scan_files(str(tmp_path), format=file_format, columns=["tokens"])
    tokens = make_reader(ReadSpec(schema=inventory.schema, columns=("tokens",)))
    reader = PackingReader(reader=tokens, counter=tokens, packing=packing, fields=())
    parts = []
    for index in range(2):
        share = Share(index=index, count=2, threads=2, exchange=lambda counts: parts.append(counts) or counts)
        count_packed(inventory, reader, share, read_lengths)
    expected = [sum(len(document or ()) + bool(document) for document in group) for group in groups]
    assert np.sum(parts, axis=0)[0].tolist() == expected
    assert all(part[0].any() and (part[0] < expected).any() for part in parts)


@pytest.mark.parametrize("fill", ["greedy", "best_fit"])
@pytest.mark.parametrize("file_format", ["orc", "arrow", "jsonl"])
def test_other_formats_are_counted_by_reading(tmp_path, file_format, fill):
    (group,) = tokens = number_tokens([[[5, 0, 30, 12]]])[0]
    table = pa.table({"tokens": pa.array(group, pa.list_(pa.int64()))})
    path = tmp_path / f"part.{file_format}"
    if file_format == "orc":
        orc.write_table(table, path)
    elif file_format == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text("".join(f'{{"tokens": {row}}}\n' for row in group))
    packing = replace(PACKING, fill=fill)
    assert drain(load(path, packing, format=file_format)) == pack_corpus([tokens], packing)


@pytest.mark.parametrize("count_rows", ["auto", False])
def test_a_filter_leaves_out_documents(corpus, count_rows):
    loader = load(corpus, PACKING, filters=pc.field("row") > 0, count_rows=count_rows)
    kept = [[group[1:] for group in groups] for groups in TOKENS]
    assert drain(loader) == pack_corpus(kept, PACKING)


def test_a_plan_says_one_number_of_samples(corpus):
    packed = load(corpus, PACKING).plan.inventory
    loader = load(corpus, PACKING, filters=pc.field("row") > 0, inventory=packed)
    assert loader.plan.inventory.notes == (
        f"packed: {loader.plan.inventory.num_rows} samples of 16 tokens, greedy, fill 0.992",
    )


@pytest.mark.parametrize("extra_token", [False, True])
def test_over_long_documents_are_cut_truncated_dropped_or_refused(corpus, extra_token):
    lengths = [len(document or ()) for groups in TOKENS for group in groups for document in group]
    width = 16 + extra_token
    over = [length for length in lengths if length + 1 > width]
    lost = {"cut": 0, "truncate": sum(max(0, length - width) for length in over), "drop": sum(over)}
    for over_long, tokens in lost.items():
        packing = pack_tokens("tokens", 16, eod=EOD, fill="best_fit", over_long=over_long, extra_token=extra_token)
        loader = load(corpus, packing)
        assert drain(loader) == pack_corpus(TOKENS, packing)
        cost = f"packed: over_long={over_long} left out {tokens} tokens of {len(over)} documents"
        assert cost in loader.plan.explain()
    with pytest.raises(DataError, match=r"row group 0: 1 documents do not fit .*the first is live row 2, the longest"):
        load(corpus, replace(packing, over_long="error"))


def test_a_document_that_just_fills_a_sample_is_not_over_long():
    packing = pack_tokens("tokens", 4, fill="best_fit", over_long="drop")
    assert over_long_cost(np.array([3, 4, 5]), packing) == (1, 5)
    assert over_long_cost(np.array([3, 4, 5]), replace(packing, eod=EOD)) == (2, 9)


def test_a_null_token_is_an_error(tmp_path):
    pq.write_table(pa.table({"tokens": [[1, None, 3]]}), tmp_path / "a.parquet")
    with pytest.raises(NullValueError, match="1 null tokens of 3"):
        drain(load(tmp_path, PACKING))


@pytest.mark.parametrize("value_type", [pa.uint16(), pa.int64()])
def test_tokens_keep_their_type(tmp_path, value_type):
    write_corpus(tmp_path, TOKENS, value_type=value_type)
    batch = next(iter(load(tmp_path, pack_tokens("tokens", 4, eod=60_000), output_format="numpy")))
    assert batch["tokens"].dtype == value_type.to_pandas_dtype()


@pytest.mark.parametrize("kind", [pa.large_list(pa.int32()), pa.list_(pa.int32(), 3)])
def test_other_kinds_of_lists(tmp_path, kind):
    rows = [[1, 2, 3], [4, 5, 6]]
    pq.write_table(pa.table({"tokens": pa.array(rows, kind)}), tmp_path / "a.parquet")
    assert drain(load(tmp_path, PACKING)) == pack_corpus([[rows]], PACKING)


def test_what_does_not_fit_is_refused_before_anything_is_read(corpus):
    for column, eod, message in [("row", None, "is int64"), ("text", None, "'text'"), ("tokens", 2**31, "eod=")]:
        with pytest.raises(ConfigError, match=message):
            load(corpus, pack_tokens(column, 8, eod=eod), inventory=scan_files(str(corpus)))
    with pytest.raises(ConfigError, match="token_batches with pack="):
        load(corpus, PACKING, token_batches=TokenBatches("tokens"))
    with pytest.raises(ConfigTypeError, match="pack_tokens"):
        load(corpus, {"column": "tokens"})
    for wrong in ({"sequence_length": 0}, {"fill": "first_fit"}, {"fields": ()}, {"over_long": "drop"}):
        with pytest.raises(ConfigError):
            pack_tokens(**{"column": "tokens", "sequence_length": 4, **wrong})


def test_boundaries_of_a_batch_cover_it(corpus):
    batch = next(iter(load(corpus, PACKING)))
    flat = flat_cu_seqlens(batch["cu_seqlens"], 16).tolist()
    expected = [0, *(place + 16 * row for row, ends in enumerate(batch["cu_seqlens"].to_list()) for place in ends[1:])]
    assert flat == expected
    assert flat[-1] == 48


def test_a_data_set_packs_too(corpus):
    dataset = StructuredDataset(str(corpus), pack=PACKING, batch_size=4)
    assert drain(dataset) == pack_corpus(TOKENS, PACKING)
    assert np.array_equal([len(dataset)], [-(-len(pack_corpus(TOKENS, PACKING)) // 4)])
