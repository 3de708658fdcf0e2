"""Diagnose exceptions of storage clients: retry, renew credentials, file changed, or give up.

A diagnosis uses only what clients have in common (a status, a botocore response, a builtin base class), so that no
client has to be imported. Sources: "Error responses" of the S3 API; RFC 9110, sections 10.2.3 and 15.
"""

import errno
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Any, Literal

from torch_dataloader_utils._store.censor import is_malformed_reply
from torch_dataloader_utils.errors import causes


class Kind(Enum):
    """Meaning of a failure for the request, and so the reaction.

    TRANSIENT: sent again. WRONG_REPLY: sent again a few times. EXPIRED, MAYBE_EXPIRED: sent again once, with new
    credentials. CHANGED: the object is not the planned object. FINAL: everything else; given up.
    """

    TRANSIENT = auto()
    WRONG_REPLY = auto()
    EXPIRED = auto()
    MAYBE_EXPIRED = auto()
    CHANGED = auto()
    FINAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Kind of a failure, with the server's own words.

    status: HTTP status, 0 for none. code, request_id, region (of the bucket): "" where the server says nothing.
    unreached: "name" if the server's name is unknown, "server" if no connection could be made; "" otherwise. host: Name
        of the server that was not reached, if the client says it.
    """

    kind: Kind
    status: int = 0
    code: str = ""
    request_id: str = ""
    region: str = ""
    retry_after_seconds: float = 0.0
    unreached: Literal["", "name", "server"] = ""
    host: str = ""


class WrongReplyError(Exception):
    """Reply with another range or fewer bytes than requested; the message has both."""


class WholeReplyError(WrongReplyError):
    """Reply with the whole object, where a part was requested: the answer of servers without range requests."""


class ShortReplyError(WrongReplyError):
    """Reply with fewer or more bytes than the range, from a client that gives no reason."""


class OtherObjectError(Exception):
    """The object has another etag than planned; the message is the present etag."""


class StalledError(TimeoutError):
    """Reply that stopped coming."""


class OverdueError(StalledError):
    """Reply that was not complete when the time for its request was over."""


_EXPIRED_CODES = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidToken"}
)
# For rotated keys, but also for mistyped keys.
_MAYBE_EXPIRED_CODES = frozenset({"InvalidAccessKeyId"})
# Some of these codes come with status 400.
_TRANSIENT_CODES = frozenset({"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "IncompleteBody"})
_TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 529})
_TRANSIENT_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        "EAGAIN",
        "EBUSY",
        "ECONNABORTED",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTUNREACH",
        "ENETUNREACH",
        "EPIPE",
        "EREMOTEIO",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)
)
_UNKNOWN_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
_UNREACHED_ERRNOS = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
# Of httpx, aiohttp and botocore: a server that does not answer at all, whatever the reason.
_UNREACHED_NAMES = frozenset(
    {"ConnectTimeout", "ConnectTimeoutError", "ConnectionTimeoutError", "EndpointConnectionError"}
)
_OBSTORE_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_OBSTORE_WRONG_REPLY = re.compile(
    r"Received non-partial response|Requested \d+\.\.\d+, got|Content-(Range|Length) [Hh]eader"
)
# Classes of aiohttp, botocore, urllib3 and similar clients; their names are all that they share.
_TRANSIENT_NAMES = (
    "Connection",
    "Timeout",
    "Payload",
    "Disconnected",
    "IncompleteRead",
    "Streaming",
    "ClientOSError",
    "ConnectError",
    "ReadError",
    "RemoteProtocolError",
)
_CLIENTS = ("aiohttp", "botocore", "aiobotocore", "urllib3", "requests", "http", "httpx", "httpx2", "gcsfs", "azure")


def diagnose(error: BaseException, *, handled: BaseException | None = None) -> Diagnosis:
    """Return the diagnosis of `error`, or of its cause. handled: See `causes`."""
    chain = list(causes(error, handled))
    for each in chain:
        if type(each).__module__.startswith("obstore"):
            return _from_obstore(each)
    # Before any status: aiohttp gives these errors the status 400.
    if any(is_malformed_reply(each) for each in chain):
        return Diagnosis(kind=Kind.TRANSIENT)
    responses = [getattr(each, "response", None) for each in chain]
    for response in responses:
        if isinstance(response, Mapping):
            return _from_botocore(response)
    for each in chain:
        if isinstance(each, WrongReplyError):
            return Diagnosis(kind=Kind.WRONG_REPLY)
        if isinstance(each, OtherObjectError):
            return Diagnosis(kind=Kind.CHANGED)
        if _is_transient(each):
            return Diagnosis(kind=Kind.TRANSIENT, unreached=_unreached(chain), host=_host(chain))
        status = _status(each)
        if status:
            headers = getattr(each, "headers", None) or getattr(getattr(each, "response", None), "headers", None)
            after = headers.get("Retry-After") if isinstance(headers, Mapping) else None
            return Diagnosis(kind=_kind(status, ""), status=status, retry_after_seconds=_seconds(after))
    return Diagnosis(kind=Kind.FINAL)


def is_refusal(error: BaseException) -> bool:
    """Return whether a request was refused or found nothing: another try changes nothing, and the store is well."""
    if any(isinstance(cause, PermissionError | FileNotFoundError) for cause in causes(error)):
        return True
    diagnosis = diagnose(error)
    return diagnosis.kind in (Kind.EXPIRED, Kind.MAYBE_EXPIRED) or diagnosis.status in (401, 403, 404)


def _from_obstore(error: BaseException) -> Diagnosis:
    # Errors of obstore are text, with the body of the reply and without headers: Retry-After is not known.
    text = str(error)
    if found := _OBSTORE_STATUS.search(text):
        status, code, request_id = int(found[1]), _tagged("Code", text), _tagged("RequestId", text)
        # The same code as botocore gives to a reply without a body.
        code = code or (str(status) if "Error performing HEAD" in text else "")
        return Diagnosis(kind=_kind(status, code), status=status, code=code, request_id=request_id)
    if "redirect without LOCATION" in text:
        return Diagnosis(kind=Kind.FINAL, code="PermanentRedirect")
    if _OBSTORE_WRONG_REPLY.search(text):
        return Diagnosis(kind=Kind.WRONG_REPLY)
    return Diagnosis(kind=Kind.TRANSIENT if "HTTP error: " in text else Kind.FINAL)


def _tagged(name: str, text: str) -> str:
    found = re.search(f"<{name}>([^<]*)</{name}>", text)
    return found[1].strip() if found else ""


def _from_botocore(response: Mapping[str, Any]) -> Diagnosis:
    code = str(response.get("Error", {}).get("Code", ""))
    metadata = response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0) or (code if code.isdigit() else 0))
    headers = metadata.get("HTTPHeaders", {})
    return Diagnosis(
        kind=_kind(status, code),
        status=status,
        code=code,
        request_id=str(metadata.get("RequestId", "")),
        region=str(headers.get("x-amz-bucket-region", "")),
        retry_after_seconds=_seconds(headers.get("retry-after")),
    )


def _kind(status: int, code: str) -> Kind:
    if code in _EXPIRED_CODES or status == 401:
        return Kind.EXPIRED
    if code in _MAYBE_EXPIRED_CODES:
        return Kind.MAYBE_EXPIRED
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUSES:
        return Kind.TRANSIENT
    if status in (412, 416):
        return Kind.CHANGED
    # S3 answers 400 or 403 to expired tokens. A reply to HEAD has no body with a reason: botocore's code is the status.
    is_unsaid = code == str(status) or (status == 403 and not code)
    return Kind.MAYBE_EXPIRED if status in (400, 403) and is_unsaid else Kind.FINAL


def _status(error: BaseException) -> int:
    # Errors of httpx and requests have the status on their response.
    for owner in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            value = getattr(owner, name, None)
            if isinstance(value, int) and 400 <= value < 600:
                return value
    return 0


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError, EOFError, socket.gaierror)):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return True
    kind = type(error)
    is_client = kind.__module__.partition(".")[0] in _CLIENTS
    return is_client and any(name in kind.__name__ for name in _TRANSIENT_NAMES)


def _unreached(chain: Sequence[BaseException]) -> Literal["", "name", "server"]:
    if any(isinstance(each, socket.gaierror) and each.errno in _UNKNOWN_NAME for each in chain):
        return "name"
    is_unreached = any(
        (isinstance(each, OSError) and each.errno in _UNREACHED_ERRNOS)
        or isinstance(each, socket.gaierror)
        or type(each).__name__ in _UNREACHED_NAMES
        for each in chain
    )
    return "server" if is_unreached else ""


def _host(chain: Sequence[BaseException]) -> str:
    """Return the server's name in an error of aiohttp, or of httpx, which raises where it has no request."""
    for each in chain:
        with suppress(RuntimeError):
            host = getattr(each, "host", None) or getattr(getattr(each, "request", None), "url", None)
            if host:
                return str(getattr(host, "host", host))
    return ""


def _seconds(retry_after: Any) -> float:
    """Return the seconds of Retry-After, a number of seconds or a date."""
    text = str(retry_after or "")
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
