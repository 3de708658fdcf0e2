"""The sequences file of many corpora, which we and Megatron-Core both read."""

import json
from pathlib import Path

import pytest

from tests.megatron.corpora.corpora import EXAMPLE, write_corpus
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, CorruptFileError, NoDataError
from torch_dataloader_utils.megatron.corpora import (
    CorpusFacts,
    describe_corpus,
    merge_corpora,
    read_sequences,
    write_sequences,
)


def test_one_file_serves_both_sides(tmp_path: Path) -> None:
    prefixes = [write_corpus(tmp_path / name, EXAMPLE) for name in ("b", "a")]
    write_sequences(prefixes, tmp_path / "s.json")
    content = json.loads((tmp_path / "s.json").read_bytes())
    assert [content[prefix] for prefix in prefixes] == [[3, 3], [3, 3]]
    facts = read_sequences(tmp_path / "s.json")
    assert facts == {prefix: describe_corpus(prefix) for prefix in prefixes}
    assert facts[prefixes[0]].token_count == 9


def test_prefixes_may_be_paths(tmp_path: Path) -> None:
    prefixes = [write_corpus(tmp_path / name, EXAMPLE) for name in ("a", "b")]
    write_sequences([Path(prefixes[0]), *prefixes], tmp_path / "s.json")
    assert list(read_sequences(tmp_path / "s.json")) == prefixes
    for no_list in (prefixes[0], Path(prefixes[0]), None):
        with pytest.raises(ConfigTypeError, match="pass a list of prefixes"):
            write_sequences(no_list, tmp_path / "s.json")  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match="5: pass a path"):
        write_sequences([5], tmp_path / "s.json")  # type: ignore[list-item]


def test_a_file_of_the_other_side_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"/data/c": [3, 3]}')
    assert read_sequences(tmp_path / "s.json") == {"/data/c": CorpusFacts(sequence_count=3, document_count=3)}


def test_the_file_is_local_and_no_signature_is_repeated(tmp_path: Path) -> None:
    url = "https://host/s.json?X-Amz-Signature=hunter2"
    prefix = write_corpus(tmp_path / "a", EXAMPLE)
    with pytest.raises(ConfigError, match=r"^path='https://host/s\.json' is the URL of a store: give"):
        write_sequences([prefix], url)
    with pytest.raises(ConfigError, match=r"^path='https://host/s\.json' is the URL of a store: give"):
        read_sequences(url)
    with pytest.raises(ConfigTypeError, match=r"^path_prefixes='https://host/s\.json': pass a list"):
        write_sequences(url, tmp_path / "s.json")
    with pytest.raises(ConfigTypeError, match=r"^path_prefixes='https://host/s\.json': pass a list"):
        merge_corpora(url, str(tmp_path / "b"))


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 3}', '{"a": [1]}', '{"a": [1, -1]}', '{"a": ["x", 1]}'])
def test_what_is_no_sequences_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(CorruptFileError):
        read_sequences(tmp_path / "s.json")


def test_a_missing_sequences_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match=r"no sequences file .*none\.json\. Check the path"):
        read_sequences(tmp_path / "none.json")


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"torch_dataloader_utils": {"version": 3, "corpora": {}}}')
    with pytest.raises(ConfigError, match="version 3"):
        read_sequences(tmp_path / "s.json")
