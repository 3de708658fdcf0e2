"""Iceberg tables packed: columns by field id, footers where nothing is deleted, reading where something is."""

import pytest
from pyiceberg.types import IntegerType, ListType, NestedField, StringType

from tests.samples.corpora import EOD, pack_corpus, samples_of
from tests.tables.iceberg.tables import TableWriter
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.samples import pack_tokens

GROUPS = [[list(range(1, 12)), [], [12, 13]], [list(range(14, 40))]]


def tokens_field(name):
    return NestedField(1, name, ListType(2, IntegerType(), element_required=False), required=False)


def drain(table, packing, **options):
    loader, _ = IcebergDataset.create_dataloader(table.metadata, pack=packing, batch_size=2, num_workers=0, **options)
    return [sample for batch in loader for sample in samples_of(batch)]


@pytest.mark.parametrize("counts", ["footers", "read"])
@pytest.mark.parametrize("fill", ["greedy", "best_fit"])
def test_a_renamed_column_and_deleted_documents(tmp_path, fill, counts):
    table = TableWriter(tmp_path)
    table.evolve(tokens_field("text_ids"))
    path = table.append([{"text_ids": document} for group in GROUPS for document in group], rows_per_group=3)
    table.evolve(tokens_field("tokens"))
    packing = pack_tokens("tokens", 6, eod=EOD, fill=fill, counts=counts)
    assert drain(table, packing) == pack_corpus([GROUPS], packing)
    table.delete_positions([(path, 0)])
    assert drain(table, packing) == pack_corpus([[GROUPS[0][1:], GROUPS[1]]], packing)


def test_a_column_that_files_lack_has_no_samples(tmp_path):
    table = TableWriter(tmp_path)
    table.evolve(NestedField(9, "id", IntegerType(), required=False))
    table.append([{"id": 1}])
    table.evolve(NestedField(9, "id", IntegerType(), required=False), tokens_field("tokens"))
    table.append([{"id": 2, "tokens": [1, 2, 3]}])
    packing = pack_tokens("tokens", 4)
    assert drain(table, packing) == pack_corpus([[[[1, 2, 3]]]], packing)


def test_columns_of_a_table_go_through_the_pack(tmp_path):
    table = TableWriter(tmp_path)
    table.evolve(
        NestedField(1, "tokens", ListType(3, IntegerType(), element_required=False), required=False),
        NestedField(2, "source", StringType(), required=False),
    )
    rows = [{"tokens": [row + 1] * 3, "source": f"source {row}"} for row in range(5)]
    path = table.append(rows, rows_per_group=5)
    table.delete_positions([(path, 1)])
    packing = pack_tokens("tokens", 6, fields=["tokens", "document_row"])
    loader, _ = IcebergDataset.create_dataloader(
        table.metadata, pack=packing, columns=["source"], batch_size=2, num_workers=0
    )
    (batch,) = loader
    assert batch["tokens"].tolist() == [[1, 1, 1, 3, 3, 3], [4, 4, 4, 5, 5, 5]]
    assert batch["source"] == [["source 0", "source 2"], ["source 3", "source 4"]]
    assert batch["document_row"].to_list() == [[0, 1], [2, 3]]
