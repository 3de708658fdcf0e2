"""Choose between obstore and s3fs for S3 where the user chose neither: obstore, if it does just what s3fs would do.

    storage_options, environment, configuration of AWS   ──►   options of obstore that mean the same
                                                         ──►   NotHonouredError: s3fs reads, and the log says why

Google Cloud Storage and Azure keep fsspec's clients: obstore lists no generations, which are identities of gcsfs.
"""

import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import fsspec

from torch_dataloader_utils._store.diagnosis import Diagnosis
from torch_dataloader_utils._store.obstore import PanicError, was_inherited

_log = logging.getLogger("torch_dataloader_utils.clients")

S3_SCHEMES = ("s3", "s3a")
_ACCESS_POINTS = tuple(f"{scheme}://arn:" for scheme in S3_SCHEMES)
VERSION = "?versionId="
"""Part of a URL before the version of an object, in s3fs's spelling."""

# As in pyproject.toml, which binds only those who install the extra.
_LEAST_OBSTORE = (0, 11)

_OPTIONS = frozenset({"key", "secret", "token", "anon", "endpoint_url", "client_kwargs"})
_CLIENT_KWARGS = frozenset({"endpoint_url", "region_name"})
# What botocore obeys and obstore does not know.
_CA_BUNDLE = "AWS_CA_BUNDLE"
_ENVIRONMENT = (_CA_BUNDLE, "AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
_PROFILE = frozenset({"ca_bundle", "endpoint_url", "s3", "services", "use_dualstack_endpoint", "use_fips_endpoint"})
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")

# Credentials that expire are asked for again before botocore itself would renew them at the last moment.
_MOST_CREDENTIAL_AGE = timedelta(minutes=5)

# botocore follows a bucket to its region.
_REDIRECTS = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed"})


class NotHonouredError(Exception):
    """Something that s3fs obeys and obstore cannot; the message names it."""


def uses_obstore(scheme: str, backend: str) -> bool:
    """Return whether obstore may read URLs of this scheme; with `backend="auto"` only S3, and only if it can be."""
    if backend != "auto":
        return backend == "obstore"
    return scheme in S3_SCHEMES and _has_obstore()


@cache
def _has_obstore() -> bool:
    """Return whether an obstore is installed whose listings are complete and whose reads have a time limit."""
    try:
        found = version("obstore").split(".")
    except PackageNotFoundError:
        return False
    return all(part.isdigit() for part in found[:2]) and tuple(map(int, found[:2])) >= _LEAST_OBSTORE


@cache
def has_s3fs() -> bool:
    """Return whether s3fs can take over."""
    return find_spec("s3fs") is not None


def names_more_than_a_key(path: str) -> bool:
    """Return whether s3fs finds more in the URL than bucket and key: an access point, or a version."""
    return path.startswith(_ACCESS_POINTS) or VERSION in path


def obstore_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of obstore that mean what `options`, environment and configuration mean to s3fs.

    Raises:
        NotHonouredError: something means nothing to obstore. Errors of botocore, which finds credentials as for s3fs.
    """
    if was_inherited():
        raise NotHonouredError("this process was forked from a process that had used obstore")
    kwargs = options.get("client_kwargs") or {}
    unknown = sorted({*options} - _OPTIONS) + sorted({*kwargs} - _CLIENT_KWARGS)
    if unknown:
        raise NotHonouredError(f"obstore does not know {', '.join(unknown)} of storage_options")
    if any(fsspec.config.conf.get(scheme) for scheme in S3_SCHEMES):
        raise NotHonouredError("the configuration of fsspec has options for s3")
    session = import_module("botocore.session").get_session()
    variable = next(filter(None, map(os.environ.get, _ENDPOINTS)), None)
    endpoint = kwargs.get("endpoint_url") or options.get("endpoint_url") or variable
    is_plain = str(endpoint).startswith("http://")
    others = [name for name in _ENVIRONMENT if os.environ.get(name) and not (is_plain and name == _CA_BUNDLE)]
    others += sorted(_PROFILE.intersection(session.get_scoped_config()))
    if others:
        raise NotHonouredError(f"obstore does not know {', '.join(others)} of AWS's configuration")
    region = kwargs.get("region_name") or session.get_config_variable("region")
    if not region and not endpoint:
        raise NotHonouredError("neither storage_options nor AWS's configuration name the region of the bucket")
    found = {"region": region or "us-east-1", "virtual_hosted_style_request": False}
    if endpoint:
        found |= {"endpoint": endpoint, "client_options": {"allow_http": is_plain}}
    if options.get("anon"):
        return found | {"skip_signature": True}
    return found | {"credential_provider": _provider(session, options)}


def _provider(session: Any, options: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    """Return a function that obstore calls for credentials: the user's, or what botocore finds for s3fs too."""
    key, secret, token = (options.get(name) for name in ("key", "secret", "token"))
    if key and secret:
        # A provider, since obstore would add a token of the environment to the user's key.
        return lambda: _credential(key, secret, token, None)
    credentials = None if key or secret or token else session.get_credentials()
    if credentials is None:
        raise NotHonouredError("no complete credentials were found")

    def frozen() -> dict[str, Any]:
        now = credentials.get_frozen_credentials()
        return _credential(now.access_key, now.secret_key, now.token, datetime.now(UTC) + _MOST_CREDENTIAL_AGE)

    return frozen


def _credential(key: str, secret: str, token: str | None, expires_at: datetime | None) -> dict[str, Any]:
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": expires_at}


def is_for_s3fs(error: BaseException, diagnosis: Diagnosis) -> str:
    """Return why s3fs should send a request on which obstore failed; "" if s3fs would fail too."""
    if type(error).__name__ == "InvalidPathError" or str(error).startswith("Could not parse path"):
        return "obstore does not take the name of an object"
    if isinstance(error, PanicError):
        return "obstore panicked"
    return "the bucket is in another region" if diagnosis.code in _REDIRECTS or diagnosis.status == 301 else ""


def log_fallback(address: str, reason: str) -> None:
    """Log that s3fs reads where obstore would be the default."""
    _log.info("%s is read by s3fs and not by obstore: %s", address, reason)
