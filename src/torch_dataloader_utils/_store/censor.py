"""Remove credentials from errors of storage clients: values of options and environment, parts of URLs, and replies."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch_dataloader_utils.errors import causes

# Object stores answer a refused request with a document; some clients put the whole document into their errors.
_DOCUMENT = re.compile(r"<\?xml|<Error\b")
_CODE = re.compile(r"<Code>(.*?)</Code>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)

# obstore's text for a status, without the body of the reply.
_OBSTORE_STATUS = re.compile(r"(Server returned non-2xx status code: \d{3}[^:\n]*): (?!<\?xml|<Error\b).*", re.DOTALL)
# obstore's messages end with twenty lines that print its internal values, the reply among them.
_OBSTORE_VALUES = "\n\nDebug source:"

_KEPT = ("Code", "Message")

# Errors of HTTP parsers quote the bytes that they cannot parse, which may be bytes of a body.
_MALFORMED_NAMES = {
    "aiohttp": {"HttpProcessingError"},
    "botocore": {"ResponseParserError"},
    "h11": {"RemoteProtocolError"},
    "http": {"BadStatusLine", "IncompleteRead", "LineTooLong", "UnknownProtocol"},
    "httpcore": {"RemoteProtocolError"},
    "httpx": {"RemoteProtocolError"},
    "urllib3": {"HeaderParsingError"},
}
_MALFORMED_TEXT = "a malformed or incomplete reply"

_SECRET_NAME = re.compile("secret|token|credential|pass|key|header|auth|sas|connection_string", re.IGNORECASE)
# Environment variables from which clients of stores and catalogs take credentials: AWS_SESSION_TOKEN,
# AZURE_STORAGE_KEY. Clients do not read other variables, and the values of others may be words of any message.
_SECRET_VARIABLE = re.compile(
    r"(?:AWS|AZURE|GOOGLE|GCS|GCP|HF|HUGGING_FACE|FSSPEC|PYICEBERG)_(?:.*_)?"
    r"(?:KEY|KEY_ID|SECRET|TOKEN|PASSWORD|CREDENTIAL|SAS|CONNECTION_STRING)"
)
# Variables that choose credentials and are no secret.
_CHOICES = (
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_CLIENT_ID",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HF_HOME",
)
# We do not control the environment: a short value may be any word, and a path leads to a secret but is not a secret.
_SHORT_VALUE = 7

# Errors that contain themselves end at this level.
_MOST_LEVELS = 8

# Words of a secret up to this length stay in messages: they reveal nothing, and hiding every "a" would hide everything.
_SHORT_WORD = 2

# Clients change the spelling of URLs ("%2F" as "/", no host), so URLs are recognised by their form.
_WEB_QUERY = re.compile(r"(https?://[^\s?#'\"<>]*)[?#][^\s'\"<>]*", re.IGNORECASE)
_WEB_USER = re.compile(r"(https?://)[^\s/?#@'\"<>]*@", re.IGNORECASE)
_QUERY_VALUE = re.compile(r"([?&;#][\w.-]+=)[^&\s'\"<>)]+")
# Only from the start of a word: matching from each letter would take hours for a reply of 1 MB without spaces.
_PASSWORD = re.compile(r"(?<![^\s/@'\"])[^\s/:@'\"]*:[^\s/'\"]+@")

# The arguments that an OSError's text is made of, if it has more than one.
_OS_TEXTS = ("strerror", "filename", "filename2")


def censor(
    error: BaseException, options: Mapping[str, Any] | None = None, *, handled: BaseException | None = None
) -> None:
    """Remove secrets from `error` and its causes, in place: tracebacks, logs and pickles show these errors too.

    Removed are credentials among the values of `options` and of the environment, queries, fragments, users and
    passwords of URLs, and everything of a server's reply except its code and message; also inside dicts, lists and
    tuples of an error. A reply that is not valid HTTP is removed completely.

    handled: See `causes`.
    """
    chain = list(causes(error, handled))
    is_malformed = any(is_malformed_reply(each) for each in chain)
    for each in chain:
        if is_malformed:
            _remove_texts(each)
        _set(each, "args", tuple(_censored(arg, options) for arg in each.args))
        reply = getattr(each, "response", None)
        if isinstance(reply, dict) and isinstance(reply.get("Error"), dict):
            reply["Error"] = {name: value for name, value in reply["Error"].items() if name in _KEPT}
        vars(each).update({name: _censored(value, options) for name, value in vars(each).items()})
        if isinstance(each, OSError):
            for name in _OS_TEXTS:
                if isinstance(text := getattr(each, name), str):
                    _set(each, name, censored_text(text, options))


def _set(error: BaseException, name: str, value: Any) -> None:
    """Set an attribute of an error, even if its class forbids that (errors of Thrift are frozen)."""
    BaseException.__setattr__(error, name, value)


def is_malformed_reply(error: BaseException) -> bool:
    """Return whether a client could not parse a reply, or got only a part of it. Imports no client."""
    return not isinstance(error, ConnectionError) and any(
        kind.__name__ in _MALFORMED_NAMES.get(kind.__module__.partition(".")[0], ()) for kind in type(error).__mro__
    )


def _remove_texts(error: BaseException) -> None:
    _set(error, "args", tuple(_MALFORMED_TEXT if isinstance(arg, str | bytes) else arg for arg in error.args))
    texts = {name: _MALFORMED_TEXT for name, value in vars(error).items() if isinstance(value, str | bytes)}
    vars(error).update(texts)


def censored_text(text: str, options: Mapping[str, Any] | None = None) -> str:
    """Return the text without everything that `censor` removes.

    GET http://me:pw@host/a?sig=x failed    GET http://***@host/a failed
    """
    text = _without_reply(text)
    # Longest first: one secret may begin with another.
    for secret in sorted({*_secret_words(options or {}), *_environment_secrets()}, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _WEB_USER.sub(r"\1***@", _WEB_QUERY.sub(r"\1", text))
    return _PASSWORD.sub("***@", _QUERY_VALUE.sub(r"\1***", text))


def _censored(value: Any, options: Mapping[str, Any] | None, level: int = 0) -> Any:
    if isinstance(value, str):
        return censored_text(value, options)
    if type(value) is bytes:
        return censored_text(value.decode("latin-1"), options).encode("latin-1")
    if type(value) in (dict, list, tuple):
        if level == _MOST_LEVELS:
            return "***"
        if isinstance(value, dict):
            return {name: _censored(each, options, level + 1) for name, each in value.items()}
        return type(value)(_censored(each, options, level + 1) for each in value)
    if hasattr(value, "real_url") and hasattr(value, "_replace"):  # aiohttp's RequestInfo
        url = value.real_url.with_query(None).with_fragment(None).with_user(None)
        return value._replace(url=url, real_url=url, headers={})
    # A yarl URL, and a request of httpx, are replaced by their texts.
    return censored_text(str(value), options) if type(value).__name__ in ("URL", "Request") else value


def _secret_words(options: Mapping[str, Any], *, are_secret: bool = False) -> Iterator[str]:
    """Yield words of values that may be secrets.

    Word by word, since errors quote line breaks (of a token read from a file) as escapes.

    are_secret: Whether all values are secrets, whatever their names.
    """
    for name, value in options.items():
        is_secret = are_secret or _is_secret(name)
        if isinstance(value, Mapping):
            yield from _secret_words(value, are_secret=is_secret)
        elif is_secret and isinstance(value, str):
            yield from (word for word in value.split() if len(word) > _SHORT_WORD)


def _is_secret(name: object) -> bool:
    return _SECRET_NAME.search(str(name)) is not None


def secret_names(options: Any) -> list[str]:
    """Return the names of options that may hold a secret: judged by their names, or by a password in a URL."""
    if not isinstance(options, Mapping):
        return []
    return [str(name) for name, value in options.items() if value and (_is_secret(name) or _holds_secret(value))]


def _holds_secret(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_secret, value))
    return bool(secret_names(value)) or (isinstance(value, str) and _PASSWORD.search(value) is not None)


def _environment_secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.fullmatch(name) and len(value) > _SHORT_VALUE and not value.startswith("/"):
            yield value


def environment_credentials() -> dict[str, str]:
    """Return the variables of the environment that hold or choose a client's credentials."""
    return {name: value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name) or name in _CHOICES}


def _without_reply(text: str) -> str:
    text = _OBSTORE_STATUS.sub(r"\1", text.partition(_OBSTORE_VALUES)[0])
    begin = _DOCUMENT.search(text)
    if begin is None:
        return text
    reply = text[begin.start() :]
    said = [found[1].strip() for pattern in (_CODE, _MESSAGE) if (found := pattern.search(reply))]
    return text[: begin.start()] + ": ".join(said)
