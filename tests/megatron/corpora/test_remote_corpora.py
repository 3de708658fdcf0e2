"""Corpora read from a store: how many requests, which version of the files, which errors, and no secret anywhere."""

import pickle
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.megatron.corpora.corpora import EXAMPLE, write_corpus, write_lengths
from tests.store.moto_server import Failure, MotoS3
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import ConfigError, FileChangedError, NoDataError, StoreError
from torch_dataloader_utils.megatron.corpora import (
    GPTDataset,
    GPTDatasetConfig,
    IndexedDataset,
    IndexedDatasetBuilder,
    Split,
    describe_corpus,
    read_sequences,
    write_sequences,
)


def _upload(s3: MotoS3, prefix: str, name: str) -> str:
    for ending in ("idx", "bin"):
        s3.put(f"{name}.{ending}", Path(f"{prefix}.{ending}").read_bytes())
    s3.requests.clear()
    return f"s3://bucket/{name}"


@pytest.fixture
def remote(s3: MotoS3, tmp_path: Path) -> str:
    return _upload(s3, write_corpus(tmp_path / "example", EXAMPLE), "example")


def _reads(s3: MotoS3) -> list[tuple[str, str]]:
    return [(path.removesuffix("?"), span) for method, path, span in s3.requests if method == "GET"]


def test_opening_reads_the_header_only(s3: MotoS3, s3_access: StoreAccess, remote: str) -> None:
    dataset = IndexedDataset(remote, storage_options=s3_access)
    assert (len(dataset), dataset.dtype.name, dataset.token_count) == (3, "uint16", 9)
    assert s3.counts() == {"GET": 1, "HEAD": 2}
    assert _reads(s3) == [("/bucket/example.idx", "bytes=0-33")]
    dataset.get_parts([(0, 1, 1), (2, 0, 2)])
    # The whole index, and neighbouring parts of a sample, are one request each; nothing is looked up again.
    assert _reads(s3)[1:] == [("/bucket/example.idx", "bytes=34-93"), ("/bucket/example.bin", "bytes=2-13")]
    assert s3.counts() == {"GET": 3, "HEAD": 2}


def test_a_bin_that_is_replaced_during_training_is_an_error(
    s3: MotoS3, s3_access: StoreAccess, remote: str, tmp_path: Path
) -> None:
    dataset = IndexedDataset(remote, storage_options=s3_access)
    assert dataset[0].tolist() == [1, 2, 3]
    s3.put("example.bin", bytes(18))
    with pytest.raises(FileChangedError, match=r"example\.bin is not the file that was planned"):
        dataset[0]
    s3.client.delete_object(Bucket="bucket", Key="example.bin")
    with pytest.raises(FileChangedError, match="is gone"):
        dataset[0]


def test_an_index_that_is_replaced_before_its_first_use_is_an_error(
    s3: MotoS3, s3_access: StoreAccess, remote: str
) -> None:
    dataset = IndexedDataset(remote, storage_options=s3_access)
    s3.put("example.idx", s3.get("example.idx")[:-8] + bytes(8))
    with pytest.raises(FileChangedError, match=r"example\.idx"):
        _ = dataset.index


@pytest.mark.slow
def test_requests_that_fail_are_sent_again(
    s3: MotoS3, s3_access: StoreAccess, remote: str, caplog: pytest.LogCaptureFixture
) -> None:
    s3.failures += [Failure("HEAD", "idx", count=1), Failure("GET", "idx", count=2), Failure("GET", "bin", count=1)]
    assert [each.tolist() for each in IndexedDataset(remote, storage_options=s3_access)[:]] == [
        [1, 2, 3],
        [4, 5],
        [9, 8, 7, 6],
    ]
    assert "cannot read yet (HTTP 503 SlowDown" in caplog.text


def test_requests_that_fail_for_good_are_store_errors(s3: MotoS3, s3_access: StoreAccess, remote: str) -> None:
    s3.failures.append(Failure("GET", "example", status="403 Forbidden", code="AccessDenied"))
    with pytest.raises(StoreError, match=r"s3://bucket/example\.idx: no permission to read"):
        IndexedDataset(remote, storage_options=s3_access)
    with pytest.raises(NoDataError, match=r"none\.idx does not exist.*named by its prefix"):
        IndexedDataset("s3://bucket/none", storage_options=s3_access)
    assert not IndexedDataset.exists("s3://bucket/none", storage_options=s3_access)
    assert IndexedDataset.exists(remote, storage_options=s3_access)


def test_a_corpus_cannot_be_written_or_merged_in_place_in_a_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is the URL of a store"):
        IndexedDatasetBuilder("s3://bucket/out.bin")


@pytest.mark.slow
def test_expired_credentials_are_renewed(s3: MotoS3, remote: str) -> None:
    options, credentials, asked = s3.expiring()
    dataset = IndexedDataset(remote, storage_options=options, credentials=credentials)
    s3.failures.append(Failure("GET", "bin", count=1, status="400 Bad Request", code="ExpiredToken"))
    assert dataset[1].tolist() == [4, 5]
    assert len(asked) == 2


@pytest.mark.slow
def test_secrets_are_shown_nowhere(s3: MotoS3, remote: str, s3_access: StoreAccess) -> None:
    options = {**s3.options, "secret": "canary"}
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=4, blend=([remote], None), split="1,0,0", storage_options=options
    )
    dataset = IndexedDataset(remote, storage_options=options)
    for shown in (config, replace(config, random_seed=2), asdict(config), dataset, vars(dataset), dataset.identities):
        assert "canary" not in repr(shown)
    copy = pickle.loads(pickle.dumps(config))
    assert copy.access.client_options()["secret"] == "canary"


def test_a_copy_is_held_to_the_same_version_without_looking_it_up(
    s3: MotoS3, s3_access: StoreAccess, remote: str
) -> None:
    pickled = pickle.dumps(IndexedDataset(remote, storage_options=s3_access))
    s3.requests.clear()
    copy = pickle.loads(pickled)
    assert s3.counts() == {}
    assert copy[2].tolist() == [9, 8, 7, 6]
    assert s3.counts() == {"GET": 3}
    s3.put("example.bin", bytes(18))
    with pytest.raises(FileChangedError, match=r"example\.bin"):
        pickle.loads(pickled)[0]


def test_what_a_sequences_file_knows_is_not_looked_up(
    s3: MotoS3, s3_access: StoreAccess, remote: str, tmp_path: Path
) -> None:
    write_sequences([remote], tmp_path / "sequences.json", storage_options=s3_access)
    facts = read_sequences(tmp_path / "sequences.json")[remote]
    assert facts == describe_corpus(remote, storage_options=s3_access)
    s3.requests.clear()
    dataset = IndexedDataset(remote, storage_options=s3_access, facts=facts)
    assert (len(dataset), dataset.token_count) == (3, 9)
    assert s3.counts() == {}
    assert dataset[1].tolist() == [4, 5]
    assert s3.counts() == {"GET": 3}
    s3.put("example.idx", s3.get("example.idx")[:-8] + bytes(8))
    with pytest.raises(FileChangedError, match="sequences file"):
        _ = IndexedDataset(remote, storage_options=s3_access, facts=facts)[0]


@pytest.fixture
def samples(s3: MotoS3, tmp_path: Path) -> tuple[GPTDataset, GPTDataset]:
    """The same samples from the local disk and from the store."""
    prefix = write_lengths(tmp_path / "long", [5, 9, 2, 7, 11, 3])
    config = GPTDatasetConfig(
        random_seed=7,
        sequence_length=4,
        blend=([prefix], None),
        split="1,0,0",
        create_attention_mask=False,
        path_to_cache=tmp_path / "cache",
        storage_options=s3.options,
    )
    made = []
    for path in (prefix, _upload(s3, prefix, "long")):
        corpus = GPTDataset.build_low_level_dataset(path, config)
        made.append(GPTDataset(corpus, path, range(6), None, Split.train, config))
    return made[0], made[1]


@pytest.mark.full
@pytest.mark.processes
def test_spawned_workers_give_the_samples_of_the_local_corpus(
    s3: MotoS3, samples: tuple[GPTDataset, GPTDataset]
) -> None:
    local, remote = samples
    s3.requests.clear()
    loader = DataLoader(remote, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    for sample, wanted in zip(loader, DataLoader(local, batch_size=None), strict=True):
        assert np.array_equal(sample["tokens"], wanted["tokens"])
    assert set(s3.counts()) == {"GET"}
