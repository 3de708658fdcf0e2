"""The errors of this library, ordered by who can act; each class is also the builtin that a user would catch.

    LoaderError
    ├── ConfigError (ValueError)                 you called it wrong
    │   ├── ConfigTypeError (TypeError)          an argument has the wrong type
    │   ├── NoDataError (FileNotFoundError)      nothing there to read
    │   └── MissingDependencyError (ImportError) a package is not installed
    ├── DataError (ValueError)                   the file is wrong
    │   ├── CorruptFileError (OSError)           bytes that do not decode
    │   ├── RowCountError                        more or fewer rows than planned
    │   ├── SchemaError                          columns or types that do not fit
    │   ├── NullValueError                       a null where the output type has none
    │   ├── FileChangedError (OSError)           not the planned file
    │   └── UnsupportedFeatureError (NotImplementedError)
    ├── TransformError (RuntimeError)            your transform raised; says on which rows
    ├── WorkerDiedError (RuntimeError)           a worker process was killed, crashed, or does not answer
    ├── StoreError (OSError)                     the world is wrong: network, disk, credentials
    ├── CheckpointMismatchError (ValueError)     a state belongs to other data or other options
    └── InternalError (RuntimeError)             we are wrong: please report it

Where OSError is a base, it is the first: only its `__new__` can make such objects, and tools that rebuild errors from
other processes call the `__new__` of the first base.

A message says what, where (file, row group, rows), seen and wanted, and what to do. Below it, a traceback names the
section of the page of troubleshooting, if the package was built with the address of its repository.
"""

from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@cache
def _help_page() -> str | None:
    """Return the address of the page of troubleshooting; None if the package has none."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("epochplan").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    return next((url.removeprefix("Help, ") for url in urls if url.startswith("Help, ")), None)


class _HelpNote:
    """Notes of an error that has none yet: the address of the section about its class.

    The list is kept in the error, where `add_note` and pickle find it.
    """

    def __get__(self, error: "LoaderError | None", kind: "type[LoaderError]") -> list[str]:
        page = _help_page()
        if error is None or page is None:
            raise AttributeError("__notes__")
        notes: list[str] = error.__dict__.setdefault("__notes__", [f"Help: {page}#{kind.__name__.lower()}"])
        return notes


class LoaderError(Exception):
    """Base of all errors that this library raises on purpose."""

    __notes__ = _HelpNote()


class ConfigError(LoaderError, ValueError):
    """The call is wrong: an argument, a combination of arguments, or a name that does not exist."""


class ConfigTypeError(ConfigError, TypeError):
    """An argument has the wrong type."""


class NoDataError(FileNotFoundError, ConfigError):
    """A path, glob, directory or table has nothing to read."""


class MissingDependencyError(ConfigError, ImportError):
    """A feature needs a package that is not installed; the message has the install command."""


class DataError(LoaderError, ValueError):
    """The data is wrong; reading it again gives the same answer."""


class CorruptFileError(OSError, DataError):
    """Bytes that do not decode: truncated, checksum failed, or an impossible footer."""


class RowCountError(DataError):
    """A row group gave more or fewer rows than planned."""


class SchemaError(DataError):
    """Columns or types of a file do not fit the data set's schema."""


class NullValueError(DataError):
    """A null in a column whose output type has no null; `nulls=` says how nulls are handled."""


class FileChangedError(OSError, DataError):
    """The file is not the planned file: replaced, truncated or gone."""


class UnsupportedFeatureError(DataError, NotImplementedError):
    """The data uses a feature that this library refuses rather than reads wrongly."""


class TransformError(LoaderError, RuntimeError):
    """A user's transform or collate function raised; the cause is chained."""


class WorkerDiedError(LoaderError, RuntimeError):
    """A worker process died or does not answer; the message names the worker and what it was reading."""


class StoreError(LoaderError, OSError):
    """A storage request failed for good, after the retries that its kind of failure deserves."""


class CheckpointMismatchError(LoaderError, ValueError):
    """A state belongs to other data or other options; the message shows both sides."""


class InternalError(LoaderError, RuntimeError):
    """An invariant of this library broke; please report it with the message."""


def of_type(value: object) -> str:
    """Return the type of a value, for messages: "a dict", "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def in_words(error: BaseException) -> str:
    """Return the class and text of an error as the end of a sentence, with one mark after it.

        ValueError("bad label")                   ValueError: bad label.
        StopIteration()                           StopIteration.
        KeyError("label")                         KeyError: 'label'.
        KeyError("no 'a'; did you mean 'b'?")     KeyError: no 'a'; did you mean 'b'?

    `str` would quote the sentence of a KeyError.
    """
    text = str(error).rstrip()
    if isinstance(error, KeyError) and len(error.args) == 1 and str(error.args[0]).endswith((".", "?")):
        text = str(error.args[0])
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if text.endswith((".", "?", "!")) else f"{text}."


def plural(number: int, unit: str) -> str:
    """Return a number with its unit, for messages: "1 file", "1,200 files"."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def which_column(name: object, known: "Iterable[str]") -> str:
    """Return text about the columns that a wrong name may mean, for messages.

    The text has the fields of a struct, or names that are near, or else all names. A name inside a struct is compared
    with the fields of the struct.

        prise or PRICE, columns price, rows      did you mean 'price'?
        tax, columns price, rows                 the columns are 'price', 'rows'.
        user, columns user.age, rows             it has the fields 'user.age'.
        user.zip, columns user.age, rows         the fields of 'user' are 'user.age'.
    """
    text, names = str(name), list(known)
    if fields := [each for each in names if each.startswith(f"{text}.")]:
        return f"it has the fields {_first_names(fields)}."
    places = (place for place in range(len(text) - 1, 0, -1) if text[place] == ".")
    struct = next((text[:place] for place in places if any(each.startswith(text[: place + 1]) for each in names)), "")
    above = f"{struct}." if struct else ""
    names = [each for each in names if each.startswith(above)]
    by_case = {each.removeprefix(above).casefold(): each for each in names}
    near = get_close_matches(text.removeprefix(above).casefold(), by_case, n=3, cutoff=0.6)
    if near:
        return f"did you mean {', '.join(repr(by_case[each]) for each in near)}?"
    what = f"fields of {struct!r}" if struct else "columns"
    return f"the {what} are {_first_names(names)}."


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(map(repr, names[:20])) + more


def causes(error: BaseException, handled: BaseException | None = None) -> "Iterator[BaseException]":
    """Yield the error, then the error that it was raised from or while handling, and so on.

    handled: Exception that the caller was handling before (`sys.exception()`); it is left out.
    """
    seen = set[int]()
    current: BaseException | None = error
    while current is not None and current is not handled and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
