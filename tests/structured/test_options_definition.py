"""An option is defined once: signatures, keyword types, plans, `help()` and the page of options say the same."""

import importlib.util
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from pyiceberg.expressions import BooleanExpression
from torch.distributed.device_mesh import DeviceMesh

from torch_dataloader_utils import (
    DeltaDataset,
    IcebergDataset,
    RowDataset,
    StructuredDataset,
    plan_epoch,
    scan_delta,
    scan_files,
    scan_iceberg,
)
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils.datasets import option_fields
from torch_dataloader_utils.datasets import options as table_options
from torch_dataloader_utils.datasets.delta import DeltaDatasetKeywords, DeltaLoaderKeywords, DeltaSource
from torch_dataloader_utils.datasets.files import FileDatasetKeywords, FileLoaderKeywords, FileSource
from torch_dataloader_utils.datasets.iceberg import IcebergDatasetKeywords, IcebergLoaderKeywords, IcebergSource
from torch_dataloader_utils.datasets.keywords import LoaderKeywords
from torch_dataloader_utils.datasets.option_fields import names_of
from torch_dataloader_utils.datasets.options import LOADER_TEXT, TableOptions
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.stream.loader_options import LOADER_OPTIONS

ROOT = Path(__file__).parents[2]
NAMES = {
    "torch": torch,
    "DeviceMesh": DeviceMesh,
    "BooleanExpression": BooleanExpression,
}
DATASETS = {
    StructuredDataset: (FileSource, FileLoaderKeywords, FileDatasetKeywords),
    DeltaDataset: (DeltaSource, DeltaLoaderKeywords, DeltaDatasetKeywords),
    IcebergDataset: (IcebergSource, IcebergLoaderKeywords, IcebergDatasetKeywords),
}


def hints(thing: Any) -> dict[str, Any]:
    """Types by name of a function, a class of options or one of keywords."""
    function = inspect.unwrap(getattr(thing, "__func__", thing))
    names = {**vars(table_options), **getattr(function, "__globals__", {}), **NAMES}
    found = get_type_hints(thing, names) if inspect.isfunction(function) else get_type_hints(thing, names, names)
    return {name: each for name, each in found.items() if name not in ("return", "options")}


def shown(function: Any) -> dict[str, Any]:
    """Defaults by name of the parameters that a signature shows."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind in kinds and each.name != "self"}


def defined(*kinds: type) -> dict[str, Any]:
    """Defaults by name; those that have to be given as a signature has them."""
    found = {each.name: each.default for kind in kinds for each in fields(kind)}
    return {name: inspect.Parameter.empty if default is MISSING else default for name, default in found.items()}


def mirrors(dataset: Any) -> list[tuple[Any, Any, set[str]]]:
    """(function, its keyword types, the options it has) of a data set."""
    kind, loader, keywords = DATASETS[dataset]
    table = {*names_of(kind, TableOptions)}
    return [(dataset.create_dataloader, loader, table | LOADER_OPTIONS), (dataset.__init__, keywords, table)]


@pytest.mark.parametrize("dataset", DATASETS)
def test_signatures_show_the_options_that_are_defined_with_their_types_and_defaults(dataset: Any) -> None:
    kind = DATASETS[dataset][0]
    types, defaults = {**hints(kind), **hints(TableOptions), **hints(LoaderKeywords)}, defined(kind, TableOptions)
    for function, keywords, has in mirrors(dataset):
        own = shown(function)
        assert not own.keys() & hints(keywords).keys()
        # Older versions of torch take fewer options of loaders.
        assert own.keys() | hints(keywords).keys() >= has
        assert own.keys() | hints(keywords).keys() <= has | hints(LoaderKeywords).keys()
        assert {**hints(function), **hints(keywords)}.items() <= types.items()
        assert own.items() <= defaults.items()


@pytest.mark.parametrize("dataset", DATASETS)
def test_what_goes_by_position_comes_in_the_order_of_the_definition(dataset: Any) -> None:
    own = [name for name in shown(dataset.create_dataloader) if name in names_of(TableOptions)]
    assert own == list(names_of(TableOptions))[: len(own)]
    assert len(shown(dataset.create_dataloader)) - ("inventory" in shown(dataset.create_dataloader)) == 20


def test_scans_and_rows_have_the_same_options_where_they_have_them() -> None:
    for function, kinds in (
        (RowDataset.__init__, (FileSource, TableOptions)),
        (scan_files, (FileSource, TableOptions)),
        (scan_iceberg, (IcebergSource, TableOptions)),
        (scan_delta, (DeltaSource, TableOptions)),
    ):
        types, defaults = {}, defined(*kinds)
        for kind in kinds:
            types |= hints(kind)
        own = shown(function)
        common = own.keys() & defaults.keys()
        assert len(common) >= 6
        assert {name: own[name] for name in common} == {name: defaults[name] for name in common}
        # Lists of files to scan are paths.
        assert {name for name in common if hints(function)[name] != types[name]} <= {"path"}


# What goes by another name in plans; what only parts of an epoch have; what is one value for users.
PLAN_NAMES = {"shuffle_seed": "seed"}
PART_OF_EPOCH = {"first_row", "stop_row"}
GROUPED = {
    "lanes": {"num_lanes", "lane_rows"},
    "token_batches": {"bucket_by", "max_tokens_per_batch", "pad_to_multiple_of", "padding_free"},
    "split_strategy": {"strategy"},
}


def test_plans_have_the_options_that_order_rows_with_their_defaults() -> None:
    of_table = {PLAN_NAMES.get(name, name): default for name, default in defined(TableOptions).items()}
    own = shown(plan_epoch)
    ungrouped = {each for name in own for each in GROUPED.get(name, {name})}
    assert {each.name for each in fields(PlanOptions)} - PART_OF_EPOCH <= ungrouped
    # How many workers a loader has depends on the machine; a plan has to say it.
    assert {name for name in own if of_table.get(name, own[name]) != own[name]} == {"num_workers"}
    types = {PLAN_NAMES.get(name, name): each for name, each in hints(TableOptions).items()}
    differ = {name for name, each in hints(plan_epoch).items() if types.get(name, each) != each}
    assert differ == {"num_ranks", "num_workers"}


def test_every_parameter_of_a_plan_is_explained() -> None:
    text = re.search(r"Args:\n(.*?)\n\n", inspect.getdoc(plan_epoch) or "", re.DOTALL)
    assert text is not None
    assert set(shown(plan_epoch)) <= set(re.findall(r"\w+", text[1]))


@pytest.mark.parametrize("dataset", DATASETS)
def test_help_has_the_text_of_every_option(dataset: Any) -> None:
    told = " ".join((inspect.getdoc(dataset.create_dataloader) or "").split())
    for each in [*fields(DATASETS[dataset][0]), *fields(TableOptions)]:
        assert each.metadata["text"].endswith(".")
        assert f"{each.name}: {each.metadata['text']}" in told
    assert LOADER_TEXT in told
    assert set(re.findall(r"\w+", LOADER_TEXT)) >= hints(LoaderKeywords).keys()


def test_the_page_of_options_is_made_of_the_definitions() -> None:
    spec = importlib.util.spec_from_file_location("write_options", ROOT / "scripts" / "write_options.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text() == script.page(), "run python scripts/write_options.py"


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("bucket_by", "token_batches=TokenBatches(column)"),
        ("max_tokens_per_batch", "token_batches=TokenBatches(column, max_tokens=...)"),
        ("pad_to_multiple_of", "pad_to_multiple_of=...)"),
        ("padding_free", "padding_free=True)"),
        ("num_lanes", "lanes=Lanes(num_lanes)"),
        ("lane_rows", "lanes=Lanes(num_lanes, rows=...)"),
        ("decode_threads", "decoding=Decoding(threads=...)"),
        ("decode_ahead_bytes", "decoding=Decoding(ahead_bytes=...)"),
        ("page_checksums", "decoding=Decoding(page_checksums=...)"),
    ],
)
@pytest.mark.parametrize("make", [*DATASETS, *(each.create_dataloader for each in DATASETS), RowDataset])
def test_a_part_of_a_group_is_answered_with_the_group(make: Any, name: str, now: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown option '{name}'; pass .*{re.escape(now)}"):
        make("missing", **{name: 1})


def test_a_scan_of_a_table_takes_no_inventory() -> None:
    with pytest.raises(ConfigError, match="Unknown option 'inventory'"):
        scan_iceberg("db.t", None, inventory=None)
    with pytest.raises(ConfigError, match="Unknown option 'inventory'"):
        scan_delta("t", inventory=None)


def test_secrets_are_not_printed() -> None:
    secret = {"key": "canary-1234"}
    sources = [
        FileSource(path="a", storage_options=secret),
        DeltaSource(table="a", storage_options=secret),
        IcebergSource(table="a", storage_options=secret, catalog_config=secret),
    ]
    assert "canary" not in repr(sources)


def test_an_unknown_option_is_still_an_error_of_ours() -> None:
    with pytest.raises(ConfigError, match="did you mean 'shuffle_rows'"):
        IcebergDataset.create_dataloader("db.t", None, shufle_rows=3)


@pytest.mark.parametrize("dataset", DATASETS)
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
    known = {*names_of(FileSource, TableOptions), *LOADER_OPTIONS}
    assert set(option_fields._ELSEWHERE.values()) <= known
    assert not option_fields._ELSEWHERE.keys() & known
    assert not option_fields._GROUPED.keys() & known
