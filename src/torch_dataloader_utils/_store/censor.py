"""What clients say of a failure, without credentials: of options, in URLs, or that servers repeat."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Object stores reply to a request that they refuse with a document, and some clients put all of it into their errors.
_DOCUMENT = re.compile(r"<\?xml|<Error\b")
_CODE = re.compile(r"<Code>(.*?)</Code>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)

# obstore ends its messages with twenty lines that print its own values, the reply among them.
_OBSTORE_VALUES = "\n\nDebug source:"

_KEPT = ("Code", "Message")

_SECRET_NAME = re.compile("secret|token|credential|pass|key|header|auth|sas|connection_string", re.IGNORECASE)
# Words of a secret up to so many letters stay in messages: they tell nothing, and hiding "a" would hide the rest.
_SHORT_WORD = 2

# Clients spell URLs anew ("%2F" as "/", the path without its host), so that they are known by their form alone.
_WEB_QUERY = re.compile(r"(https?://[^\s?'\"<>]*)\?[^\s'\"<>]*", re.IGNORECASE)
_QUERY_VALUE = re.compile(r"([?&][\w.-]+=)[^&\s'\"<>)]+")
# From the beginning of a word only: from each of its letters, a reply of a megabyte without spaces would take hours.
_PASSWORD = re.compile(r"(?<![^\s/@'\"])[^\s/:@'\"]*:[^\s/'\"]+@")

# What an OSError is told by, if it has more than one argument.
_OS_TEXTS = ("strerror", "filename", "filename2")


def censor(
    error: BaseException, options: Mapping[str, Any] | None = None, *, handled: BaseException | None = None
) -> None:
    """Cut out of `error`, and of what caused it, in place, what must not be shown.

    These are values of `options` that are credentials, queries and passwords of URLs, and of a server's reply all but
    its code and message. In place, because tracebacks, logs and pickles show the client's own error too.

    handled: see `causes`.
    """
    for each in causes(error, handled):
        each.args = tuple(_censored(arg, options) for arg in each.args)
        vars(each).update({name: _censored(value, options) for name, value in vars(each).items()})
        if isinstance(each, OSError):
            for name in _OS_TEXTS:
                if isinstance(text := getattr(each, name), str):
                    setattr(each, name, censored_text(text, options))
        reply = getattr(each, "response", None)
        if isinstance(reply, dict) and isinstance(reply.get("Error"), dict):
            reply["Error"] = {name: value for name, value in reply["Error"].items() if name in _KEPT}


def causes(error: BaseException, handled: BaseException | None = None) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and so on.

    handled: what the caller handled before anything was tried (`sys.exception()`), which has no part in it.
    """
    seen = set[int]()
    current: BaseException | None = error
    while current is not None and current is not handled and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def censored_text(text: str, options: Mapping[str, Any] | None = None) -> str:
    """The text without what `censor` cuts.

    GET http://me:pw@host/a?sig=x failed    GET http://***@host/a failed
    """
    text = _without_reply(text)
    # Longest first: one secret may begin with another.
    for secret in sorted(_secret_words(options or {}), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _WEB_QUERY.sub(r"\1", text)
    return _PASSWORD.sub("***@", _QUERY_VALUE.sub(r"\1***", text))


def _censored(value: Any, options: Mapping[str, Any] | None) -> Any:
    if isinstance(value, str):
        return censored_text(value, options)
    if hasattr(value, "real_url") and hasattr(value, "_replace"):  # aiohttp's RequestInfo
        url = value.real_url.with_query(None).with_user(None)
        return value._replace(url=url, real_url=url, headers={})
    # A URL of yarl's is told as its text.
    return censored_text(str(value), options) if type(value).__name__ == "URL" else value


def _secret_words(options: Mapping[str, Any], *, are_secret: bool = False) -> Iterator[str]:
    """Words of values that may be secrets; word by word, since errors quote line breaks (of a token read from a file)
    as escapes.

    are_secret: whether all values are, whatever their names.
    """
    for name, value in options.items():
        is_secret = are_secret or _SECRET_NAME.search(str(name)) is not None
        if isinstance(value, Mapping):
            yield from _secret_words(value, are_secret=is_secret)
        elif is_secret and isinstance(value, str):
            yield from (word for word in value.split() if len(word) > _SHORT_WORD)


def _without_reply(text: str) -> str:
    text = text.partition(_OBSTORE_VALUES)[0]
    begin = _DOCUMENT.search(text)
    if begin is None:
        return text
    reply = text[begin.start() :]
    said = [found[1].strip() for pattern in (_CODE, _MESSAGE) if (found := pattern.search(reply))]
    return text[: begin.start()] + ": ".join(said)
