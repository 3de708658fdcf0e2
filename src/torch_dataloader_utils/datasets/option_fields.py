"""How an option is defined: once, as a field of a frozen dataclass, with its name, type, default, check and text.

    @dataclass(frozen=True, kw_only=True)
    class TableOptions(Checked):
        batch_size: int = option(1024, "rows of a batch on this rank.", partial(check_integer, least=1))

`Checked` runs the checks. Entry points take their arguments as such values with `chosen(TableOptions, arguments)`, and
show the texts of all of them in `help()` with `@explains(TableOptions)`. The page docs/reference/options.md is made of
the same fields (scripts/write_options.py); tests/structured/test_options_definition.py holds signatures and page equal.
"""

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, field, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

from torch_dataloader_utils.errors import ConfigError

Check = Callable[[str, Any], Any]
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def option(
    default: Any, text: str, check: Check | None = None, *, is_secret: bool = False, is_of_rank: bool = False
) -> Any:
    """One option, as a field of a dataclass.

    Args:
        default: MISSING for an option that has to be given. Where it is None, None is taken unchecked.
        text: for `help()` and the page of options.
        check: gives the value to keep for (name, value), or raises a ConfigError. None: what uses the value checks it.
        is_secret: the value is left out of what is printed.
        is_of_rank: ranks may differ in it, since it decides neither which rows a rank has nor how many.
    """
    return field(default=default, repr=not is_secret, metadata={"text": text, "check": check, "is_of_rank": is_of_rank})


class Checked:
    """A frozen dataclass of options: each is checked by its own check, in order, and kept as that gives it."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value, check = getattr(self, each.name), each.metadata["check"]
            if check is not None and not (value is None and each.default is None):
                object.__setattr__(self, each.name, check(each.name, value))


def names_of(*kinds: type) -> tuple[str, ...]:
    """The names of all options that these classes define."""
    return tuple(each.name for kind in kinds for each in _fields(kind))


def arguments_of(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, from `locals()` in its first line; those in **options among them."""
    own = {name: value for name, value in scope.items() if name not in ("self", "cls", "__class__", "options")}
    return {**own, **scope.get("options", {})}


def chosen(kind: type[T], arguments: Mapping[str, Any]) -> T:
    """The options that `kind` defines, as its value; other arguments are left to others.

    Raises:
        ConfigError: see the checks of the options.
    """
    return kind(**{name: arguments[name] for name in names_of(kind) if name in arguments})


def explains(*kinds: type, left_out: Sequence[str] = (), more: str) -> Callable[[F], F]:
    """Puts the texts of the options that these classes define into the docstring, before "Returns:".

    left_out: options that the function does not have. more: further lines of "Args:".
    """
    shown = [each for kind in kinds for each in _fields(kind) if each.name not in left_out]
    lines = [*(f"{each.name}: {each.metadata['text']}" for each in shown), more]
    wrap = partial(textwrap.fill, width=108, break_on_hyphens=False, initial_indent=" " * 4, subsequent_indent=" " * 8)

    def explain(function: F) -> F:
        before, mark, after = inspect.cleandoc(function.__doc__ or "").partition("Returns:\n")
        function.__doc__ = "\n".join([f"{before}Args:", *map(wrap, lines), "", mark + after])
        return function

    return explain


def _fields(kind: type) -> tuple[Field[Any], ...]:
    found: tuple[Field[Any], ...] = fields(kind)
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
    "page_checksums": "decoding=Decoding(page_checksums=...)",
}
# Names of other libraries for our options, where they are too different to be recognised as similar.
_ELSEWHERE = {
    "files": "path",
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
_SAMPLERS = ("sampler", "batch_sampler")
# What only `scan_files` takes, since no other format needs it.
_TEXT_OPTIONS = ("schema", "text")


def check_names(options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises ConfigError for an option that is not `known`; the message has the nearest of them, or all.

    known batch_size, shuffle_seed    options batchsize     did you mean 'batch_size'?
    the same                          options seed          did you mean 'shuffle_seed'?
    the same                          options xyzzy         both names
    """
    for name in options:
        if name not in known:
            raise ConfigError(_unknown(name, known))


def _unknown(name: str, known: Sequence[str]) -> str:
    if name in _SAMPLERS:
        return (
            f"{name}= has no use here: the plan decides who reads which rows, by num_ranks, rank, shuffle and "
            "shuffle_rows. For a sampler of your own, use RowDataset in a DataLoader."
        )
    if name in _TEXT_OPTIONS:
        return (
            f"{name}= is an option of scan_files, for CSV and JSON lines: pass "
            f"inventory=scan_files(path, format, {name}=...)."
        )
    if name in _GROUPED:
        return f"Unknown option {name!r}; pass {_GROUPED[name]}."
    close = [each for each in (_ELSEWHERE.get(name),) if each in known] or get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f". Known are {list(known)}."
    return f"Unknown option {name!r}{hint}"
