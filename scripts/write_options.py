"""Writes all that is made of the definitions of options: the page of options, and the stubs that type checkers read.

    docs/reference/options.md
    src/torch_dataloader_utils/datasets/{open,structured,iceberg,delta,row_dataset,keywords}.pyi

A test holds these files equal to the definitions.
"""

import ast
import html
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, Union, get_args, get_origin

from torch_dataloader_utils.datasets import delta, iceberg, row_dataset, structured
from torch_dataloader_utils.datasets import open as opening
from torch_dataloader_utils.datasets.delta_source import DeltaSource
from torch_dataloader_utils.datasets.door import TIERS, Door, names_of
from torch_dataloader_utils.datasets.files import FileSource
from torch_dataloader_utils.datasets.iceberg_source import IcebergSource
from torch_dataloader_utils.datasets.numbered_rows import RowOptions
from torch_dataloader_utils.datasets.options import ScanOptions, TableOptions
from torch_dataloader_utils.stream.loader_options import LoaderOptions

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"

# The page.

TEXT = """---
search:
  boost: 4
---

# Options

These are the options of `StructuredDataset`, `IcebergDataset` and `DeltaDataset`, with and without `create_dataloader`.
`open_loader` has them all, and looks what the path holds: `format` and `partitioning` are "auto" there.
`RowDataset`, `scan_files`, `scan_iceberg`, `scan_delta` and `plan_epoch` (where `shuffle_seed` is called `seed`) accept
those that apply to them. Pass them by keyword; only the first twenty of `create_dataloader` can be positional.
`help(StructuredDataset.create_dataloader)` shows the same texts. The [cheat sheet](../cheat-sheet.md) has the twelve
that most programs need.

## The whole signature

{signature}

Each name leads to its text. [Iceberg](#iceberg-tables) and [Delta](#delta-tables) tables have options of their own in
place of the options of files. Each table has everyday options first, then options for tuning, then rarely needed ones.

<div class="options" markdown>

## Files

{files}

## Iceberg tables

{iceberg}

## Delta tables

{delta}

## Every data set

{table}

## The loader

Only `create_dataloader` and `TableDataLoader` accept these. All but `callbacks` go to torch's DataLoader.

{loader}

</div>

## Options of several values

::: torch_dataloader_utils.TokenBatches

::: torch_dataloader_utils.Holdout

::: torch_dataloader_utils.Lanes

::: torch_dataloader_utils.Decoding

::: torch_dataloader_utils.RayWorkers

::: torch_dataloader_utils.Hive
"""


def page() -> str:
    """Return the text of the page."""
    kinds = {
        "files": FileSource,
        "iceberg": IcebergSource,
        "delta": DeltaSource,
        "table": TableOptions,
        "loader": LoaderOptions,
    }
    tables = {name: "\n".join(_rows(name, kind)) for name, kind in kinds.items()}
    return TEXT.format(signature=_all_options(), **tables)


def _all_options() -> str:
    """Return the call of `StructuredDataset.create_dataloader` with all options, by tier, as links to their texts."""
    kinds = {"files": FileSource, "table": TableOptions, "loader": LoaderOptions}
    lines = ['<pre class="signature"><code>loader, dataset = StructuredDataset.create_dataloader(']
    for tier in TIERS:
        lines.append(f"    <i># {tier}</i>")
        options = [(group, each) for group, kind in kinds.items() for each in fields(kind)]
        for group, each in options:
            if each.metadata["tier"] == tier:
                value = "" if each.default is MISSING else f"={html.escape(repr(each.default), quote=False)}"
                lines.append(f'    <a href="#{group}-{each.name}">{each.name}</a>{value},')
    return "\n".join([*lines, ")</code></pre>"])


def _rows(group: str, kind: type) -> Iterator[str]:
    """Yield the lines of a table with a row for each option, by tier. The anchor of a row is group-name."""
    yield "| option | default | use | meaning |"
    yield "|---|---|---|---|"
    for each in sorted(fields(kind), key=lambda each: list(TIERS).index(each.metadata["tier"])):
        default = "required" if each.default is MISSING else f"`{each.default!r}`"
        name = f'<span id="{group}-{each.name}">`{each.name}`</span><br><code>{_type_text(each.type)}</code>'
        cells = (name, default, each.metadata["tier"], each.metadata["text"])
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _type_text(annotation: Any) -> str:
    """Return the type as it is written, without the modules of its parts."""
    if get_origin(annotation) is Union:
        return " | ".join(map(_type_text, get_args(annotation)))
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text).replace("NoneType", "None")


# The stubs.

# The type of batches of each output format.
_BATCHES = {
    "torch": "TensorBatch",
    "numpy": "dict[str, npt.NDArray[Any]]",
    "arrow": "pa.RecordBatch",
    "dict": "dict[str, list[Any]]",
}
# The options that decide the type of batches. The last function of the user decides it, or else the output format.
_DECIDING = ("output_format", "transform", "collate_fn")
# The classes of options that all doors share.
_SHARED = {"TableKeywords": TableOptions, "LoaderKeywords": LoaderOptions}
# Imports of the stubs beside the imports of the options.
_IMPORTS = """
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload
import numpy.typing as npt
import pyarrow as pa
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.door import Door
from torch_dataloader_utils.datasets.keywords import LoaderKeywords, TableKeywords
from torch_dataloader_utils.datasets.numbered_rows import NumberedRows
from torch_dataloader_utils.shape.tensor_batch import TensorBatch
from torch_dataloader_utils.stream.loader import TableDataLoader
"""


def stubs() -> dict[Path, str]:
    """Return the text of each stub."""
    texts = {
        opening: _open_loader(),
        structured: _dataset("StructuredDataset", structured),
        iceberg: _scan("scan_iceberg", iceberg.SCAN) + _dataset("IcebergDataset", iceberg),
        delta: _scan("scan_delta", delta.SCAN) + _dataset("DeltaDataset", delta),
        row_dataset: ["class RowDataset(NumberedRows):", *_function("__init__", "self", row_dataset.ROWS, "None")],
    }
    keywords = Path(opening.__file__ or "").with_name("keywords.pyi")
    return {
        keywords: _text([TableOptions, LoaderOptions], _keywords()),
        **{Path(module.__file__ or "").with_suffix(".pyi"): _stub(module, lines) for module, lines in texts.items()},
    }


def _stub(module: ModuleType, lines: list[str]) -> str:
    doors = {name: value for name, value in vars(module).items() if isinstance(value, Door)}
    lines = [*(f"{name}: Door" for name in doors), "", *lines]
    if "T" in _names(lines):
        lines = ['T = TypeVar("T")', "", *lines]
    return _text([kind for door in doors.values() for kind in door.kinds], lines)


def _text(options: Iterable[type], lines: list[str]) -> str:
    """Return the text of a stub. options: Classes of the options whose types it names."""
    kinds = {kind.__module__ for kind in options}
    used = _names(lines) - set(re.findall(r"^class (\w+)", "\n".join(lines), re.M))
    imports = "\n".join(_import_lines([ast.parse(_IMPORTS), *map(_source_of, sorted(kinds))], used))
    return f"# Made of the options by scripts/write_options.py. Do not edit.\n\n{imports}\n" + "\n".join(lines) + "\n"


def _scan(name: str, door: Door) -> list[str]:
    return [*_function(name, "", door, "Inventory", ["on_progress: OnProgress | None = None"], indent=""), ""]


def _dataset(name: str, module: ModuleType) -> list[str]:
    """Return the class of a data set."""
    result = f"tuple[TableDataLoader[{{}}], {name}]"
    return [
        *_rest(module.LOADER),
        f"class {name}(BuiltDataset):",
        *_function("__init__", "self", module.DATASET, "None"),
        *_overloads("create_dataloader", "cls", module.LOADER, result),
    ]


def _open_loader() -> list[str]:
    return [*_rest(opening.OPEN), *_overloads("open_loader", "", opening.OPEN, "TableDataLoader[{}]", indent="")]


def _keywords() -> list[str]:
    """Return the classes of the options that come by keyword at every door and do not decide the type of batches."""
    lines = []
    for name, kind in _SHARED.items():
        options = {each.name: each for each in fields(kind)}
        lines += [f"class {name}(TypedDict, total=False):"]
        lines += [*(f"    {option}: {_annotation(options[option])}" for option in _shared(kind)), ""]
    return lines[:-1]


def _shared(kind: type) -> list[str]:
    doors = (opening.OPEN, structured.LOADER, iceberg.LOADER, delta.LOADER)
    return [name for name in names_of(kind) if all(name in _by_keyword(door) for door in doors)]


def _by_keyword(door: Door) -> list[str]:
    return [option for option in door.options if option not in (*_before(door), *_DECIDING)]


def _rest(door: Door) -> list[str]:
    """Return the class of the options that do not decide the type of batches."""
    shared = {option for kind in _SHARED.values() for option in _shared(kind)}
    own = [option for option in _by_keyword(door) if option not in shared]
    options = (f"    {option}: {_annotation(door.options[option])}" for option in own)
    return [f"class _Options({', '.join(_SHARED)}, total=False):", *options, ""]


def _before(door: Door) -> list[str]:
    """Return the positional options before the first one that decides the type of batches."""
    return list(takewhile(lambda option: option not in _DECIDING, door.positional))


def _overloads(name: str, first: str, door: Door, result: str, indent: str = "    ") -> list[str]:
    """Return an overload for each type of batches, which stands for {} in the result. first: "cls", or ""."""
    given = {option: _parameter(door.options[option]) for option in _DECIDING}
    none = {option: f"{option}: None = None" for option in ("transform", "collate_fn")}
    cases = [
        ("T", {**given, "collate_fn": "collate_fn: Callable[[Any], T]"}),
        ("T", {**given, **none, "transform": "transform: Callable[[Any], T]"}),
    ]
    for output_format, batch in _BATCHES.items():
        default = ' = "torch"' if output_format == "torch" else ""
        cases.append((batch, {"output_format": f'output_format: Literal["{output_format}"]{default}', **none}))
    positional = map(_parameter, map(door.options.__getitem__, _before(door)))
    before = [*filter(None, [first]), *positional, "*"]
    overloads = []
    for batch, parameters in cases:
        overloads += [f"{indent}@overload", *([f"{indent}@classmethod"] if first else [])]
        own = [*before, *parameters.values(), "**options: Unpack[_Options]"]
        overloads += _signature(name, own, result.format(batch), indent)
    return overloads


def _function(
    name: str, first: str, door: Door, result: str, own: Sequence[str] = (), *, indent: str = "    "
) -> list[str]:
    """Return a function with all options of a door; own: more keyword parameters."""
    positional = [_parameter(door.options[option]) for option in door.positional]
    shared = set(_shared(TableOptions))
    shared = shared if shared <= door.options.keys() else set()
    rest = [_parameter(each) for option, each in door.options.items() if option not in {*door.positional, *shared}]
    rest += ["**options: Unpack[TableKeywords]"] if shared else []
    return _signature(name, [*filter(None, [first]), *positional, "*", *own, *rest], result, indent)


def _signature(name: str, parameters: list[str], result: str, indent: str = "    ") -> list[str]:
    lines = (f"{indent}    {each}," for each in parameters)
    return [f"{indent}def {name}(", *lines, f"{indent}) -> {result}: ..."]


def _parameter(each: "Field[Any]") -> str:
    if each.default is MISSING:
        return f"{each.name}: {_annotation(each)}"
    is_plain = each.default is None or isinstance(each.default, str | int | float)
    default = json.dumps(each.default) if isinstance(each.default, str) else repr(each.default)
    return f"{each.name}: {_annotation(each)} = {default if is_plain else '...'}"


@cache
def _annotations() -> dict[int, str]:
    """Return the annotation of each option as it is written, by the id of its metadata."""
    found = {}
    for kind in (FileSource, RowOptions, IcebergSource, DeltaSource, ScanOptions, TableOptions, LoaderOptions):
        (tree,) = ast.parse(inspect.getsource(kind)).body
        written = {node.target.id: node.annotation for node in tree.body if isinstance(node, ast.AnnAssign)}
        for each in fields(kind):
            if each.name in written:
                node = written[each.name]
                text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
                found[id(each.metadata)] = text.replace("'", '"')
    return found


def _annotation(each: "Field[Any]") -> str:
    return _annotations()[id(each.metadata)]


def _names(lines: Iterable[str]) -> set[str]:
    return set(re.findall(r"\b[A-Za-z_]\w*", re.sub(r'"[^"]*"', "", "\n".join(lines)).replace(".", " .")))


def _source_of(module: str) -> ast.Module:
    """Return the imports of a module, and an import of each type that the module defines."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    own = [ast.alias(target.id) for target in targets if isinstance(target, ast.Name)]
    return ast.Module([*imports, ast.ImportFrom(module, own, 0)], [])


def _import_lines(sources: Iterable[ast.Module], used: set[str]) -> Iterator[str]:
    """Yield the import statements of the names that are used, sorted as ruff sorts them."""
    modules: set[str] = set()
    names: dict[str, set[str]] = {}
    for node in (node for source in sources for node in source.body):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if (alias.asname or alias.name) in used:
                if isinstance(node, ast.Import):
                    modules.add(ast.unparse(ast.Import([alias])))
                else:
                    names.setdefault(str(node.module), set()).add(alias.name)
    for is_section in (
        lambda root: root in sys.stdlib_module_names,
        lambda root: root not in sys.stdlib_module_names and root != "torch_dataloader_utils",
        lambda root: root == "torch_dataloader_utils",
    ):
        lines = [line for line in sorted(modules) if is_section(re.split(r"[ .]", line)[1])]
        for module in sorted(module for module in names if is_section(module.partition(".")[0])):
            sorted_names = sorted(names[module], key=lambda name: (not name.isupper(), name[0].islower(), name.lower()))
            lines.append(f"from {module} import {', '.join(sorted_names)}")
        yield from [*lines, ""] if lines else []


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    PAGE.write_text(page())
    for path, text in stubs().items():
        path.write_text(text)
