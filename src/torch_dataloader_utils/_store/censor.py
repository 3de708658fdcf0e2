"""What storage clients say of a failure, without what servers repeat of the request: session tokens, signed headers."""

import re
from collections.abc import Iterator

# Object stores reply to a request that they refuse with a document, and some clients put all of it into their errors.
_DOCUMENT = re.compile(r"<\?xml|<Error\b")
_CODE = re.compile(r"<Code>(.*?)</Code>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)

# obstore ends its messages with twenty lines that print its own values, the reply among them.
_OBSTORE_VALUES = "\n\nDebug source:"

_KEPT = ("Code", "Message")


def censor(error: BaseException) -> None:
    """Cut what `error`, and what caused it, keep of a server's reply down to its code and message, in place.

    In place, because tracebacks, logs and pickles show the client's own error too.
    """
    for each in causes(error):
        each.args = tuple(_without_reply(arg) if isinstance(arg, str) else arg for arg in each.args)
        reply = getattr(each, "response", None)
        if isinstance(reply, dict) and isinstance(reply.get("Error"), dict):
            reply["Error"] = {name: value for name, value in reply["Error"].items() if name in _KEPT}


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and so on."""
    seen = set[int]()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _without_reply(text: str) -> str:
    text = text.partition(_OBSTORE_VALUES)[0]
    begin = _DOCUMENT.search(text)
    if begin is None:
        return text
    reply = text[begin.start() :]
    said = [found[1].strip() for pattern in (_CODE, _MESSAGE) if (found := pattern.search(reply))]
    return text[: begin.start()] + ": ".join(said)
