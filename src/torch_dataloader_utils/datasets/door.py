"""`Door`: how the arguments of a call become checked options.

Type checkers read the stub beside a module of doors, and not the module: its functions have a docstring and few lines,
which bind the arguments and call checked code.
"""

import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

F = TypeVar("F", bound=Callable[..., Any])

TIERS = {"everyday": "Args", "tuning": "Args for tuning", "rare": "Args that are rarely needed"}
"""Titles of the tiers of options, in the order of `help()`."""


class Door:
    """Entry point: the classes that define its options, and the options that may come by position.

        DATASET = Door(FileSource, TableOptions, positional="path format")

        @DATASET.explains
        def open(*args, **options):
            source, table_options = DATASET.bind(args, options)

    Attributes:
        kinds: The classes, subclasses of `Checked`. If several have an option, the first one explains it.
        positional: Names of the options that may come by position, in order.
        options: Field of each option by name, in the order of definition.
    """

    def __init__(
        self,
        *kinds: type,
        positional: str,
        left_out: Collection[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.kinds = kinds
        self.positional = tuple(positional.split())
        self.options: dict[str, Field[Any]] = {}
        for each in (each for kind in kinds for each in _fields(kind) if each.name not in left_out):
            self.options.setdefault(each.name, each)
        for name, default in (defaults or {}).items():
            self.options[name] = copy(self.options[name])
            self.options[name].default = default

    def bind(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return one checked value for each class of options.

        Raises:
            ConfigTypeError: too many positional arguments, an option that is passed twice, or a missing option.
            ConfigError: an unknown option, or a value that its check refuses.
        """
        given = self.given(args, keywords)
        return tuple(
            kind(**{each.name: given[each.name] for each in _fields(kind) if each.name in given}) for kind in self.kinds
        )

    def given(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a call by name; their values are not checked.

        Raises:
            ConfigTypeError, ConfigError: see `bind`.
        """
        given = {**self._by_position(args, keywords), **keywords}
        for name in keywords:
            if name not in self.options:
                raise ConfigError(_unknown(name, self.options))
        for name, each in self.options.items():
            if each.default is MISSING and name not in given:
                raise ConfigTypeError(f"{name} is missing: pass it as the first argument, or as {name}=.")
        return given

    def _by_position(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.positional):
            raise ConfigTypeError(
                f"Got {len(args)} positional arguments, and at most {len(self.positional)} can be positional: "
                f"{', '.join(self.positional)}. Pass the others by name."
            )
        given = dict(zip(self.positional, args, strict=False))
        if twice := [name for name in given if name in keywords]:
            raise ConfigTypeError(f"{twice[0]} is passed by position and by name: leave one of them out.")
        return given

    def explains(self, function: F) -> F:
        """Give a function its signature and the texts of its options, for `inspect` and `help()`.

        The signature has the positional options, the function's own parameters, and the everyday options by keyword.
        """
        own = inspect.signature(function)
        named = [each for each in own.parameters.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        bound = [each for each in named if each.kind is not each.KEYWORD_ONLY]
        positional = [self._parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self.positional]
        everyday = [
            self._parameter(name, inspect.Parameter.KEYWORD_ONLY)
            for name, each in self.options.items()
            if each.metadata["tier"] == "everyday" and name not in self.positional
        ]
        rest = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD, annotation=Any)
        keywords = [each for each in named if each.kind is each.KEYWORD_ONLY]
        parameters = [*bound, *positional, *keywords, *everyday, rest]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        text = inspect.cleandoc(function.__doc__ or "")
        before, mark, after = text.partition("Returns:\n" if "Returns:\n" in text else "Raises:\n")
        function.__doc__ = f"{before}{self._texts()}\n{mark}{after}"
        return function

    def _parameter(self, name: str, kind: Any) -> inspect.Parameter:
        each = self.options[name]
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        return inspect.Parameter(name, kind, default=default, annotation=each.type)

    def _texts(self) -> str:
        """Return the sections of the docstring, one for each tier."""
        wrap = partial(
            textwrap.fill, width=108, break_on_hyphens=False, initial_indent=" " * 4, subsequent_indent=" " * 8
        )
        sections = []
        for tier, title in TIERS.items():
            lines = [
                wrap(f"{name}: {each.metadata['text']}")
                for name, each in self.options.items()
                if each.metadata["tier"] == tier
            ]
            sections += [f"{title}:", *lines, ""] if lines else []
        return "\n".join(sections)


def names_of(*kinds: type) -> tuple[str, ...]:
    """Return the names of all options of some classes."""
    return tuple(each.name for kind in kinds for each in _fields(kind))


def _fields(kind: type) -> Iterable[Field[Any]]:
    found: Iterable[Field[Any]] = fields(kind)
    return found


# Names that one might guess for an option that is part of a value, and how it is written.
_GROUPED = {
    "bucket_by": "token_batches=TokenBatches(column)",
    "max_tokens_per_batch": "token_batches=TokenBatches(column, max_tokens=...)",
    "pad_to_multiple_of": "token_batches=TokenBatches(column, max_tokens=..., pad_to_multiple_of=...)",
    "padding_free": "token_batches=TokenBatches(column, max_tokens=..., padding_free=True)",
    "num_lanes": "lanes=Lanes(num_lanes)",
    "lane_rows": "lanes=Lanes(num_lanes, rows=...)",
    "decode_threads": "decoding=Decoding(threads=...)",
    "num_threads": "decoding=Decoding(threads=...)",
    "decode_ahead_bytes": "decoding=Decoding(ahead_bytes=...)",
    **dict.fromkeys(
        ("tokenizer", "tokenizer_name", "sequence_length", "seq_length", "max_length", "max_seq_length", "packing"),
        "pack=pack_tokens(column, sequence_length, tokenizer=...)",
    ),
    "page_checksums": "decoding=Decoding(page_checksums=...)",
}
# Names of other libraries for our options, where they are too different to be recognised as similar.
_ELSEWHERE = {
    "files": "path",
    "table": "path",
    "file_format": "format",
    "seed": "shuffle_seed",
    "random_seed": "shuffle_seed",
    "world_size": "num_ranks",
    "num_replicas": "num_ranks",
    "num_shards": "num_ranks",
    "shard_index": "rank",
    "shuffle_size": "shuffle_rows",
    "buffer_size": "shuffle_rows",
    "map_fn": "transform",
}
# What to do without an option of another library.
_SAMPLER = (
    "{}= has no use here: the plan decides who reads which rows, by num_ranks, rank, shuffle and shuffle_rows. For a "
    "sampler of your own, use RowDataset in a DataLoader."
)
_TEXT_OPTION = (
    "{0}= is an option of scan_files, for CSV and JSON lines: pass inventory=scan_files(path, format, {0}=...)."
)
_DEVICE = "{}= is no option: batches are made in host memory. In the loop, write batch.to(device, non_blocking=True)."
_EPOCHS = "{}= is no option: a pass over the loader is one epoch. Call loader.set_epoch(epoch) before each pass."
_LIMIT = "{}= is no option: leave the loop early, or pass filters= or holdout= for a part of the rows."
_DELIMITER = (
    '{}= is no option: the format says what separates columns. Pass format="csv" for commas, "tsv" for tabs, '
    '"csv-semicolon" or "csv-pipe".'
)
_HEADER = (
    "{}= is no option: the first line of a CSV file names its columns. Write such a line before the data; columns= "
    "chooses columns."
)
_ADVICE = {
    "sampler": _SAMPLER,
    "batch_sampler": _SAMPLER,
    "schema": _TEXT_OPTION,
    "text": _TEXT_OPTION,
    "device": _DEVICE,
    "epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    **dict.fromkeys(("limit", "max_rows", "num_samples", "take"), _LIMIT),
    "delimiter": _DELIMITER,
    "sep": _DELIMITER,
    "header": _HEADER,
    "names": _HEADER,
}


def _unknown(name: str, known: Mapping[str, Field[Any]]) -> str:
    """Return the message about an unknown option, with the nearest known option, or the everyday options.

    known batch_size, shuffle_seed    batchsize     did you mean 'batch_size'?
                                      seed          did you mean 'shuffle_seed'?
                                      xyzzy         both names
    """
    if name in _ADVICE:
        return _ADVICE[name].format(name)
    if name in _GROUPED:
        return f"Unknown option {name!r}; pass {_GROUPED[name]}."
    close = [each for each in (_ELSEWHERE.get(name),) if each in known] or get_close_matches(name, known, n=1)
    everyday = [each for each, field in known.items() if field.metadata["tier"] == "everyday"]
    hint = f"; did you mean {close[0]!r}?" if close else f". Everyday options are {everyday}; help() has all."
    return f"Unknown option {name!r}{hint}"
