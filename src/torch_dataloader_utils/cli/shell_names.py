"""Advice of the library in the words of the shell: options of a command instead of arguments of functions."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import click

# Arguments of functions, by the parameters of commands that have other names.
_ARGUMENTS = {
    "catalog": "catalog_config",
    "catalog_options": "catalog_config",
    "filter_text": "filters",
    "format_name": "format",
    "inventory_path": "inventory",
    "seed": "shuffle_seed",
    "storage": "storage_options",
    "strategy": "split_strategy",
}

# A name, and perhaps a literal. Directories such as /seed=4/ and calls such as Hive(...) and scan_files(...) are none.
_ARGUMENT = re.compile(
    r"""(?<![\w./'"=])(?<!\w\()(\w+)=(?:np\.)?
    ("[^"]*" | '[^']*' | \[[^\]]*\] | \{(?:[^{}]|\{[^{}]*\})*\} | -?\d+(?:\.\d+)? | \w+)?
    (?![\w(\[{/'"~] | \.\.)""",
    re.VERBOSE,
)


def in_shell_names(text: str, command: click.Command | None) -> str:
    """Return a message with options of a command in the place of arguments. What no option can say stays.

    partitioning="hive"  partitioning=None    leave columns= out   columns=['a', 'b']  storage_options={"anon": True}
    --partitioning hive  --partitioning none  leave --columns out  --columns a,b       --option anon=true
    """
    options: dict[str, list[click.Option]] = {}
    for option in () if command is None else _options(command):
        name = option.name or ""
        options.setdefault(_ARGUMENTS.get(name, name), []).append(option)

    def named(found: re.Match[str]) -> str:
        written = (_written(option, found[2]) for option in options.get(found[1], ()))
        return next(filter(None, written), found[0])

    return _ARGUMENT.sub(named, text)


def _options(command: click.Command) -> Iterator[click.Option]:
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from _options(each)
    yield from (param for param in command.params if isinstance(param, click.Option))


def _written(option: click.Option, text: str | None) -> str | None:
    """Return an option and a value, given as Python, as they are typed; None if the option does not take the value."""
    name = option.opts[0]
    if text is None or text == "[...]":
        return name
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # a word of the message, or a dict with "..."
        value = text
    match value:
        case dict():
            pairs = [shlex.quote(pair) for pair in _pairs(value)]
            return " ".join(f"{name} {pair}" for pair in pairs) if option.multiple else None
        case str() if option.is_flag or text.startswith("{"):
            return name if value == option.flag_value else None
        case True:
            return name if option.is_flag and not isinstance(option.flag_value, str) else None
        case None if isinstance(option.type, click.Choice) and "none" in option.type.choices:
            return f"{name} none"
        case False | None:
            return None
        case list():
            return f"{name} {shlex.quote(','.join(map(str, value)))}"
        case _:
            return f"{name} {shlex.quote(str(value))}"


def _pairs(value: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the key=value texts that `parse_pairs` makes a dict of."""
    for key, each in value.items():
        if isinstance(each, dict):
            yield from _pairs(each, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={str(each).lower() if isinstance(each, bool) else each}"
