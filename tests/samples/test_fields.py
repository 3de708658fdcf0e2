"""Columns and provenance through a pack, against the model's walk over documents; a killed job that goes on."""

import itertools
import json
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.samples.corpora import corpora, number_tokens, packings, walk_group, windows
from tests.samples.test_packed_loader import load, over_resumes
from torch_dataloader_utils import StructuredDataset, load_inventory, save_inventory
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, DataError, NullValueError
from torch_dataloader_utils.samples import PerDocument, PerToken, pack_tokens

SCHEMA = pa.schema(
    [
        ("tokens", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int64())),
        ("keep", pa.list_(pa.bool_())),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("weight", pa.float32()),
        ("is_new", pa.bool_()),
    ]
)
FIELDS = {
    "tokens": None,
    "cu_seqlens": None,
    "labels": PerToken(pad=-100, eod=-1),
    "keep": None,
    "weight": PerToken(pad=-0.5),
    "is_new": PerToken(),
    "origin": "source",
    "weights": PerDocument(column="weight"),
    "document_file": None,
    "document_row_group": None,
    "document_row": None,
    "document_start": None,
    "document_tokens": None,
}


def of_document(row, tokens):
    """The other columns of a document, from its place in the row group and its tokens."""
    absent = tokens is None
    return {
        "labels": None if absent else [-2 * token for token in tokens],
        "keep": None if absent else [token % 3 == 0 for token in tokens],
        "source": f"source {row % 3}",
        "weight": row / 2,
        "is_new": row % 2 == 1,
    }


def write(folder, files):
    """Parquet files of these row groups of documents, with the other columns."""
    for index, groups in enumerate(files):
        with pq.ParquetWriter(folder / f"part-{index:02}.parquet", SCHEMA) as writer:
            for group in groups:
                rows = [{"tokens": each, **of_document(row, each)} for row, each in enumerate(group)]
                writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), row_group_size=max(1, len(rows)))


def expected_samples(folder, files, packing):
    """All samples, each as the tuple of the fields' values, in the order of `FIELDS` without the first two."""
    for window in windows(files, packing):
        yield from (expected_sample(entries, window, folder, packing) for entries in walk_group(window.group, packing))


def expected_sample(entries, window, folder, packing):
    group = window.group
    others = [of_document(row, tokens) for (_, _, row), tokens in zip(window.places, group, strict=True)]
    padding = packing.sample_tokens - len(entries)

    def listed(name, pad, eod):
        values = []
        for document, at in entries:
            is_eod = packing.eod is not None and at == len(group[document])
            values.append(others[document][name][at] if at < len(group[document]) else eod if is_eod else pad)
        return (*values, *[pad] * padding)

    def repeated(name, pad):
        return (*(others[document][name] for document, _ in entries), *[pad] * padding)

    parts = [list(part) for _, part in itertools.groupby(entries[: packing.sequence_length], lambda entry: entry[0])]
    documents = [part[0][0] for part in parts]
    real = [len(group[document]) + (packing.eod is not None) for document in documents]
    return (
        listed("labels", -100, -1),
        listed("keep", False, False),
        repeated("weight", -0.5),
        repeated("is_new", False),
        tuple(others[document]["source"] for document in documents),
        tuple(others[document]["weight"] for document in documents),
        tuple(str(folder / f"part-{window.places[document][0]:02}.parquet") for document in documents),
        tuple(window.places[document][1] for document in documents),
        tuple(window.places[document][2] for document in documents),
        tuple(part[0][1] for part in parts),
        tuple(sum(at < most for _, at in part) for part, most in zip(parts, real, strict=True)),
    )


def samples(batch):
    columns = [batch[name] for name in list(FIELDS)[2:]]
    as_lists = [column.to_list() if hasattr(column, "to_list") else column for column in columns]
    as_lists = [column.tolist() if hasattr(column, "tolist") else column for column in as_lists]
    return [tuple(tuple(each) for each in row) for row in zip(*as_lists, strict=True)]


@pytest.mark.slow
@given(lengths=corpora, packing=packings(fields=FIELDS))
@settings(max_examples=effort(60), deadline=None)
def test_columns_are_cut_and_joined_as_the_tokens_are(lengths, packing):
    assume(any(map(len, lengths)))
    files = number_tokens(lengths)
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The epoch has no steps")
        folder = Path(name)
        write(folder, files)
        loader = load(folder, packing)
        received = [sample for batch in loader for sample in samples(batch)]
        assert received == list(expected_samples(folder, files, packing))


@pytest.mark.slow
@given(lengths=corpora, packing=packings(fields=FIELDS), data=st.data())
@settings(max_examples=effort(25), deadline=None)
def test_samples_keep_their_columns_over_ranks_and_a_chain_of_resumes(lengths, packing, data):
    files = number_tokens(lengths)
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        folder = Path(name)
        expected = list(expected_samples(folder, files, packing))
        assume(expected)
        write(folder, files)
        options = {"shuffle": True, "shuffle_rows": 7, "split_rows": 5}
        batches, repeated = over_resumes(data, folder, packing, **options)
    received = [sample for batch in batches for sample in samples(batch)]
    assert set(received) == set(expected)
    assert len(received) == len(expected) + repeated


FILES = number_tokens([[[5, 0, 30, None, 12], [40, 3]], [[9] * 20]])
PACKING = pack_tokens("tokens", 16, eod=0, fields=FIELDS)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, FILES)
    return tmp_path


def test_columns_come_beside_the_fields(folder):
    packing = pack_tokens("tokens", 16, eod=0)
    batch = next(iter(load(folder, packing, columns=["source", "tokens", "labels"])))
    assert list(batch) == ["tokens", "positions", "loss_mask", "cu_seqlens", "source", "labels"]
    named = pack_tokens("tokens", 16, eod=0, fields=[*packing.fields, "source", "labels"])
    other = next(iter(load(folder, named)))
    assert batch["source"] == other["source"]
    assert batch["labels"].equal(other["labels"])
    assert list(next(iter(load(folder, packing)))) == list(packing.fields)


def test_a_column_with_the_name_of_a_field_needs_another_one(tmp_path):
    rows = {"tokens": [[1, 2, 3]], "loss_mask": [[0, 1, 1]]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    packing = pack_tokens("tokens", 4)
    with pytest.raises(ConfigError, match=r"columns=\['loss_mask'\] with pack=.*fields="):
        load(tmp_path, packing, columns=["tokens", "loss_mask"])
    only_tokens = pack_tokens("tokens", 4, fields=["tokens"])
    (batch,) = load(tmp_path, only_tokens, columns=["loss_mask"])
    assert batch["loss_mask"].tolist() == [[0, 1, 1, 0]]
    both = pack_tokens("tokens", 4, fields={"tokens": None, "loss_mask": None, "is_answer": "loss_mask"})
    (batch,) = load(tmp_path, both)
    assert batch["loss_mask"].tolist() == [[True, True, False, False]]
    assert batch["is_answer"].tolist() == [[0, 1, 1, 0]]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("output_format", ["torch", "numpy", "dict"])
def test_other_output_formats_and_worker_processes(folder, workers, output_format):
    loader = load(folder, PACKING, num_workers=workers, output_format=output_format)
    received = [batch["document_row"] for batch in loader]
    received = [each.to_list() if output_format == "torch" else each for each in received]
    rows = sorted(tuple(int(row) for row in sample) for batch in received for sample in batch)
    assert rows == sorted(sample[8] for sample in expected_samples(folder, FILES, PACKING))


def test_a_filter_numbers_the_rows_that_it_leaves(folder):
    loader = load(folder, PACKING, filters=pc.field("weight") > 0)
    rows = [sample[8] for batch in loader for sample in samples(batch)]
    left = [[group[1:] for group in groups] for groups in FILES]
    assert rows == [sample[8] for sample in expected_samples(folder, left, PACKING)]


def test_states_and_counted_inventories_do_not_depend_on_the_columns(folder, tmp_path):
    plain = load(folder, pack_tokens("tokens", 16, eod=0))
    iterator = iter(plain)
    next(iterator)
    state = plain.state_dict()
    iterator.close()
    save_inventory(plain.plan.inventory, tmp_path / "packed.inventory")
    loader = load(folder, PACKING, inventory=load_inventory(tmp_path / "packed.inventory"))
    loader.load_state_dict(state)
    received = [sample for batch in loader for sample in samples(batch)]
    assert received == list(expected_samples(folder, FILES, PACKING))[3:]


def test_lists_of_other_lengths_than_the_tokens_name_file_row_and_lengths(tmp_path):
    rows = {"tokens": [[1, 2], [3, 4, 5], [6]], "labels": [[1, 2], [3, 4], None]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    message = (
        r"a.parquet row group 0, column 'labels', has lists of other lengths than the tokens in 2 of 3 rows. The "
        "first is live row 1, with 2 values for 3 tokens"
    )
    with pytest.raises(DataError, match=message):
        list(load(tmp_path, pack_tokens("tokens", 4), columns=["labels"]))


@pytest.mark.parametrize("values", [[[1, None]], [None]])
def test_a_null_for_a_token_is_an_error(tmp_path, values):
    pq.write_table(pa.table({"tokens": [[1, 2]], "x": pa.array(values)}), tmp_path / "a.parquet")
    fields = {"tokens": None, "x": PerToken()}
    if values == [None]:
        pq.write_table(pa.table({"tokens": [[1, 2]], "x": pa.array(values, pa.int8())}), tmp_path / "a.parquet")
    with pytest.raises(NullValueError, match="column 'x', has 1 null"):
        list(load(tmp_path, pack_tokens("tokens", 4, fields=fields)))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (["tokens", "nothing"], "names 'nothing', which is not a column of the data"),
        ({"x": PerToken(column="nothing")}, "names 'nothing', which is not a column of the data"),
        ({"source": PerToken()}, r"PerDocument\(column='source'\)"),
        ({"labels": PerToken(pad=0.5)}, "pad=0.5 of PerToken does not fit the int64 of column 'labels'"),
        ({"labels": PerToken(eod=2**63)}, "eod=9223372036854775808 of PerToken does not fit"),
        ({"keep": PerToken(pad=2)}, "pad=2 of PerToken does not fit the bool of column 'keep'"),
        ({"weight": PerToken(eod=0)}, "column 'weight' is float: all tokens of a document .*Leave eod out"),
    ],
)
def test_fields_that_do_not_fit_are_refused_before_anything_is_read(folder, fields, says):
    with pytest.raises(ConfigError, match=says):
        load(folder, pack_tokens("tokens", 8, fields=fields))


@pytest.mark.parametrize("fields", [{"x": 3}, [3], {3: None}])
def test_fields_of_another_type_are_refused(fields):
    with pytest.raises(ConfigTypeError, match="fields has 3"):
        pack_tokens("tokens", 8, fields=fields)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: PerToken(pad=None), ConfigTypeError, "pad=None of PerToken: pass a number"),
        (lambda: PerToken(eod="x"), ConfigTypeError, "eod='x' of PerToken: pass a number"),
        (lambda: PerToken(column=3), ConfigTypeError, "PerToken.column is the name of a column; got 3"),
        (lambda: PerToken(output=""), ConfigError, "PerToken.output is the name of a column; got an empty one"),
        (lambda: PerToken(column="a", output="b"), ConfigError, "column='a' and output='b' .*Leave one out"),
        (lambda: PerDocument(column=3), ConfigTypeError, "PerDocument.column is the name of a column; got 3"),
    ],
)
def test_what_is_wrong_with_a_field_is_said_when_it_is_made(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_documents_padded_to_multiples_need_a_length_that_is_one():
    with pytest.raises(ConfigError, match="sequence_length=10 is not a multiple of pad_to_multiple_of=4"):
        pack_tokens("tokens", 10, pad_to_multiple_of=4)
    with pytest.raises(ConfigError, match="with extra_token and best_fit"):
        pack_tokens("tokens", 8, pad_to_multiple_of=4, extra_token=True, fill="best_fit")


# Audits what it trains on, and is killed in the middle of an epoch; the state is written before the rows are logged,
# so that what a killed job has logged is at most what its state says.
JOB = """
import json, os, signal, sys
from pathlib import Path
from torch_dataloader_utils import StructuredDataset, pack_tokens
folder, place, rank, num_ranks, steps = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
names = ["document_file", "document_row_group", "document_row", "document_start", "document_tokens"]
fields = ["tokens", "labels", *names]
loader, _ = StructuredDataset.create_dataloader(
    folder, pack=pack_tokens("tokens", 16, fields=fields), batch_size=1, shuffle=True, shuffle_rows=5,
    num_ranks=num_ranks, rank=rank, num_workers=1)
if (place / "state.json").exists():
    loader.load_state_dict(json.loads((place / "state.json").read_text()))
for step, batch in enumerate(loader, 1):
    assert (batch["labels"] == -2 * batch["tokens"])[batch["tokens"] > 0].all()
    pieces = [batch[n].to_list()[0] if n != "document_file" else batch[n][0] for n in names]
    with (place / f"log-{rank}.jsonl").open("a") as log:
        for piece in zip(*pieces):
            log.write(json.dumps(piece) + chr(10))
    (place / f"state-{rank}.json").write_text(json.dumps(loader.state_dict()))
    if step == steps:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.full
@pytest.mark.processes
def test_the_audit_of_a_killed_job_has_every_token_once(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("job")

    def run(rank, num_ranks, steps):
        command = [sys.executable, "-c", JOB, str(folder), str(place), str(rank), str(num_ranks), str(steps)]
        return subprocess.run(command, env=os.environ, check=False).returncode

    assert [run(rank, 2, 2) for rank in range(2)] == [-signal.SIGKILL] * 2
    (place / "state-0.json").replace(place / "state.json")
    assert [run(rank, 3, 10**6) for rank in range(3)] == [0] * 3
    logged = [json.loads(line) for log in place.glob("log-*") for line in log.read_text().splitlines()]
    read = Counter(
        (Path(file).name, group, row, token)
        for file, group, row, start, tokens in logged
        for token in range(start, start + tokens)
    )
    stored = {
        (f"part-{index:02}.parquet", ordinal, row, token)
        for index, groups in enumerate(FILES)
        for ordinal, group in enumerate(groups)
        for row, document in enumerate(group)
        for token in range(len(document or []))
    }
    assert set(read) == stored
    samples_of_epoch = sum(1 for _ in expected_samples(folder, FILES, pack_tokens("tokens", 16)))
    # 2 ranks took 2 samples each; the others go to 3 ranks in equal steps, which may repeat some.
    assert sum(read.values()) - len(stored) <= 16 * (-(samples_of_epoch - 4) % 3)


def test_the_data_set_packs_with_columns(folder):
    packed = StructuredDataset(str(folder), batch_size=3).pack_tokens("tokens", 16, eod=0, fields=FIELDS)
    received = [sample for batch in packed for sample in samples(batch)]
    assert received == list(expected_samples(folder, FILES, PACKING))
    assert np.prod(next(iter(packed))["keep"].shape) == 48
