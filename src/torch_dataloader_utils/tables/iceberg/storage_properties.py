"""Storage properties of Iceberg catalogs as options of fsspec's clients.

Source: the property names in pyiceberg's documentation, "FileIO".
"""

from collections.abc import Mapping
from typing import Any

_S3 = {
    "key": ("s3.access-key-id", "client.access-key-id"),
    "secret": ("s3.secret-access-key", "client.secret-access-key"),
    "token": ("s3.session-token", "client.session-token"),
    "profile": ("s3.profile-name", "client.profile-name"),
}
_GCS = {
    "token": ("gcs.oauth2.token",),
    "project": ("gcs.project-id",),
    "endpoint_url": ("gcs.service.host",),
}
_AZURE = {
    "connection_string": ("adls.connection-string",),
    "account_name": ("adls.account-name",),
    "account_key": ("adls.account-key",),
    "sas_token": ("adls.sas-token",),
    "tenant_id": ("adls.tenant-id",),
    "client_id": ("adls.client-id",),
    "client_secret": ("adls.client-secret",),
    "account_host": ("adls.account-host",),
}

_AZURE_SIGNATURE = "adls.sas-token."

# Names of earlier releases of pyiceberg and of boto3, each with pyiceberg's present name.
_OLD_NAMES = {
    "region_name": "client.region",
    "aws_access_key_id": "client.access-key-id",
    "aws_secret_access_key": "client.secret-access-key",
    "aws_session_token": "client.session-token",
    "profile_name": "client.profile-name",
}


def with_present_names(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return catalog properties with boto3's names (region_name, ...) replaced by pyiceberg's present names."""
    renamed = dict(properties)
    for old, new in _OLD_NAMES.items():
        if old in renamed:
            value = renamed.pop(old)
            renamed.setdefault(new, value)
    return renamed


def storage_options(properties: Mapping[str, Any], scheme: str) -> dict[str, Any]:
    """Return the options for the fsspec client of `scheme` that match the catalog's properties.

    Properties of other schemes are left out; so are empty properties. Remote signing has no counterpart in fsspec.
    """
    match scheme:
        case "s3" | "s3a" | "s3n":
            return _s3_options(properties)
        case "gs" | "gcs":
            return _chosen(properties, _GCS)
        case "abfs" | "abfss" | "az" | "adl" | "wasb" | "wasbs":
            return _azure_options(properties)
        case _:
            return {}


def _s3_options(properties: Mapping[str, Any]) -> dict[str, Any]:
    options = _chosen(properties, _S3)
    client = _chosen(properties, {"endpoint_url": ("s3.endpoint",), "region_name": ("s3.region", "client.region")})
    config: dict[str, Any] = {}
    for name, key in (("connect_timeout", "s3.connect-timeout"), ("read_timeout", "s3.request-timeout")):
        if properties.get(key):
            config[name] = float(properties[key])
    if properties.get("s3.proxy-uri"):
        config["proxies"] = dict.fromkeys(("http", "https"), properties["s3.proxy-uri"])
    if _is_true(properties.get("s3.force-virtual-addressing")):
        config["s3"] = {"addressing_style": "virtual"}
    if _is_true(properties.get("s3.anonymous")):
        options["anon"] = True
    return options | {name: value for name, value in (("client_kwargs", client), ("config_kwargs", config)) if value}


def _azure_options(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of adlfs. A signature may be under the name of its account, "adls.sas-token.<account>.dfs...".

    Without an account name, the first account that has a signature is taken.
    """
    options = _chosen(properties, _AZURE)
    by_account = {
        name.removeprefix(_AZURE_SIGNATURE).partition(".")[0]: token
        for name, token in properties.items()
        if name.startswith(_AZURE_SIGNATURE) and token
    }
    account = options.get("account_name", next(iter(by_account), None))
    if account in by_account:
        options = {"account_name": account, "sas_token": by_account[account]} | options
    return options


def _chosen(properties: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found = {
        option: next((properties[key] for key in keys if properties.get(key)), None) for option, keys in names.items()
    }
    return {option: value for option, value in found.items() if value is not None}


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes")
