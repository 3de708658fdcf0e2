"""Passwords, signatures and storage options appear in no message, log, repr or pickle."""

import json
import pickle
import traceback
from functools import partial

import fsspec
import pytest
from fsspec.registry import _registry, known_implementations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._store import (
    RemoteOptions,
    RetryPolicy,
    Secret,
    StoreAccess,
    censor,
    has_credentials,
    open_store,
    redact,
)
from torch_dataloader_utils._store.access import without_secrets
from torch_dataloader_utils._store.store_errors import store_error
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    FileChangedError,
    LoaderError,
    MissingDependencyError,
    NoDataError,
    StoreError,
)

CANARY = "canary-6f1d"


def test_a_secret_shows_in_no_text_and_survives_the_way_to_a_worker():
    secret = Secret({"key": CANARY})
    assert CANARY not in f"{secret} {secret!r} {secret:>10} {[secret]}"
    with pytest.raises(TypeError):
        json.dumps(secret)
    assert pickle.loads(pickle.dumps(secret)).reveal() == {"key": CANARY}


@pytest.mark.parametrize(
    "options",
    [
        {"password": CANARY},
        {"client_kwargs": {"headers": {"Authorization": CANARY}}},
        {"proxy": f"http://me:{CANARY}@host"},
        {"mirrors": [f"http://me:{CANARY}@host", "http://host"]},
    ],
)
def test_a_secret_is_not_written_where_it_is_to_stay_out(options):
    with without_secrets("a store"):
        with pytest.raises(
            ConfigError, match=f"credentials {next(iter(options))} would be written into a store"
        ) as info:
            pickle.dumps(Secret(options))
        assert pickle.loads(pickle.dumps(Secret({"endpoint_url": "http://host:1"}))).reveal()
    assert CANARY not in str(info.value)


def test_a_store_shows_no_storage_options_whether_they_come_plain_or_wrapped():
    for options in ({"password": CANARY}, Secret({"password": CANARY})):
        store = open_store("memory://a", StoreAccess.of(options))
        assert CANARY not in repr(store)
        assert store.access.options.reveal() == {"password": CANARY}


def test_urls_lose_passwords_and_signatures_in_messages():
    assert redact(f"https://me:{CANARY}@host/a.parquet?sig={CANARY}") == "https://host/a.parquet"
    assert redact("abfs://container@account.dfs.core/a") == "abfs://container@account.dfs.core/a"
    assert redact("s3://b/part-?.parquet") == "s3://b/part-?.parquet"
    assert redact(f"simplecache::ftp://me:{CANARY}@host/a") == "simplecache::ftp://host/a"
    assert redact("github://org:repo@main/a") == "github://org:repo@main/a"
    assert redact(f"HTTPS://me:{CANARY}@host/a?sig={CANARY}") == "HTTPS://host/a"
    assert redact(f"s3://AKIA:half/{CANARY}@b/a@1.parquet") == "s3://b/a@1.parquet"
    assert redact("hdfs://host:9000/a@b:c@d") == "hdfs://host:9000/a@b:c@d"
    assert redact(f"az://c/a.parquet?sv=1&sig={CANARY}") == "az://c/a.parquet"
    assert redact(f"https://{CANARY}@host/a#access_token={CANARY}") == "https://host/a"
    assert redact(f"https://host/a;sig={CANARY}/b") == redact(f"https://host/a#sig={CANARY}") == "https://host/a"
    assert redact(f"az://c/a;sig={CANARY}") == "az://c/a"
    assert redact("s3://b/a#1;v=2.parquet") == "s3://b/a#1;v=2.parquet"
    access_point = "s3://arn:aws:s3:eu-central-1:123456789012:accesspoint/p/day@1/a.parquet"
    assert redact(access_point) == access_point
    assert has_credentials("https://host/a?sig=1")
    assert not has_credentials("s3://b/a")


def test_an_error_repeats_no_signature_of_its_cause():
    url = f"https://host/a.parquet?sig={CANARY}"
    for cause in (OSError(f"cannot GET {url}"), OSError(f"GET /a.parquet?sig={CANARY} failed"), PermissionError(url)):
        error = store_error(cause, url, "read")
        assert isinstance(error, StoreError)
        assert CANARY not in str(error)


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://me:{CANARY}@host/a",
        f"s3://AKIA:half/{CANARY}@b/a",
        f"az://c/a?sv=1&sig={CANARY}",
        f"simplecache::s3://b/a?X-Amz-Signature={CANARY}",
    ],
)
def test_a_password_in_the_url_is_refused_and_so_is_a_signature_that_its_client_does_not_take(url):
    with pytest.raises(ConfigError, match="storage_options") as caught:
        open_store(url)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"GET https://{CANARY}@host:8080/a@b.parquet refused",
        f"'https://host/a#access_token={CANARY}'",
        f"/a#access_token={CANARY}",
        f"https://host/a;sig={CANARY}?x=1",
        f"git+https://{CANARY}@host/a",
    ],
)
def test_clients_repeat_no_token_of_a_url(text):
    """Without options that name it, as of a user who put it into the URL alone."""
    error = OSError(text)
    error.__cause__ = FileNotFoundError(text)
    censor(error)
    assert CANARY not in f"{error} {error.__cause__}"


SIGNATURES = ["sig", "access_token", "X-Amz-Signature", "x-amz-security-token"]
NAMES = [*SIGNATURES, "token", "api_key", "AWSAccessKeyId", "auth"]
USERS = ["", f"{CANARY}@", f"me:{CANARY}@", f":{CANARY}@", f"{CANARY}:@"]
PLACES = [
    "https://{user}127.0.0.1:9{path}",
    "simplecache::http://{user}127.0.0.1:9{path}",
    "HTTP://{user}127.0.0.1:9{path}",
]
PLACES += ["zip://a.csv::https://{user}127.0.0.1:9{path}", "ftp://{user}127.0.0.1:9{path}", "s3://{user}b{path}"]


def everything(error: BaseException) -> str:
    """All that a traceback, a log or a pickle of an error and its causes shows."""
    shown = ["".join(traceback.format_exception(error))]
    while error is not None:
        shown.append(f"{error!r} {vars(error)}")
        error = error.__cause__ or error.__context__
    return " ".join(shown)


@settings(max_examples=effort(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(PLACES),
    st.sampled_from(USERS),
    st.sampled_from(["?", "#", ";", "&", "?a=1&", "#a=1&", ";a=1;", "?a=1;"]),
    st.sampled_from(NAMES),
    st.sampled_from(["", "/b.parquet", "?v=1", "#x"]),
)
def test_no_error_shows_a_secret_of_its_url_wherever_it_stands(caplog, place, user, separator, name, after):
    if "http" not in place.lower():  # a user without a password is no secret there, and keys may hold other words
        user, name = user and f"me:{CANARY}@", name if name in SIGNATURES else "sig"
    url = place.format(user=user, path=f"/a.parquet{separator}{name}={CANARY}{after}")
    access = StoreAccess.of(remote=RemoteOptions(retry=RetryPolicy(most_seconds=0), keep_footers=False))
    caplog.clear()
    for action in ("stat", "list_files"):
        with pytest.raises(LoaderError) as caught:
            getattr(open_store(url, access), action)(url)
        assert CANARY not in everything(caught.value)
    assert CANARY not in caplog.text + redact(url)


@pytest.mark.parametrize("text", [f"/tokeninfo?access_token={CANARY} (Caused by ...)", f"me:p@{CANARY}@host refused"])
def test_clients_repeat_no_secret_in_a_spelling_of_their_own(text):
    error = OSError(text)
    error.__cause__ = ValueError(f"b'Bearer {CANARY[6:]}\\n'")
    error.url = f"http://me:{CANARY}@host/%2F?sig={CANARY}"
    censor(error, {"headers": {"Authorization": f"Bearer {CANARY[6:]}\n"}})
    assert CANARY[6:] not in f"{error} {error.__cause__} {error.url}"


def test_errors_of_the_system_repeat_no_secret_in_their_text_or_file_name():
    error = FileNotFoundError(2, f"GET /a?sig={CANARY} with {CANARY}", f"https://me:{CANARY}@host/a?sig={CANARY}")
    censor(error, {"token": CANARY})
    assert str(error) == "[Errno 2] GET /a?sig=*** with ***: 'https://***@host/a'"
    plain = PermissionError(13, "refused")
    censor(plain)
    assert str(plain) == "[Errno 13] refused"


def test_replies_that_a_chained_error_holds_repeat_no_secret_at_any_depth():
    error = OSError("refused")
    error.__cause__ = ValueError({"Message": f"no access for {CANARY}"}, f"Bearer {CANARY}".encode())
    error.__cause__.response = {
        "Error": {"Code": "Forbidden", "Message": f"{CANARY} has no access", "Token": "t"},
        "ResponseMetadata": {"HTTPHeaders": {"x-denied": [f"https://host/a?sig={CANARY}"]}},
    }
    error.__cause__.__cause__ = PermissionError(13, f"key {CANARY}")
    error.__cause__.held = held = []
    held.append(held)
    censor(error, {"secret": CANARY})
    assert CANARY not in "".join(f"{e!r} {vars(e)}" for e in (error, error.__cause__, error.__cause__.__cause__))
    assert error.__cause__.response["Error"] == {"Code": "Forbidden", "Message": "*** has no access"}


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY", "HF_TOKEN"])
def test_errors_repeat_no_credential_of_the_environment(monkeypatch, name):
    monkeypatch.setenv(name, CANARY)
    error = OSError(f"the token {CANARY} is refused")
    error.response = {"Error": {"Message": f"refused: {CANARY}"}}
    censor(error)
    assert CANARY not in f"{error} {error.response} {store_error(OSError(CANARY), 's3://b/a', 'read')}"


def test_variables_that_no_client_reads_are_not_searched_for(monkeypatch):
    monkeypatch.setenv("SESSION_KEY", "shuffled")
    error = OSError("rows are shuffled")
    censor(error)
    assert str(error) == "rows are shuffled"


def test_names_repeat_no_control_characters_in_messages():
    assert redact("/data/\x1b[2J\x9b1m\nerror: a.parquet") == "/data/\\x1b[2J\\x9b1m\\nerror: a.parquet"
    assert redact("/data/é…ß.parquet") == "/data/é…ß.parquet"
    assert not has_credentials("s3://b/\x1b")


def test_a_long_reply_without_spaces_is_looked_through_once():
    error = OSError("a" * 10**6 + " " + "a:" * 10**6)
    censor(error)
    assert len(str(error)) == 3 * 10**6 + 1


def test_what_the_caller_handles_is_no_cause_and_stays_as_it_is():
    first = ConnectionError(f"https://host/a?sig={CANARY}")
    try:
        raise first
    except ConnectionError:
        with pytest.raises(NoDataError, match="does not exist"):
            open_store("memory://secrets/gone").stat("memory://secrets/gone")
    assert str(first) == f"https://host/a?sig={CANARY}"


@pytest.mark.parametrize("backend", ["fsspec", "obstore"])
def test_options_that_a_client_refuses_are_not_quoted(backend):
    pytest.importorskip("s3fs")
    pytest.importorskip(backend)
    remote = RemoteOptions(backend=backend, retry=RetryPolicy(most_seconds=0.01), keep_footers=False)
    endpoint = f"me:{CANARY}@127.0.0.1" if backend == "fsspec" else f"http://me:{CANARY}@127.0.0.1:9"
    for access in (
        StoreAccess.of({"key": "k", "secret": "s", "endpoint_url": endpoint}, remote=remote),
        StoreAccess.of(None, lambda: {"key": "k", "secret": "s", "endpoint_url": endpoint}, remote),
    ):
        with pytest.raises(StoreError) as caught:
            open_store("s3://b/a", access).stat("s3://b/a")
        assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_an_access_does_not_print_what_its_credentials_function_was_made_with():
    assert CANARY not in repr(StoreAccess.of(credentials=partial(dict, token=CANARY)))


def test_options_in_the_place_of_a_format_are_not_quoted():
    with pytest.raises(ConfigTypeError, match="format=a dict") as caught:
        scan_files("memory://a", {"key": CANARY})
    assert CANARY not in str(caught.value)


def test_a_missing_client_is_named_as_its_package_is_installed():
    error = store_error(ImportError("no s3fs"), "s3://b/k", "open")
    assert isinstance(error, MissingDependencyError)
    assert str(error).endswith("Run: pip install s3fs")


@pytest.mark.parametrize("url", ["sftp://host/a", "sftp://a::z.zip", "simplecache::sftp://host/a"])
def test_a_missing_client_without_an_extra_is_named_by_its_own_scheme(monkeypatch, url):
    about = {"class": "no_such_module.Client", "err": "Client requires no_such_module"}
    monkeypatch.delitem(_registry, "sftp", raising=False)
    monkeypatch.setitem(known_implementations, "sftp", about)
    with pytest.raises(MissingDependencyError) as caught:
        open_store(url).stat(url)
    says = (
        "the client for sftp:// is not installed (ImportError: Client requires no_such_module). "
        "Install the package that provides it."
    )
    assert str(caught.value) == f"{url}: {says}"


def test_dicts_in_storage_options_stay_as_the_caller_wrote_them(tmp_path):
    session = object()
    options = {"filecache": {"cache_storage": str(tmp_path)}, "memory": {"session": session}}
    fsspec.filesystem("memory").pipe_file("/secrets/a", b"1")
    url = "filecache::memory://secrets/a"
    assert open_store(url, StoreAccess.of(options)).stat(url).size == 1
    assert options == {"filecache": {"cache_storage": str(tmp_path)}, "memory": {"session": session}}


def test_a_memory_file_that_is_gone_says_that_each_process_has_its_own():
    for url in ("memory://secrets/gone", "simplecache::memory://secrets/gone"):
        with pytest.raises(FileChangedError, match="their own memory; use num_workers=0"):
            open_store(url).ranges(url, [(0, 1)], "1-1")


def test_an_unknown_scheme_is_a_config_error():
    with pytest.raises(ConfigError, match="nope://"):
        open_store("nope://a").stat("nope://a")


def test_a_client_whose_module_fails_is_a_store_error(monkeypatch):
    monkeypatch.setitem(known_implementations, "broken", {"class": "fsspec.NoSuchClient"})
    with pytest.raises(StoreError, match="NoSuchClient"):
        open_store("broken://host/a").list_files("broken://host/a")
