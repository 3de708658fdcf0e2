import json
import pickle

import fsspec
import pytest
from fsspec.registry import _registry, known_implementations

from torch_dataloader_utils._store import Secret, has_credentials, open_store, redact
from torch_dataloader_utils._store.faults import store_error
from torch_dataloader_utils.errors import ConfigError, FileChangedError, MissingDependencyError, StoreError

CANARY = "canary-6f1d"


def test_a_secret_shows_in_no_text_and_survives_the_way_to_a_worker():
    secret = Secret({"key": CANARY})
    assert CANARY not in f"{secret} {secret!r} {secret:>10} {[secret]}"
    with pytest.raises(TypeError):
        json.dumps(secret)
    assert pickle.loads(pickle.dumps(secret)).reveal() == {"key": CANARY}


def test_a_store_shows_no_storage_options_whether_they_come_plain_or_wrapped():
    for options in ({"password": CANARY}, Secret({"password": CANARY})):
        store = open_store("memory://a", options)
        assert CANARY not in repr(store)
        assert store.options.reveal() == {"password": CANARY}


def test_urls_lose_passwords_and_signatures_in_messages():
    assert redact(f"https://me:{CANARY}@host/a.parquet?sig={CANARY}") == "https://host/a.parquet"
    assert redact("abfs://container@account.dfs.core/a") == "abfs://container@account.dfs.core/a"
    assert redact("s3://b/part-?.parquet") == "s3://b/part-?.parquet"
    assert redact(f"simplecache::ftp://me:{CANARY}@host/a") == "simplecache::ftp://host/a"
    assert redact("github://org:repo@main/a") == "github://org:repo@main/a"
    assert has_credentials("https://host/a?sig=1")
    assert not has_credentials("s3://b/a")


def test_an_error_repeats_no_signature_of_its_cause():
    url = f"https://host/a.parquet?sig={CANARY}"
    for cause in (OSError(f"cannot GET {url}"), OSError(f"GET /a.parquet?sig={CANARY} failed"), PermissionError(url)):
        error = store_error(cause, url, "read")
        assert isinstance(error, StoreError)
        assert CANARY not in str(error)


def test_a_password_in_the_url_is_refused():
    with pytest.raises(ConfigError, match="storage_options") as caught:
        open_store(f"ftp://me:{CANARY}@host/a")
    assert CANARY not in str(caught.value)


def test_a_missing_client_names_its_extra():
    error = store_error(ImportError("no s3fs"), "s3://b/k", "open")
    assert isinstance(error, MissingDependencyError)
    assert 'pip install "torch-dataloader-utils[s3]"' in str(error)


@pytest.mark.parametrize("url", ["sftp://host/a", "sftp://a::z.zip", "simplecache::sftp://host/a"])
def test_a_missing_client_without_an_extra_is_named_by_its_own_scheme(monkeypatch, url):
    about = {"class": "no_such_module.Client", "err": "Client requires no_such_module"}
    monkeypatch.delitem(_registry, "sftp", raising=False)
    monkeypatch.setitem(known_implementations, "sftp", about)
    with pytest.raises(MissingDependencyError) as caught:
        open_store(url).stat(url)
    says = (
        "the client for sftp:// is not installed (ImportError: Client requires no_such_module). Install what it needs."
    )
    assert str(caught.value) == f"{url}: {says}"


def test_dicts_in_storage_options_stay_as_the_caller_wrote_them(tmp_path):
    session = object()
    options = {"filecache": {"cache_storage": str(tmp_path)}, "memory": {"session": session}}
    fsspec.filesystem("memory").pipe_file("/secrets/a", b"1")
    url = "filecache::memory://secrets/a"
    assert open_store(url, options).stat(url).size == 1
    assert options == {"filecache": {"cache_storage": str(tmp_path)}, "memory": {"session": session}}


def test_a_memory_file_that_is_gone_says_that_each_process_has_its_own():
    for url in ("memory://secrets/gone", "simplecache::memory://secrets/gone"):
        with pytest.raises(FileChangedError, match="a memory of their own; use num_workers=0"):
            open_store(url).ranges(url, [(0, 1)], "1-1")


def test_an_unknown_scheme_is_a_config_error():
    with pytest.raises(ConfigError, match="nope://"):
        open_store("nope://a").stat("nope://a")


def test_a_client_whose_module_fails_is_a_store_error(monkeypatch):
    monkeypatch.setitem(known_implementations, "broken", {"class": "fsspec.NoSuchClient"})
    with pytest.raises(StoreError, match="NoSuchClient"):
        open_store("broken://host/a").list_files("broken://host/a")
