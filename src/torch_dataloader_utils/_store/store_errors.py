"""The one place where errors of storage clients become errors of ours.

Clients raise OSError or their own classes (botocore, aiohttp). Each error becomes one of four errors of ours, with the
file, the action, and what to do.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fsspec import get_filesystem_class

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._runtime.system_limits import limit_error
from torch_dataloader_utils._store.censor import censored_text
from torch_dataloader_utils._store.diagnosis import Diagnosis, Kind, ShortReplyError, WholeReplyError
from torch_dataloader_utils._store.identity import short_read
from torch_dataloader_utils._store.retry import Attempts
from torch_dataloader_utils.errors import (
    ConfigError,
    FileChangedError,
    LoaderError,
    MissingDependencyError,
    NoDataError,
    StoreError,
    UnsupportedFeatureError,
)

# Packages, not extras of this library: on the package index this library's name belongs to another library.
_CLIENTS = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "adl": "adlfs",
    "hf": "huggingface_hub",
}

# Limit for the text of a client's own message, in letters.
_MOST_CAUSE_LETTERS = 300

_OTHER_MEMORY = (
    " If nobody deleted it: worker processes that are not forked have their own memory; use num_workers=0 or "
    'multiprocessing_context="fork".'
)


@contextmanager
def translated(path: str, action: str, identity: str | None = None) -> Iterator[None]:
    """Turn any error of one storage call into an error of ours, with the cause chained.

    Put only the call into the block: any other error there would look like an error of the store.
    """
    handled = sys.exception()
    try:
        yield
    except LoaderError:
        raise
    except Exception as error:
        raise store_error(error, path, action, identity, handled=handled) from error


def store_error(
    error: BaseException,
    path: str,
    action: str,
    identity: str | None = None,
    *,
    diagnosis: Diagnosis | None = None,
    attempts: Attempts | None = None,
    handled: BaseException | None = None,
) -> LoaderError:
    """Return the error of ours that says what `error` means for `path`.

    identity: Planned identity, if any: a planned file that is gone has changed, any other file does not exist.
    diagnosis, attempts: Of a remote request that failed for good.
    handled: Exception that the caller was handling before the call; see `causes`.
    """
    if limit := limit_error(error, f"{redact(path)}: cannot {action}", handled=handled):
        return limit
    cause = failure_text(error, path, diagnosis, attempts)
    kind = None if diagnosis is None else diagnosis.kind
    match error:
        case _ if kind is Kind.CHANGED:
            return _replaced(path, cause, identity)
        case _ if diagnosis is not None and diagnosis.unreached:
            why = ", a name that is not known here" if diagnosis.unreached == "name" else ""
            return StoreError(
                f"{redact(path)}: cannot {action}, no connection to {diagnosis.host or 'its server'}{why} ({cause}). "
                "Check the address, the network and the proxy settings, then try again."
            )
        case ShortReplyError():
            return short_read(path, cause)
        case WholeReplyError():
            return StoreError(
                f"{redact(path)}: cannot {action}, the server does not support range requests ({cause}). Serve the "
                "file from a server that does, such as an object store or nginx, or copy it to this machine."
            )
        case IsADirectoryError() if identity is None:
            return ConfigError(f"{redact(path)} is a directory. Pass the path of a file inside the directory.")
        case FileNotFoundError() | NotADirectoryError() if _says_gone(diagnosis):
            return _missing(path, was_planned=identity is not None)
        case _ if diagnosis is not None and diagnosis.status in (404, 410):  # obstore, while it lists
            return _missing(path, was_planned=identity is not None)
        case _ if kind in (Kind.EXPIRED, Kind.MAYBE_EXPIRED):
            return _expired(path, action, cause, is_sure=kind is Kind.EXPIRED)
        case _ if diagnosis is not None and diagnosis.code == "InvalidObjectState":  # a 403, whatever the rights
            return StoreError(
                f"{redact(path)}: cannot {action}, the object is archived ({cause}). Restore it, or copy it to a "
                "storage class that can be read at once, then try again."
            )
        case _ if diagnosis is not None and (diagnosis.status == 301 or diagnosis.code == "PermanentRedirect"):
            return _elsewhere(path, action, cause, diagnosis.region)
        case _ if isinstance(error, PermissionError) or (diagnosis is not None and diagnosis.status == 403):
            return StoreError(
                f"{redact(path)}: no permission to {action} ({cause}). Check storage_options and the rights of the "
                "account that runs this job."
            )
        case ImportError():
            return _no_client(path, cause)
        case _ if type(error).__name__ == "InvalidPathError":  # of obstore
            return UnsupportedFeatureError(
                f"{redact(path)}: cannot {action}, obstore does not take the name of a file ({cause}). Use "
                'RemoteOptions(backend="fsspec"), or rename the file.'
            )
        case TypeError() if "unexpected keyword argument" in str(error):
            return ConfigError(
                f"{redact(path)}: cannot {action}, its client does not know one of storage_options ({cause}). Pass "
                "what the fsspec client takes, such as key, secret and endpoint_url of s3fs; names of other libraries, "
                "such as AWS_ACCESS_KEY_ID, are not known."
            )
        case _:
            return StoreError(
                f"{redact(path)}: cannot {action} ({cause}). The storage refused or failed; check that it can be "
                "reached with these storage_options, then try again."
            )


def _says_gone(diagnosis: Diagnosis | None) -> bool:
    """Return whether a "file not found" is true: fsspec's web client raises it for any failure."""
    return diagnosis is None or (diagnosis.kind is Kind.FINAL and diagnosis.status in (0, 404, 410))


def _elsewhere(path: str, action: str, cause: str, region: str) -> StoreError:
    where = f"in region {region}" if region else "in another region or at another address"
    return StoreError(
        f"{redact(path)}: cannot {action}, the bucket is {where} ({cause}). Pass its region, such as storage_options="
        f"{{'client_kwargs': {{'region_name': '{region or 'eu-central-1'}'}}}}, or the endpoint_url."
    )


def _replaced(path: str, cause: str, identity: str | None) -> FileChangedError:
    planned = f", planned {identity}" if identity else ""
    return FileChangedError(
        f"{redact(path)} is not the file that was planned ({cause}{planned}). It was replaced or cut short; plan the "
        "data set again."
    )


def _missing(path: str, *, was_planned: bool) -> FileChangedError | NoDataError:
    where = redact(path)
    if was_planned:
        hint = _OTHER_MEMORY if path.rpartition("::")[2].startswith("memory://") else ""
        return FileChangedError(f"{where} is gone; it was there when the plan was made. Plan the data set again.{hint}")
    return NoDataError(f"{where} does not exist. Check the spelling, or list its parent directory.")


def dead_link(path: str) -> NoDataError:
    """Return the error for a link that leads nowhere, such as git-annex's and DVC's for files that were not fetched."""
    return NoDataError(
        f"{redact(path)} is a broken link: its target does not exist. Restore the target, remove the link, or choose "
        "the files by a pattern that leaves it out."
    )


def _expired(path: str, action: str, cause: str, *, is_sure: bool) -> StoreError:
    where = redact(path)
    if is_sure:
        return StoreError(
            f"{where}: cannot {action}, the credentials have expired ({cause}). Pass credentials=, a function that "
            "returns new credentials; if you did, it returned expired credentials."
        )
    return StoreError(
        f"{where}: no permission to {action}, or the credentials have expired ({cause}). Check storage_options "
        "and the rights of the account that runs this job; credentials= takes a function that returns new credentials."
    )


def _no_client(path: str, cause: str) -> MissingDependencyError:
    scheme = _without_client(path)
    client = _CLIENTS.get(scheme)
    install = f"Run: pip install {client}" if client else "Install the package that provides it."
    return MissingDependencyError(f"{redact(path)}: the client for {scheme}:// is not installed ({cause}). {install}")


def _without_client(path: str) -> str:
    """Return the scheme of a chained URL's part without an importable client; fsspec begins with the last part."""
    schemes = [part.partition("://")[0] for part in reversed(path.split("::"))]
    for scheme in schemes:
        try:
            get_filesystem_class(scheme)
        except ImportError:
            return scheme
        except ValueError:  # a path of the local archive at the end of the chain
            continue
    return next((scheme for scheme in schemes if scheme in _CLIENTS), schemes[-1])


def failure_text(
    error: BaseException, path: str, diagnosis: Diagnosis | None = None, attempts: Attempts | None = None
) -> str:
    """Return the part of a message in brackets, without secrets: what failed, how often, and for how long."""
    return _tried(diagnosis, attempts) + _cause(error, path)


def _tried(diagnosis: Diagnosis | None, attempts: Attempts | None) -> str:
    """Return text such as "HTTP 503 SlowDown, request 4C1F; 9 attempts in 31.2 s; "."""
    parts = []
    if diagnosis is not None and diagnosis.status:
        reply = f"HTTP {diagnosis.status} {diagnosis.code}".strip()
        parts.append(f"{reply}, request {diagnosis.request_id}" if diagnosis.request_id else reply)
    if attempts is not None:
        plural = "s" if attempts.count != 1 else ""
        parts.append(f"{attempts.count} attempt{plural} in {attempts.elapsed_seconds:.1f} s")
    return "".join(f"{part}; " for part in parts)


def unknown_scheme(path: str, scheme: str) -> ConfigError:
    """Return the error for a URL scheme that no storage client handles."""
    return ConfigError(f"{redact(path)}: no storage client knows {scheme}://. Use a local path or an fsspec URL.")


def _cause(error: BaseException, path: str) -> str:
    if isinstance(error, FileNotFoundError):
        error = error.__cause__ or error  # of fsspec's web client, see `_says_gone`
    text = censored_text(str(error).replace(path, redact(path))) or "no message"
    if len(text) > _MOST_CAUSE_LETTERS:
        text = f"{text[:_MOST_CAUSE_LETTERS]}..."
    return f"{type(error).__name__}: {text}"
