"""`tdu tokens`: the library's corpora from the shell."""

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import IntegerType, ListType, NestedField

from tests.cli.shell import one_line, tdu, tdu_json
from tests.megatron.corpora.corpora import EXAMPLE, write_corpus
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils.megatron.corpora import IndexedDataset, read_sequences


def write_documents(path, documents):
    pq.write_table(pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}), path, row_group_size=2)


def list_of_ints(field_id, name):
    return NestedField(field_id, name, ListType(field_id + 10, IntegerType(), element_required=False), required=False)


def test_a_corpus_is_built_and_reported(tmp_path):
    write_documents(tmp_path / "a.parquet", [[1, 2], [3], None, []])
    write_documents(tmp_path / "b.parquet", [[4, 5, 6]])
    prefix = tmp_path / "corpus"
    options = ["--column", "tokens", "--eod", 9, "--vocabulary", 10, "--skip-nulls"]
    sources = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    report = tdu_json("tokens", "build", *sources, prefix, *options)
    assert (report["document_count"], report["token_count"]) == (3, 9)
    assert (report["null_documents"], report["empty_documents"]) == (1, 1)
    corpus = IndexedDataset(str(prefix))
    assert [corpus[number].tolist() for number in range(3)] == [[1, 2, 9], [3, 9], [4, 5, 6, 9]]
    assert "exists" in one_line(tdu("tokens", "build", *sources, prefix, *options, code=2))
    assert "9" in tdu("tokens", "build", *sources, prefix, *options, "--overwrite").stdout


def test_ids_beyond_the_vocabulary_are_a_data_problem(tmp_path):
    write_documents(tmp_path / "a.parquet", [[1, 200]])
    line = one_line(
        tdu(
            "tokens", "build", tmp_path / "a.parquet", tmp_path / "c", "--column", "tokens", "--vocabulary", 100, code=1
        )
    )
    assert "the vocabulary has 100" in line


def test_an_iceberg_table_is_a_source(tmp_path):
    table = TableWriter(tmp_path / "table")
    table.evolve(field_of(1, "row", "long"), list_of_ints(2, "tokens"))
    path = table.append([{"row": row, "tokens": [row] * 2} for row in range(6)])
    table.delete_positions([(path, 4)])
    prefix = tmp_path / "corpus"
    report = tdu_json("tokens", "build", table.metadata, prefix, "--column", "tokens", "--filter", "row > 1")
    assert report["document_count"] == 3
    assert [tokens.tolist() for tokens in IndexedDataset(str(prefix))] == [[2, 2], [3, 3], [5, 5]]
    line = one_line(tdu("tokens", "build", tmp_path, prefix, "--column", "tokens", "--filter", "row > 1", code=2))
    assert "are for tables" in line


def test_corpora_are_merged_and_listed(tmp_path):
    (tmp_path / "parts").mkdir()
    for number in range(3):
        write_documents(tmp_path / "a.parquet", [[number], [number, 7]])
        tdu("tokens", "build", tmp_path / "a.parquet", tmp_path / "parts" / f"c{number}", "--column", "tokens")
    merged = tmp_path / "merged"
    assert "4 corpora" in tdu("tokens", "merge", tmp_path / "parts", tmp_path / "parts" / "c0", merged).stdout
    assert [tokens.tolist() for tokens in IndexedDataset(str(merged))][:4] == [[0], [0, 7], [1], [1, 7]]
    tdu("tokens", "sequences", merged, tmp_path / "parts" / "c1", tmp_path / "counts.json")
    facts = read_sequences(tmp_path / "counts.json")
    assert {prefix: each.token_count for prefix, each in facts.items()} == {
        str(merged): 12,
        str(tmp_path / "parts" / "c1"): 3,
    }
    assert "exists" in one_line(tdu("tokens", "merge", tmp_path / "parts", merged, code=2))
    assert "no file" in one_line(tdu("tokens", "merge", tmp_path / "gone", tmp_path / "new", code=2))
    (tmp_path / "empty").mkdir()
    line = one_line(tdu("tokens", "merge", tmp_path / "parts", tmp_path / "empty", tmp_path / "new", code=2))
    assert f"no corpus in {tmp_path / 'empty'}" in line


def test_a_corpus_is_merged_beside_a_directory_of_its_name(tmp_path):
    write_documents(tmp_path / "a.parquet", [[1], [2]])
    tdu("tokens", "build", tmp_path / "a.parquet", tmp_path / "web", "--column", "tokens")
    (tmp_path / "web" / "cache").mkdir(parents=True)
    tdu("tokens", "merge", tmp_path / "web", tmp_path / "web", tmp_path / "all")
    assert len(IndexedDataset(str(tmp_path / "all"))) == 4


def test_modes_are_kept_on_request(tmp_path):
    prefix = write_corpus(tmp_path / "modal", EXAMPLE, modes=[1, 0, 2])
    assert "--multimodal" in one_line(tdu("tokens", "merge", prefix, tmp_path / "all", code=1))
    tdu("tokens", "merge", prefix, tmp_path / "all", "--multimodal")
    assert IndexedDataset(str(tmp_path / "all"), multimodal=True).sequence_modes.tolist() == [1, 0, 2]


def test_a_merge_into_its_own_directory_gives_the_same_again(tmp_path):
    for number in range(2):
        write_documents(tmp_path / "a.parquet", [[number]])
        tdu("tokens", "build", tmp_path / "a.parquet", tmp_path / "parts" / f"c{number}", "--column", "tokens")
    merged = tmp_path / "parts" / ".." / "parts" / "all"
    for _ in range(2):
        report = tdu_json("tokens", "merge", tmp_path / "parts", merged, "--overwrite")
        assert report["merged"] == [str(tmp_path / "parts" / "c0"), str(tmp_path / "parts" / "c1")]
        assert [tokens.tolist() for tokens in IndexedDataset(str(merged))] == [[0], [1]]
    assert tdu_json("tokens", "sequences", merged, tmp_path / "counts.json")["num_corpora"] == 1


def test_a_null_document_names_the_option_of_the_shell(tmp_path):
    write_documents(tmp_path / "a.parquet", [[1], None])
    line = one_line(tdu("tokens", "build", tmp_path / "a.parquet", tmp_path / "c", "--column", "tokens", code=1))
    assert "Pass --skip-nulls to" in line
