"""`dataset.pack_tokens(...)`: the data set that `create_dataloader(..., pack=...)` has, for loaders of one's own."""

import pickle

import numpy as np
import pytest
from pyiceberg.types import IntegerType, ListType, NestedField
from torch.utils.data import DataLoader

from tests.samples.corpora import EOD, number_tokens, pack_corpus, samples_of, write_corpus
from tests.tables.iceberg.tables import TableWriter
from torch_dataloader_utils import IcebergDataset, StructuredDataset, pack_tokens
from torch_dataloader_utils.errors import ConfigError

TOKENS = number_tokens([[[5, 0, 30, None, 12], [40, 3]], [[9] * 20]])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, TOKENS)
    return str(folder)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_the_data_set_of_a_packed_loader(corpus, workers):
    dataset = StructuredDataset(corpus, batch_size=3, columns=["row"]).pack_tokens("tokens", 16, eod=EOD)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    received = [sample for batch in loader for sample in samples_of(batch)]
    assert sorted(received, key=str) == sorted(pack_corpus(TOKENS, pack_tokens("tokens", 16, eod=EOD)), key=str)
    options = {"batch_size": 3, "num_workers": 0, "pack": pack_tokens("tokens", 16, eod=EOD)}
    other = StructuredDataset.create_dataloader(corpus, **options)[1]
    assert len(dataset) == len(other)
    assert dataset.planner.identity.fingerprint == other.planner.identity.fingerprint


def test_the_unpacked_data_set_stays_as_it_is(corpus):
    dataset = StructuredDataset(corpus, batch_size=3, drop_last=True, output_format="arrow")
    packed = dataset.pack_tokens("tokens", 8, fields=("tokens",))
    assert {batch.num_rows for batch in packed} == {3}
    assert next(iter(packed)).schema.names == ["tokens"]
    assert next(iter(dataset)).schema.names == ["tokens", "row"]
    assert len(packed) != len(dataset)


def test_iceberg_tables_pack_too(tmp_path):
    table = TableWriter(tmp_path)
    table.evolve(NestedField(1, "tokens", ListType(2, IntegerType(), element_required=False), required=False))
    path = table.append([{"tokens": list(range(row, 2 * row))} for row in range(9)], rows_per_group=4)
    table.delete_positions([(path, 1)])
    dataset = IcebergDataset(table.metadata, batch_size=2).pack_tokens("tokens", 6, fill="best_fit")
    documents = [list(range(row, 2 * row)) for row in range(9)]
    groups = [[documents[0], *documents[2:4]], documents[4:8], documents[8:]]
    received = [sample for batch in dataset for sample in samples_of(batch)]
    assert received == pack_corpus([groups], pack_tokens("tokens", 6, fill="best_fit"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"column": 3}, "column=3: pass the name of a list column"),
        ({"sequence_length": 2**31 - 1}, "sequence_length=2147483647: pass at most 2147483646"),
        ({"extra_token": "no"}, "extra_token='no': pass True or False"),
        ({"fields": 3}, "fields=3: pass a list of tokens, positions"),
        ({"fields": {"tokens", "labels"}}, "fields is a set, and its order differs in each process"),
        ({"fields": "tokens"}, "fields='tokens': pass a list of tokens, positions"),
    ],
)
def test_an_option_of_another_type_or_size_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        pack_tokens(**{"column": "tokens", "sequence_length": 8, **options})


def test_numpy_values_describe_the_same_packing():
    options = {"sequence_length": 8, "extra_token": True}
    given = {"sequence_length": np.int64(8), "extra_token": np.True_}
    assert pack_tokens("tokens", **given).describe() == pack_tokens("tokens", **options).describe()


def test_what_does_not_go_together_is_refused(corpus):
    dataset = StructuredDataset(corpus)
    with pytest.raises(ConfigError, match="not in the data set"):
        dataset.pack_tokens("text", 8)
    with pytest.raises(ConfigError, match="sequence_length=0"):
        dataset.pack_tokens("tokens", 0)
    with pytest.raises(ConfigError, match="pack before"):
        pickle.loads(pickle.dumps(dataset)).pack_tokens("tokens", 8)
