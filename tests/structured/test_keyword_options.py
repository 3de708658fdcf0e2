"""What editors show of keyword options is what data sets and loaders take."""

import inspect
from typing import Any, get_type_hints

import pytest
import torch
from pyiceberg.expressions import BooleanExpression
from torch.distributed.device_mesh import DeviceMesh

from torch_dataloader_utils import IcebergDataset, StructuredDataset
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.stream.loader_options import LOADER_OPTIONS
from torch_dataloader_utils.tables import keyword_options, table_options
from torch_dataloader_utils.tables.iceberg_source import SCAN_OPTIONS
from torch_dataloader_utils.tables.keyword_options import (
    IcebergKeywords,
    LoaderKeywords,
    RowLoaderKeywords,
    TableKeywords,
)
from torch_dataloader_utils.tables.table_options import TABLE_OPTIONS

NAMES = {"torch": torch, "DeviceMesh": DeviceMesh, "BooleanExpression": BooleanExpression}


def hints(keywords: type) -> dict[str, Any]:
    return get_type_hints(keywords, vars(keyword_options), NAMES)


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
