"""What editors show of keyword options is what data sets and loaders take."""

import inspect
import re
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest
import torch
from pyiceberg.expressions import BooleanExpression
from torch.distributed.device_mesh import DeviceMesh

from torch_dataloader_utils import IcebergDataset, StructuredDataset, plan_epoch
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils.datasets import options as table_options
from torch_dataloader_utils.datasets.iceberg import SCAN_OPTIONS
from torch_dataloader_utils.datasets.options import (
    TABLE_OPTIONS,
    IcebergKeywords,
    LoaderKeywords,
    RowLoaderKeywords,
    TableKeywords,
    TableOptions,
)
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.stream.loader_options import LOADER_OPTIONS

NAMES = {"torch": torch, "DeviceMesh": DeviceMesh, "BooleanExpression": BooleanExpression}


def hints(keywords: type) -> dict[str, Any]:
    return get_type_hints(keywords, vars(table_options), NAMES)


def explicit(function: Any) -> set[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds}


def test_data_sets_show_what_they_take() -> None:
    assert hints(TableKeywords).keys() == set(TABLE_OPTIONS)
    assert hints(IcebergKeywords).keys() == {*TABLE_OPTIONS, *SCAN_OPTIONS}


def test_loaders_show_what_they_take() -> None:
    # Older versions of torch take fewer.
    assert hints(LoaderKeywords).keys() >= LOADER_OPTIONS
    own = explicit(IcebergDataset.create_dataloader)
    assert not own & hints(RowLoaderKeywords).keys()
    assert own | hints(RowLoaderKeywords).keys() >= {*TABLE_OPTIONS, *SCAN_OPTIONS, *LOADER_OPTIONS}


# Where files are and how they are reached; what goes by another name in plans; what only parts of an epoch have.
FILE_OPTIONS = (
    "path",
    "format",
    "partitioning",
    "allow_bare_files",
    "storage_options",
    "credentials",
    "remote",
    "inventory",
)
PLAN_NAMES = {"shuffle_seed": "seed", "split_strategy": "strategy"}
PART_OF_EPOCH = {"first_row", "stop_row"}


def defaults(function: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def arguments_text(function: Any) -> str:
    text = re.search(r"Args:\n(.*?)\n\n", inspect.getdoc(function) or "", re.DOTALL)
    assert text is not None
    return text[1]


def explained(function: Any) -> list[str]:
    """The names in the order in which "Args:" explains them: "name: ...", "name, name: ..." or after a full stop."""
    heads = re.findall(r"(?:^    (?=\w)|\. )(\w+(?:,\s+\w+)*): ", arguments_text(function), re.MULTILINE)
    return [name for head in heads for name in re.split(r",\s+", head)]


def test_loaders_have_the_options_of_tables_with_their_defaults_and_in_their_order() -> None:
    of_table = {field.name: field.default for field in fields(TableOptions)}
    assert MISSING not in of_table.values()
    shown = defaults(StructuredDataset.create_dataloader)
    options = {name: shown[name] for name in shown if name not in (*FILE_OPTIONS, "loader_options")}
    assert list(options.items()) == list(of_table.items())
    shown = defaults(IcebergDataset.create_dataloader)
    options = {name: shown[name] for name in shown if name in of_table}
    assert options == {name: of_table[name] for name in options}


def test_plans_have_the_options_that_order_rows_with_their_defaults() -> None:
    of_table = {PLAN_NAMES.get(field.name, field.name): field.default for field in fields(TableOptions)}
    assert {field.name for field in fields(PlanOptions)} - PART_OF_EPOCH <= of_table.keys()
    shown = {PLAN_NAMES.get(name, name): default for name, default in defaults(plan_epoch).items()}
    # Token batches need lengths, which a plan of metadata alone does not have.
    left_out = {*PART_OF_EPOCH, "max_tokens_per_batch", "pad_to_multiple_of", "padding_free"}
    assert {field.name for field in fields(PlanOptions)} - left_out <= shown.keys()
    assert {name for name in shown if of_table.get(name, shown[name]) != shown[name]} == {"num_workers"}


@pytest.mark.parametrize("function", [StructuredDataset.create_dataloader, plan_epoch])
def test_every_option_is_explained_in_the_order_of_the_signature(function: Any) -> None:
    names, told = list(defaults(function)), explained(function)
    assert set(names) <= set(re.findall(r"\w+", arguments_text(function)))  # some in the text of another one
    assert set(told) <= set(names)
    # How files are reached is told in one place.
    beside_files = [name for name in told if name not in FILE_OPTIONS]
    assert beside_files == [name for name in names if name in beside_files]


@pytest.mark.parametrize("dataset", [StructuredDataset, IcebergDataset])
def test_an_option_has_one_type_everywhere(dataset: Any) -> None:
    shown = {**hints(RowLoaderKeywords), **hints(IcebergKeywords)}
    function = inspect.unwrap(dataset.create_dataloader.__func__)
    for name, annotation in get_type_hints(function, {**function.__globals__, **NAMES}).items():
        if name in shown:
            assert annotation == shown[name], name


def test_an_unknown_option_is_still_an_error_of_ours() -> None:
    with pytest.raises(ConfigError, match="did you mean 'shuffle_rows'"):
        IcebergDataset.create_dataloader("db.t", None, shufle_rows=3)


@pytest.mark.parametrize("dataset", [StructuredDataset, IcebergDataset])
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("seed", "did you mean 'shuffle_seed'"),
        ("world_size", "did you mean 'num_ranks'"),
        ("xyzzy", "Known are .*'batch_size'.*'shuffle_seed'.*'pin_memory'"),
    ],
)
def test_options_of_the_table_and_of_the_loader_are_all_told(dataset: Any, option: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown option '{option}'.*{told}"):
        dataset.create_dataloader("missing", **{option: 3})


@pytest.mark.parametrize("option", ["schema", "text"])
def test_an_option_of_text_files_is_answered_with_scan_files(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"pass inventory=scan_files\(path, format, {option}=\.\.\.\)"):
        StructuredDataset.create_dataloader("missing", "csv", **{option: None})


@pytest.mark.parametrize("option", ["sampler", "batch_sampler"])
def test_a_sampler_is_answered_with_what_takes_its_place(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}= has no use here: .*num_ranks.*RowDataset"):
        StructuredDataset.create_dataloader("missing", **{option: [1]})


def test_every_name_of_elsewhere_stands_for_an_option() -> None:
    assert set(table_options._ELSEWHERE.values()) <= set(TABLE_OPTIONS)
    assert not table_options._ELSEWHERE.keys() & {*TABLE_OPTIONS, *LOADER_OPTIONS}
