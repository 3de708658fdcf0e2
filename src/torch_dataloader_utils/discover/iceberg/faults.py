"""What pyiceberg raises on damaged metadata becomes one error of ours, with the file's name."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_dataloader_utils.discover.faults import corrupt
from torch_dataloader_utils.errors import LoaderError


@contextmanager
def parsing(path: str, what: str) -> Iterator[None]:
    """Runs the parsing of `what` (table metadata, a manifest); keep the body to that.

    pyiceberg, pydantic and four compression codecs raise errors of their own, most of them plain Exceptions. Their
    texts quote the file, which may hold what must not be shown, so that only the kind of error is named.
    """
    try:
        yield
    except LoaderError:
        raise
    except Exception as error:
        raise corrupt(path, f"the {what} does not parse ({type(error).__name__})") from error
